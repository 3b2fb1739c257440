//! Everything printed: tables, JSON, YAML, names, errors, colours. The only place that writes to stdout or stderr (logs apart)
//! and that writes YAML. Strings from outside are cleaned here, so that no manifest can drive a terminal.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use comfy_table::{Cell as TableCell, Color, ContentArrangement, Table, presets};
use owo_colors::{OwoColorize, Style};
use serde::Serialize;

/// Formats of a result. No doc comments on the variants: help stays one line.
#[allow(missing_docs, reason = "the names say it, and doc comments would be help text")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

/// When to colour: `auto` means on a terminal, unless NO_COLOR is set.
#[allow(missing_docs, reason = "the names say it, and doc comments would be help text")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

/// The `-o` flag, for verbs that show a result.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputArgs {
    /// How to show the result
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT", default_value_t, hide_default_value = true)]
    pub format: Format,
}

/// What a verb has to show: structured for programs, blocks for people.
pub trait View: Serialize {
    /// The table form; `wide` asks for more columns.
    fn blocks(&self, wide: bool) -> Vec<Block>;

    /// The `-o name` form.
    fn names(&self) -> Vec<String>;
}

/// A piece of the form for people.
#[derive(Debug)]
pub enum Block {
    /// A line of text.
    Line(Cell),
    /// An empty line.
    Gap,
    /// `name: value` lines, aligned.
    Fields(Vec<(&'static str, Cell)>),
    /// Columns with a header.
    Table {
        /// Names of the columns, upper case.
        header: Vec<&'static str>,
        /// Rows, as long as the header.
        rows: Vec<Vec<Cell>>,
    },
}

/// What a text means, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Works, but look.
    Warn,
    /// Does not work.
    Bad,
    /// Of less interest.
    Dim,
    /// Of more interest.
    Strong,
}

/// A text with its tone.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A text in a tone.
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Writes to the terminal, pipe or file that the process was given.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    color_out: bool,
    color_err: bool,
    /// Remarks go the way of the logs, which a program reads.
    remarks_are_logs: bool,
}

