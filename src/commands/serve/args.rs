//! Arguments that the serve verbs share, and what they mean. Nothing is started here.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueHint;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::commands::Context;
use crate::commands::output::{Help as _, fail};
use crate::gateway::token::TunnelToken;
use crate::proxy::connector::{self, EdgeAddress, EdgeSource, IpVersion, Protocol, Roots};
use crate::proxy::workers::{self, Workers};
use crate::telemetry::log;

/// The environment variable with the tunnel token, named as everywhere else.
const TOKEN_VARIABLE: &str = "TUNNEL_TOKEN";

/// Longest grace period. The edge waits no longer.
const MAX_GRACE: Duration = Duration::from_secs(180);

/// A type's own parser, with the values named so that help and completion can offer them.
fn one_of<T>(values: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(values).try_map(|text| text.parse::<T>())
}

/// How to reach an edge, and as whom.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tunnel")]
pub(super) struct TunnelArgs {
    /// The edge to connect to; may be repeated. `cloudflare` finds Cloudflare's own
    #[arg(long = "edge", value_name = "HOST:PORT")]
    edges: Vec<EdgeArg>,
    /// Trust these authorities for the edge and no others (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    edge_ca_file: Option<PathBuf>,
    /// Address family towards the edge
    #[arg(long, value_name = "FAMILY", default_value = "auto", value_parser = one_of::<IpVersion>(&["auto", "4", "6"]))]
    edge_ip_version: IpVersion,
    /// Transport: QUIC with HTTP/2 to fall back on, or one of them. gRPC needs auto or http2
    #[arg(long, value_name = "TRANSPORT", default_value = "auto", value_parser = one_of::<Protocol>(&["auto", "quic", "http2"]))]
    tunnel_protocol: Protocol,
    /// File with the tunnel token or the credentials JSON; else the variable TUNNEL_TOKEN. Never an argument: those are public
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
    /// How long requests in flight may take when told to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = grace)]
    pub(super) grace_period: Duration,
}

/// How much of the machine to use.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WorkerArgs {
    /// Threads that carry requests [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS))]
    workers: Option<u16>,
}

/// More threads than any machine has a use for cost memory and descriptors.
const MAX_WORKERS: i64 = 1024;

impl WorkerArgs {
    fn count(&self) -> NonZeroUsize {
        self.workers.and_then(|n| NonZeroUsize::new(n.into())).unwrap_or_else(workers::available)
    }

    /// Starts them.
    pub(super) fn start(&self) -> anyhow::Result<Workers> {
        Workers::start(self.count()).context("cannot start the worker threads")
    }
}

/// Where logs go.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
pub(super) struct LogArgs {
    /// How log lines look, on stderr
    #[arg(long, value_name = "FORMAT", default_value = "plain", value_parser = one_of::<log::Format>(&["plain", "json"]))]
    log_format: log::Format,
    /// What is logged: error, warn, info, debug, trace, or a filter such as info,cftunnel::proxy=debug; else the variable CFTUNNEL_LOG
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl LogArgs {
    /// How remarks are made beside the logs: to programs, as log lines too.
    pub(super) fn voice(&self, context: Context) -> Context {
        if self.log_format == log::Format::Json { Context { out: context.out.log_remarks() } } else { context }
    }

    /// Starts logging.
    pub(super) fn init(&self) -> anyhow::Result<log::Level> {
        Ok(log::init(self.log_format, self.log_level.as_deref())?)
    }
}

/// A value of `--edge`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EdgeArg {
    Cloudflare,
    Address(EdgeAddress),
}

impl FromStr for EdgeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "cloudflare" {
            return Ok(Self::Cloudflare);
        }
        text.parse().map(Self::Address).map_err(|e| format!("{e}; or write `cloudflare` to have it found"))
    }
}

/// An edge that is not ours, and the right to connect to it.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) token: TunnelToken,
    source: EdgeSource,
    roots: Roots,
}

impl TunnelArgs {
    /// The transport.
    pub(super) fn protocol(&self) -> Protocol {
        self.tunnel_protocol
    }

    /// The remote edge that was asked for; none without `--edge`.
    pub(super) fn remote(&self) -> anyhow::Result<Option<Remote>> {
        if self.edges.is_empty() {
            return match &self.edge_ca_file {
                Some(_) => Err(fail("--edge-ca-file is for an edge that --edge names", "add --edge HOST:PORT, or leave it out")),
                None => Ok(None),
            };
        }
        self.connect_to("; without --edge, this verb brings its own edge and needs none").map(Some)
    }

