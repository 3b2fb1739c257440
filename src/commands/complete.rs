//! The hidden verb behind `kubectl_complete-cftunnel`: answers kubectl's request for completions in the format of kubectl's own
//! command line library: a candidate and its description a line, then `:` and a directive.

use std::ffi::OsString;

use clap::{Arg, Command, ValueHint};

use super::exit::ExitCode;
use super::output::{ColorChoice, Output};

/// The name kubectl's completion scripts call.
pub(crate) const VERB: &str = "__complete";

/// Nothing was said about files: the shell offers them.
const FILES: u8 = 0;
/// The shell must not offer files.
const NO_FILES: u8 = 4;
/// The shell offers folders only.
const FOLDERS: u8 = 16;

/// Answers for the words after the verb; the last is the one to complete. Parsed by nobody else: they are half a command line.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let mut root = super::definition(super::BIN);
    root.build();
    Output::new(ColorChoice::Never).raw(&answer(&root, &words))?;
    Ok(ExitCode::Fine)
}

/// The whole answer to `words`.
fn answer(root: &Command, words: &[String]) -> String {
    let (current, before) = words.split_last().map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let position = walk(root, before);
    let (candidates, directive) = match position {
        Position::Value(arg) => values(arg, current, ""),
        Position::Word { command, positionals, flags_over } => {
            if let Some((flag, value)) = current.split_once('=').filter(|(f, _)| f.starts_with("--") && !flags_over) {
                match long(command, &flag[2..]) {
                    Some(arg) => values(arg, value, &format!("{flag}=")),
                    None => (Vec::new(), NO_FILES),
                }
            } else if current.starts_with('-') && !flags_over {
                (flags(command, current), NO_FILES)
            } else {
                word(command, positionals, current)
            }
        }
    };
    let mut text = String::new();
    for (name, about) in candidates {
        text.push_str(&if about.is_empty() { format!("{name}\n") } else { format!("{name}\t{about}\n") });
    }
    text.push_str(&format!(":{directive}\n"));
    text
}

/// What the word to complete stands for.
enum Position<'c> {
    /// The value of a flag.
    Value(&'c Arg),
    /// A subcommand, a flag or a positional of `command`, of which some positionals came before.
    Word { command: &'c Command, positionals: usize, flags_over: bool },
}

fn walk<'c>(root: &'c Command, words: &[String]) -> Position<'c> {
    let (mut command, mut positionals, mut flags_over) = (root, 0, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if flags_over {
            positionals += 1;
        } else if word == "--" {
            flags_over = true;
        } else if let Some(flag) = word.strip_prefix("--") {
            // `--flag=x` carries its value.
            if let Some(arg) = long(command, flag).filter(|a| takes_value(a))
                && words.next().is_none()
            {
                return Position::Value(arg);
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) {
            // `-ojson` carries its value; `-o` takes the next word.
            let mut rest = letters.chars();
            let arg = rest.next().and_then(|c| command.get_arguments().find(|a| a.get_short() == Some(c)));
            if let Some(arg) = arg.filter(|a| takes_value(a) && rest.as_str().is_empty())
                && words.next().is_none()
            {
                return Position::Value(arg);
            }
        } else if let Some(sub) = command.find_subcommand(word).filter(|_| positionals == 0) {
            command = sub;
        } else {
            positionals += 1;
        }
    }
    Position::Word { command, positionals, flags_over }
}

type Candidates = Vec<(String, String)>;

fn word(command: &Command, positionals: usize, current: &str) -> (Candidates, u8) {
    if command.has_subcommands() {
        let names = command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name().starts_with(current));
        return (names.map(|c| (c.get_name().to_owned(), first_line(c.get_about()))).collect(), NO_FILES);
    }
    match command.get_positionals().nth(positionals) {
        Some(arg) => values(arg, current, ""),
        None => (Vec::new(), NO_FILES),
    }
}

fn flags(command: &Command, current: &str) -> Candidates {
    command
        .get_arguments()
        .filter(|a| !a.is_hide_set())
        .filter_map(|a| a.get_long().map(|l| (format!("--{l}"), first_line(a.get_help()))))
        .filter(|(name, _)| name.starts_with(current))
        .collect()
}

/// Values of an argument that start with `current`, each after `prefix`.
fn values(arg: &Arg, current: &str, prefix: &str) -> (Candidates, u8) {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let fit = possible.iter().filter(|v| !v.is_hide_set() && v.get_name().starts_with(current));
        return (fit.map(|v| (format!("{prefix}{}", v.get_name()), first_line(v.get_help()))).collect(), NO_FILES);
    }
    let directive = match arg.get_value_hint() {
        ValueHint::AnyPath | ValueHint::FilePath => FILES,
        ValueHint::DirPath => FOLDERS,
        _ => NO_FILES,
    };
    (Vec::new(), directive)
}

fn long<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|a| a.get_long() == Some(name))
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|t| t.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(words: &[&str]) -> String {
        let mut root = super::super::definition(super::super::BIN);
        root.build();
        answer(&root, &words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn subcommands_flags_and_values_are_offered() {
        let top = ask(&[""]);
        assert!(top.contains("token\t") && top.ends_with(":4\n") && !top.contains(VERB), "{top}");
        assert_eq!(ask(&["tok"]).lines().next().and_then(|l| l.split('\t').next()), Some("token"));
        assert!(ask(&["token", "parse", "--f"]).starts_with("--file\t"), "{}", ask(&["token", "parse", "--f"]));
        assert!(ask(&["version", "-o", "j"]).starts_with("json\n"));
        assert!(ask(&["version", "--output=y"]).starts_with("--output=yaml\n"));
        assert!(ask(&["generate", "completions", ""]).starts_with("bash"));
        assert_eq!(ask(&["token", "parse", "--file", ""]), ":0\n");
        assert_eq!(ask(&["version", "-ojson", ""]), ":4\n");
        assert_eq!(ask(&["nonsense", "--what", "-", "--", "-x"]), ask(&["nonsense", "--what", "-", "--", "-x"]));
    }
}