impl Output {
    /// Decides on colours once.
    pub fn new(choice: ColorChoice) -> Self {
        let plain =
            std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        let decide = |terminal: bool| match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !plain,
        };
        Self {
            color_out: decide(io::stdout().is_terminal()),
            color_err: decide(io::stderr().is_terminal()),
            remarks_are_logs: false,
        }
    }

    /// From now on remarks are log lines.
    #[must_use]
    pub fn log_remarks(self) -> Self {
        Self { remarks_are_logs: true, ..self }
    }

    /// Shows a result on stdout.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn show(self, view: &impl View, format: Format) -> Result<(), WriteError> {
        let text = match format {
            Format::Table => self.render(&view.blocks(false)),
            Format::Wide => self.render(&view.blocks(true)),
            Format::Json => serde_json::to_string_pretty(view).map_err(io::Error::from)? + "\n",
            Format::Yaml => yaml(view)?,
            Format::Name => view.names().iter().map(|n| format!("{}\n", clean(n))).collect(),
        };
        self.raw(&text)
    }

    /// Shows blocks on stdout.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn blocks(self, blocks: &[Block]) -> Result<(), WriteError> {
        self.raw(&self.render(blocks))
    }

    /// Writes text that we made ourselves to stdout as it is.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn raw(self, text: &str) -> Result<(), WriteError> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    /// A remark on stderr: `warning: …`, `note: …`. Not being able to write it is no reason to fail.
    pub fn remark(self, label: &str, tone: Tone, text: &str) {
        if self.remarks_are_logs {
            let text = clean(text);
            match tone {
                Tone::Bad => tracing::error!(%text, "Remark"),
                Tone::Warn => tracing::warn!(%text, "Remark"),
                _ => tracing::info!(%text, "Remark"),
            }
            return;
        }
        let label = paint(label, tone, self.color_err);
        let _ = writeln!(io::stderr().lock(), "{label}: {}", clean(text));
    }

    /// An error on stderr, with its causes and what to do about it.
    pub fn error(self, error: &anyhow::Error) {
        let mut text = format!("{}: {}\n", paint("error", Tone::Bad, self.color_err), clean(&error.to_string()));
        let mut last = error.to_string();
        for cause in error.chain().skip(1) {
            let cause = cause.to_string();
            // Some errors already say their cause.
            if !last.contains(&cause) {
                text.push_str(&format!("  {}: {}\n", paint("caused by", Tone::Dim, self.color_err), clean(&cause)));
            }
            last = cause;
        }
        if let Some(helped) = error.downcast_ref::<Helped>() {
            let label = paint("help", Tone::Good, self.color_err);
            text.push_str(&format!("  {label}: {}\n", clean_lines(&helped.help)));
        }
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// What clap has to say: help and version on stdout, usage errors on stderr.
    pub fn usage(self, error: &clap::Error) -> io::Result<()> {
        if error.use_stderr() {
            let text = if self.color_err { error.render().ansi().to_string() } else { error.render().to_string() };
            // clap quotes what it cannot place, and that may be a token in the wrong place.
            io::stderr().lock().write_all(redact(&text).as_bytes())
        } else {
            let text = if self.color_out { error.render().ansi().to_string() } else { error.render().to_string() };
            io::stdout().lock().write_all(text.as_bytes())
        }
    }

    fn render(self, blocks: &[Block]) -> String {
        let mut text = String::new();
        for block in blocks {
            match block {
                Block::Gap => text.push('\n'),
                Block::Line(cell) => {
                    text.push_str(&paint(&clean(&cell.text), cell.tone, self.color_out));
                    text.push('\n');
                }
                Block::Fields(fields) => {
                    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
                    for (name, cell) in fields {
                        let value = paint(&clean(&cell.text), cell.tone, self.color_out);
                        text.push_str(format!("{:<width$} {value}", format!("{name}:")).trim_end());
                        text.push('\n');
                    }
                }
                Block::Table { header, rows } => text.push_str(&self.table(header, rows)),
            }
        }
        text
    }

    fn table(self, header: &[&'static str], rows: &[Vec<Cell>]) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if self.color_out {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(header);
        for row in rows {
            table.add_row(row.iter().map(|cell| {
                let out = TableCell::new(clean(&cell.text));
                color(cell.tone).map_or_else(|| out.clone(), |c| out.clone().fg(c))
            }));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

/// An error with what to do about it.
#[derive(Debug)]
pub struct Helped {
    error: anyhow::Error,
    help: String,
}

impl std::fmt::Display for Helped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Helped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Adds the `help:` line to an error.
pub trait Help<T> {
    /// Says what to do about the error.
    ///
    /// # Errors
    /// The same error, with its help.
    fn help(self, text: impl Into<String>) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> Help<T> for Result<T, E> {
    fn help(self, text: impl Into<String>) -> anyhow::Result<T> {
        self.map_err(|error| anyhow::Error::new(Helped { error: error.into(), help: text.into() }))
    }
}

/// An error in one line and its help in another.
pub fn fail(message: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Helped { error: anyhow::Error::msg(message.into()), help: help.into() })
}

/// Stdout cannot be written. A reader that has seen enough is no failure.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to stdout")]
pub struct WriteError(#[from] io::Error);

impl WriteError {
    /// Whether the reader has gone away.
    pub fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// A value as YAML.
///
/// # Errors
/// When the value cannot be written as YAML.
pub fn yaml(value: &(impl Serialize + ?Sized)) -> Result<String, WriteError> {
    // Through JSON, so that both show the same and a map keeps its order.
    let value = serde_json::to_value(value).map_err(io::Error::from)?;
    serde_saphyr::to_string(&value).map_err(|e| WriteError(io::Error::other(e)))
}

/// Quotes a text for a POSIX shell when it needs quotes.
pub fn shell_quote(text: &str) -> Cow<'_, str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
    }
}

/// Makes a text from outside safe for a terminal: control and direction characters become visible escapes.
fn clean(text: &str) -> Cow<'_, str> {
    let risky = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let text = redact(text);
    if text.contains(risky) {
        Cow::Owned(text.chars().map(|c| if risky(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect())
    } else {
        text
    }
}

/// How every tunnel token starts: base64 of `{"`.
const TOKEN_START: &str = "eyJ";

/// Shortest word that is taken for a token.
const TOKEN_LENGTH: usize = 40;

/// Leaves out words that look like a tunnel token. Nothing puts one here on purpose; users put them where a name belongs.
fn redact(text: &str) -> Cow<'_, str> {
    if !text.contains(TOKEN_START) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(TOKEN_START) {
        let word = &rest[at..];
        let end = word.find(|c: char| !(c.is_ascii_alphanumeric() || "+/=-_".contains(c))).unwrap_or(word.len());
        out.push_str(&rest[..at]);
        out.push_str(if end >= TOKEN_LENGTH { "[left out: it looks like a token]" } else { &word[..end] });
        rest = &word[end..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// As [`clean`], line by line, continued lines indented.
fn clean_lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n        ")
}

fn paint(text: &str, tone: Tone, colored: bool) -> String {
    let style = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Good => Style::new().green(),
        Tone::Warn => Style::new().yellow(),
        Tone::Bad => Style::new().red().bold(),
        Tone::Dim => Style::new().dimmed(),
        Tone::Strong => Style::new().bold(),
    };
    if colored { text.style(style).to_string() } else { text.to_owned() }
}

fn color(tone: Tone) -> Option<Color> {
    match tone {
        Tone::Plain => None,
        Tone::Good => Some(Color::Green),
        Tone::Warn => Some(Color::Yellow),
        Tone::Bad => Some(Color::Red),
        Tone::Dim => Some(Color::DarkGrey),
        Tone::Strong => Some(Color::White),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Output = Output { color_out: false, color_err: false, remarks_are_logs: false };

    #[test]
    fn text_from_outside_cannot_drive_a_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\r\n\u{202e}c"), "a\\u{1b}[31mb\\u{d}\\u{a}\\u{202e}c");
        assert_eq!(clean("grüße 日本"), "grüße 日本");
        let text = PLAIN.render(&[Block::Table { header: vec!["A"], rows: vec![vec!["x\u{1b}]0;t\u{7}".into()]] }]);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    }

    #[test]
    fn a_token_in_the_wrong_place_is_not_shown() {
        let token = format!("eyJ{}", "hIjoiMDEy/+=".repeat(8));
        assert_eq!(clean(&format!("no file {token}: x")), "no file [left out: it looks like a token]: x");
        assert_eq!(redact(&format!("'{token}' eyJ and eyJhbGciOi")), "'[left out: it looks like a token]' eyJ and eyJhbGciOi");
    }

    #[test]
    fn a_table_has_columns_two_blanks_apart_and_no_blanks_at_the_end() {
        let rows = vec![vec!["a".into(), "b".into()], vec!["longer".into(), Cell::new("c", Tone::Bad)]];
        let text = PLAIN.render(&[Block::Table { header: vec!["NAME", "X"], rows }]);
        assert_eq!(text, "NAME    X\na       b\nlonger  c\n");
        let text = Output { color_out: true, ..PLAIN }.render(&[Block::Line(Cell::new("x", Tone::Bad))]);
        assert!(text.contains("\u{1b}["), "{text:?}");
    }

    #[test]
    fn shell_words_are_quoted_only_when_they_must_be() {
        assert_eq!(shell_quote("http://127.0.0.1:8080/a"), "http://127.0.0.1:8080/a");
        assert_eq!(shell_quote("Host: a b"), "'Host: a b'");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }

    #[test]
    fn help_is_found_and_the_message_is_that_of_the_error() {
        let error = Err::<(), _>(io::Error::other("inner")).help("do this").expect_err("an error");
        assert_eq!(error.to_string(), "inner");
        assert_eq!(error.downcast_ref::<Helped>().map(|h| h.help.as_str()), Some("do this"));
    }
}
