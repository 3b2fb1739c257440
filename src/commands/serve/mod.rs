//! `serve`: the long-running verbs. Arguments become settings, parts are started, and the process waits for signals and drains.

mod args;
mod demo;
mod direct;
mod life;
mod local;
pub(crate) mod overview;
mod proxy;
mod reload;

use super::Context;
use super::exit::ExitCode;

/// Serve routes through a tunnel
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Local(Box<local::Args>),
    Proxy(Box<proxy::Args>),
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Local(args) => local::run(context, *args),
        Verb::Proxy(args) => proxy::run(context, *args),
    }
}