    /// The edge to connect to when there is no built-in one: as `--edge` says, else Cloudflare's.
    ///
    /// `otherwise` ends the help for a token that is missing.
    pub(super) fn connect_to(&self, otherwise: &str) -> anyhow::Result<Remote> {
        let token = self.token()?.ok_or_else(|| {
            fail(
                "an edge needs a tunnel token, and there is none",
                format!("set {TOKEN_VARIABLE}, or write it to a file and name that with --token-file{otherwise}"),
            )
        })?;
        let addresses: Vec<EdgeAddress> =
            self.edges.iter().filter_map(|e| if let EdgeArg::Address(a) = e { Some(a.clone()) } else { None }).collect();
        let source = match (addresses.is_empty(), self.edges.contains(&EdgeArg::Cloudflare)) {
            (true, _) => EdgeSource::of(&token),
            (false, false) => EdgeSource::Static(addresses),
            (false, true) => return Err(fail("--edge names both Cloudflare and an address", "use one or the other")),
        };
        let roots = match &self.edge_ca_file {
            Some(path) => Roots::from_file(path),
            None => Roots::system(),
        }
        .help("the file holds the PEM certificates of the edge's authority")?;
        Ok(Remote { token, source, roots })
    }

    /// The token, from the file or the environment.
    pub(super) fn token(&self) -> anyhow::Result<Option<TunnelToken>> {
        let (text, origin, check) = match &self.token_file {
            Some(path) => {
                let text = read_small(path).with_context(|| format!("cannot read the tunnel token from {}", path.display()))?;
                (text, path.display().to_string(), format!("--file {}", path.display()))
            }
            None => match std::env::var(TOKEN_VARIABLE) {
                Ok(text) if !text.trim().is_empty() => {
                    (zeroize::Zeroizing::new(text), TOKEN_VARIABLE.to_owned(), format!("<<< \"${TOKEN_VARIABLE}\""))
                }
                _ => return Ok(None),
            },
        };
        let token = TunnelToken::from_any(&text)
            .with_context(|| format!("cannot use the tunnel token of {origin}"))
            .help(format!("`kubectl-cftunnel token parse {check}` says what it is"))?;
        Ok(Some(token))
    }

    /// Settings of the connector towards a remote edge.
    pub(super) fn remote_config(&self, remote: Remote, metrics: connector::Metrics, workers: Workers) -> connector::Config {
        self.config(remote.token, remote.source, remote.roots, metrics, workers)
    }

    /// Settings of the connector.
    pub(super) fn config(
        &self,
        token: TunnelToken,
        edge: EdgeSource,
        roots: Roots,
        metrics: connector::Metrics,
        workers: Workers,
    ) -> connector::Config {
        connector::Config {
            token,
            client_id: uuid::Uuid::new_v4(),
            edge,
            roots,
            protocol: self.tunnel_protocol,
            connections: 4,
            grace: self.grace_period,
            ip_version: self.edge_ip_version,
            post_quantum: true,
            metrics,
            workers: Some(workers),
        }
    }
}

/// Largest file that is read as a token.
const MAX_TOKEN_FILE: u64 = 64 * 1024;

fn read_small(path: &Path) -> anyhow::Result<zeroize::Zeroizing<String>> {
    use std::io::Read as _;
    let mut text = zeroize::Zeroizing::new(String::new());
    fs::File::open(path)?.take(MAX_TOKEN_FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// A duration such as `30s`, `1m30s`, `500ms`, or `0`.
fn grace(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write 30s, 1m30s, 500ms or 0");
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() && rest != "0" {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let part = match &rest[..end] {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.saturating_mul(60)),
            _ => return Err(wrong()),
        };
        total = total.saturating_add(part);
        rest = &rest[end..];
    }
    if total > MAX_GRACE {
        Err(format!("{text} is longer than the edge waits, {}m", MAX_GRACE.as_secs() / 60))
    } else {
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_periods_are_read_strictly() {
        assert_eq!(grace("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(grace("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(grace("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(grace("0"), Ok(Duration::ZERO));
        assert_eq!(grace("0s"), Ok(Duration::ZERO));
        for text in ["", "30", "s", "-1s", "1h", "1.5s", "4m", "99999999999999999999s", "18446744073709551615m"] {
            assert!(grace(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_edge_is_an_address_or_cloudflare() {
        assert_eq!("cloudflare".parse(), Ok(EdgeArg::Cloudflare));
        assert!(matches!("127.0.0.1:7844".parse(), Ok(EdgeArg::Address(_))));
        assert!("nowhere".parse::<EdgeArg>().is_err());
    }
}
