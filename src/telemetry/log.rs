//! Where logs go, how they look and which are shown. Nothing here logs.

use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::filter::{EnvFilter, LevelFilter, ParseError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt as lines, reload};

/// The environment variable with the filter, in the notation of `tracing`: `info,cftunnel::proxy=debug`.
pub const FILTER_VARIABLE: &str = "CFTUNNEL_LOG";

/// Shown when nobody asks for anything else.
const DEFAULT_FILTER: &str = "info";

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people; coloured on a terminal.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

/// A format that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log format {0:?} is neither plain nor json")]
pub struct InvalidFormat(String);

impl FromStr for Format {
    type Err = InvalidFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "plain" => Ok(Self::Plain),
            "json" => Ok(Self::Json),
            other => Err(InvalidFormat(other.to_owned())),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Json => "json",
        })
    }
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A filter that does not parse.
    #[error("log filter {filter:?} is malformed; write it as `info` or `info,cftunnel::proxy=debug`")]
    Filter {
        /// The text.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Logs were set up before.
    #[error("logs are set up already")]
    Again(#[from] TryInitError),
}

/// Changes the filter while the program runs.
#[derive(Clone)]
pub struct Level(reload::Handle<EnvFilter, tracing_subscriber::Registry>);

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Level")
    }
}

impl Level {
    /// Shows what `filter` says from now on.
    ///
    /// # Errors
    /// [`LogError::Filter`]; the filter stays as it was.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        let filter = parse(filter)?;
        // Fails only when the subscriber is gone, and then there is nothing to change.
        let _ = self.0.reload(filter);
        Ok(())
    }
}

/// Sends logs to stderr. `filter` is the flag's value and wins over [`FILTER_VARIABLE`]; an empty one counts as absent.
///
/// # Errors
/// A malformed filter, or a second call.
pub fn init(format: Format, filter: Option<&str>) -> Result<Level, LogError> {
    let variable = std::env::var(FILTER_VARIABLE).ok();
    let wanted = [filter, variable.as_deref()].into_iter().flatten().map(str::trim).find(|text| !text.is_empty());
    let (filter, handle) = reload::Layer::new(parse(wanted.unwrap_or(DEFAULT_FILTER))?);
    let lines = match format {
        Format::Plain => lines::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).boxed(),
        Format::Json => lines::layer().json().flatten_event(true).with_writer(std::io::stderr).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    Ok(Level(handle))
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(filter)
        .map_err(|source| LogError::Filter { filter: filter.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_and_written_alike() {
        for format in [Format::Plain, Format::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("xml".parse::<Format>().is_err());
    }

    #[test]
    fn filters_are_checked() {
        assert!(parse("info,cftunnel::proxy=debug").is_ok());
        assert!(matches!(parse("cftunnel=loud"), Err(LogError::Filter { .. })));
    }
}
