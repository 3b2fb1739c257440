//! The `--from-file` flag, and what is said about files that could not be used. Shared by the verbs that work from a folder.

use clap::ValueHint;
use serde::Serialize;

use super::Context;
use super::output::{Help as _, Tone};
use crate::cluster::files::Source;
use crate::cluster::manifest::Problem;
use crate::cluster::objects::Manifests;

/// Where the manifests are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FromFile {
    /// Manifests: a file, a folder with all below it, or `-` for standard input; may be repeated
    ///
    /// Gateway API objects, Services, EndpointSlices, Secrets, ConfigMaps and our own kinds, as YAML or JSON. Other kinds are
    /// skipped.
    #[arg(short = 'f', long = "from-file", value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    sources: Vec<Source>,
}

impl FromFile {
    /// Reads the manifests, and names once what was skipped.
    pub(crate) fn read(self, context: Context) -> anyhow::Result<Manifests> {
        let manifests = Manifests::read(self.sources).help("name a file or a folder that exists, or `-` for standard input")?;
        let skipped: Vec<String> = manifests.skipped().into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if !skipped.is_empty() {
            context.out.remark("note", Tone::Dim, &format!("skipped objects of kinds that are not read: {}", skipped.join(", ")));
        }
        Ok(manifests)
    }
}

/// Says which documents could not be used.
pub(crate) fn warn(context: Context, problems: &[Problem]) {
    for problem in problems {
        context.out.remark("warning", Tone::Warn, &problem.to_string());
    }
}

/// A problem in the form for programs.
#[derive(Debug, Serialize)]
pub(crate) struct ProblemView {
    file: String,
    line: usize,
    reason: String,
}

impl From<&Problem> for ProblemView {
    fn from(problem: &Problem) -> Self {
        Self { file: problem.place.file.to_string(), line: problem.place.line, reason: problem.reason.clone() }
    }
}
