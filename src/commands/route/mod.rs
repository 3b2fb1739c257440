//! `route`: questions about routing, answered from files.

mod request;
mod trace;
mod view;

use super::Context;
use super::exit::ExitCode;

/// Ask how requests are routed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Trace(trace::Args),
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Trace(args) => trace::run(context, args),
    }
}
