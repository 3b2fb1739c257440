//! The command line: the only place that prints, prompts, colours or uses anyhow.
//!
//! One verb, one file: its arguments, the view it shows, and `run`. What a verb finds out it asks the pure core; nothing is
//! decided here that the controller or the data plane would decide differently.

mod complete;
pub mod exit;
mod from_file;
mod generate;
mod lint;
pub mod output;
mod plane;
mod route;
mod serve;
mod token;
mod version;

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use exit::ExitCode;
use output::{ColorChoice, Output};

/// The name of the binary, as it is found on PATH.
const BIN: &str = "kubectl-cftunnel";

/// Gateway API for Cloudflare Tunnel
///
/// One binary: the operator's tool, the data plane with its own tunnel connector, and both in one process for a laptop.
/// Works without a cluster and without a Cloudflare account: start with `serve local`.
#[derive(Debug, Parser)]
#[command(name = BIN, version, disable_help_subcommand = true, propagate_version = false, infer_subcommands = false)]
#[command(after_help = "Examples:
  # A gateway on this machine, from a folder of manifests
  kubectl cftunnel serve local --from-file examples/quickstart --demo-backends

  # Which rule would serve this request, and why the others would not
  kubectl cftunnel route trace GET http://shop.example.com/cart --from-file examples/quickstart

Exit codes: 0 fine, 1 looked and found problems, 2 could not do it or wrong usage, 130 interrupted.")]
struct Cli {
    /// When to use colours
    #[arg(long, value_enum, value_name = "WHEN", global = true, default_value_t, hide_default_value = true)]
    color: ColorChoice,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Lint(lint::Args),
    Route(route::Args),
    Token(token::Args),
    Generate(generate::Args),
    Version(version::Args),
}

/// What the global arguments and the environment mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// Where results and errors go.
    pub(crate) out: Output,
}

/// Parses `argv`, runs the verb, prints the error if there is one, and says how the process should end.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    if argv.get(1).is_some_and(|verb| verb == complete::VERB) {
        return finish(Output::new(ColorChoice::Never), complete::run(&argv[2..]));
    }
    let name = invoked_as(argv.first().map(Path::new), std::env::var_os("_").as_deref().map(Path::new));
    let cli = match definition(&name).try_get_matches_from(argv).and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(error) => {
            let failed = Output::new(ColorChoice::Auto).usage(&error).is_err_and(|e| e.kind() != std::io::ErrorKind::BrokenPipe);
            return if failed || error.use_stderr() { ExitCode::Failed } else { ExitCode::Fine };
        }
    };
    let context = Context { out: Output::new(cli.color) };
    finish(context.out, run(context, cli.command))
}

fn finish(out: Output, result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if error.downcast_ref::<output::WriteError>().is_some_and(output::WriteError::is_closed_pipe) => {
            ExitCode::Fine
        }
        Err(error) => {
            out.error(&error);
            ExitCode::Failed
        }
    }
}

fn run(context: Context, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::run(context, args),
        Command::Lint(args) => lint::run(context, args),
        Command::Route(args) => route::run(context, args),
        Command::Token(args) => token::run(context, args),
        Command::Generate(args) => generate::run(context, args),
        Command::Version(args) => version::run(context, args),
    }
}

/// The whole command line, as parser, help, man pages and completions share it. `name` is what usage lines start with.
fn definition(name: &str) -> clap::Command {
    Cli::command().bin_name(name)
}

/// How usage lines should call us: kubectl replaces itself by its plugin, and leaves only the shell's `_` to tell.
fn invoked_as(argv0: Option<&Path>, underscore: Option<&Path>) -> String {
    let base =
        |p: Option<&Path>| p.and_then(Path::file_name).and_then(|n| n.to_str()).map(|n| n.trim_end_matches(".exe").to_owned());
    let own = base(argv0).unwrap_or_else(|| BIN.to_owned());
    match (own.strip_prefix("kubectl-"), base(underscore).as_deref()) {
        (Some(plugin), Some("kubectl")) => format!("kubectl {}", plugin.replace('_', "-")),
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        definition(BIN).debug_assert();
    }

    #[test]
    fn usage_names_kubectl_only_when_kubectl_started_us() {
        let name = |argv0: &str, underscore: Option<&str>| invoked_as(Some(Path::new(argv0)), underscore.map(Path::new));
        assert_eq!(name("/usr/local/bin/kubectl-cftunnel", Some("/usr/bin/kubectl")), "kubectl cftunnel");
        assert_eq!(name("/usr/local/bin/kubectl-cftunnel", Some("/usr/local/bin/kubectl-cftunnel")), "kubectl-cftunnel");
        assert_eq!(name("kubectl-cftunnel", None), "kubectl-cftunnel");
        assert_eq!(name("cft", Some("/usr/bin/kubectl")), "cft");
        assert_eq!(invoked_as(None, None), BIN);
    }
}
