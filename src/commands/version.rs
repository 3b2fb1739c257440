//! `version`: what this binary is and what it serves.

use serde::Serialize;

use super::Context;
use super::exit::ExitCode;
use super::output::{Block, OutputArgs, View};

/// The Gateway API release that we build against.
pub(crate) const GATEWAY_API: &str = "v1.7.0";

/// Show the version and what it supports
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl cftunnel version
  kubectl cftunnel version -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    gateway_api: &'static str,
    transports: [&'static str; 2],
    routes: [&'static str; 2],
    platform: String,
}

impl View for Version {
    fn blocks(&self, wide: bool) -> Vec<Block> {
        let mut fields = vec![
            ("kubectl-cftunnel", self.version.into()),
            ("Gateway API", format!("{} (experimental channel)", self.gateway_api).into()),
            ("routes", self.routes.join(", ").into()),
            ("transports", self.transports.join(", ").into()),
        ];
        if wide {
            fields.push(("platform", self.platform.as_str().into()));
        }
        vec![Block::Fields(fields)]
    }

    fn names(&self) -> Vec<String> {
        vec![format!("kubectl-cftunnel/{}", self.version)]
    }
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        gateway_api: GATEWAY_API,
        transports: ["quic", "http2"],
        routes: ["HTTPRoute", "GRPCRoute"],
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    };
    context.out.show(&version, args.output.format)?;
    Ok(ExitCode::Fine)
}
