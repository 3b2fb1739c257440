//! `lint`: everything the controller would put on a status, from files alone. The verdicts are those of `translate`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Context;
use super::exit::ExitCode;
use super::from_file::{FromFile, ProblemView};
use super::output::{Block, Cell, OutputArgs, Tone, View, fail};
use crate::cluster::manifest::Problem;
use crate::cluster::objects::Manifests;
use crate::gateway::condition::Status;
use crate::gateway::finding::{Finding, Severity};
use crate::gateway::id::ObjectRef;
use crate::gateway::snapshot::Options;
use crate::gateway::translate::translate;

/// Check manifests without a cluster
///
/// Says what the controller would put on the status of every object: which object and field, why, and what to do. Exits with 1
/// when there are errors or documents that cannot be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  # A folder, before it is applied
  kubectl cftunnel lint --from-file manifests/

  # What Helm renders, in CI, with warnings as errors
  helm template shop ./chart | kubectl cftunnel lint --from-file - --strict

  # The objects with errors
  kubectl cftunnel lint --from-file manifests/ -o name")]
pub(crate) struct Args {
    #[command(flatten)]
    from: FromFile,
    /// Exit with 1 for warnings too
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    let manifests = args.from.read(context)?;
    let report = Report::new(&manifests, Options::default());
    if report.summary.objects == 0 && report.problems.is_empty() {
        return Err(fail(
            format!("there is nothing to check in {}", plural(report.summary.files, "file")),
            "name files with Gateway API objects: *.yaml, *.yml or *.json, with apiVersion and kind",
        ));
    }
    context.out.show(&report, args.output.format)?;
    let summary = &report.summary;
    let failed = summary.errors > 0 || summary.problems > 0 || (args.strict && summary.warnings > 0);
    Ok(if failed { ExitCode::Problems } else { ExitCode::Fine })
}

/// All verdicts on a set of manifests.
#[derive(Debug, Serialize)]
struct Report {
    summary: Summary,
    problems: Vec<ProblemView>,
    findings: Vec<FindingView>,
    statuses: Vec<StatusView>,
    #[serde(skip)]
    broken: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Summary {
    files: usize,
    objects: usize,
    problems: usize,
    errors: usize,
    warnings: usize,
}

#[derive(Debug, Serialize)]
struct FindingView {
    #[serde(flatten)]
    finding: Finding,
    /// What it puts on the status, as `Type=Status/Reason`.
    conditions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
}

#[derive(Debug, Serialize)]
struct StatusView {
    object: ObjectRef,
    status: Status,
}

impl Report {
    fn new(manifests: &Manifests, options: Options) -> Self {
        let (snapshot, duplicates) = manifests.snapshot(jiff::Timestamp::now(), options, &[]);
        let translation = translate(&snapshot);
        let mut broken = manifests.problems();
        broken.extend(duplicates);
        let mut findings: Vec<FindingView> = translation.findings.into_iter().map(|f| view(f, manifests)).collect();
        findings.sort_by_key(|f| f.finding.severity);
        let count = |severity| findings.iter().filter(|f| f.finding.severity == severity).count();
        let summary = Summary {
            files: manifests.file_count(),
            objects: snapshot.len(),
            problems: broken.len(),
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
        };
        let statuses = translation.statuses.into_iter().map(|(object, status)| StatusView { object, status }).collect();
        Self { summary, problems: broken.iter().map(ProblemView::from).collect(), findings, statuses, broken }
    }
}

fn view(finding: Finding, manifests: &Manifests) -> FindingView {
    let conditions = finding.code.verdicts().iter().map(|v| format!("{}={:?}/{}", v.r#type, v.status, v.reason)).collect();
    let place = manifests.place(&finding.object).map(ToString::to_string);
    FindingView { finding, conditions, place }
}

/// The lines about one finding.
fn blocks_of(view: &FindingView, wide: bool, blocks: &mut Vec<Block>) {
    let finding = &view.finding;
    let at = if finding.field.is_empty() { String::new() } else { format!("  {}", finding.field) };
    let head = format!("{}[{}]  {}{at}", finding.severity, finding.code.as_str(), finding.object);
    blocks.push(Block::Line(Cell::new(head, tone(finding.severity))));
    let mut fields = vec![("  why", Cell::from(finding.message.as_str()))];
    if !finding.remedy.is_empty() {
        fields.push(("  do", finding.remedy.into()));
    }
    if let Some(place) = &view.place {
        fields.push(("  at", place.as_str().into()));
    }
    if wide && !view.conditions.is_empty() {
        fields.push(("  status", view.conditions.join(", ").into()));
    }
    blocks.push(Block::Fields(fields));
}

/// The colour of a severity.
pub(crate) const fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Error => Tone::Bad,
        Severity::Warning => Tone::Warn,
        Severity::Info => Tone::Dim,
    }
}

impl View for Report {
    fn blocks(&self, wide: bool) -> Vec<Block> {
        let mut blocks = Vec::new();
        for problem in &self.broken {
            blocks.push(Block::Line(Cell::new(format!("error  {}", problem.place), Tone::Bad)));
            blocks.push(Block::Fields(vec![("  why", problem.reason.as_str().into())]));
        }
        for finding in &self.findings {
            blocks_of(finding, wide, &mut blocks);
        }
        if !blocks.is_empty() {
            blocks.push(Block::Gap);
        }
        let s = &self.summary;
        let tone = if s.errors + s.problems > 0 {
            Tone::Bad
        } else if s.warnings > 0 {
            Tone::Warn
        } else {
            Tone::Good
        };
        let mut text = format!("{}, {}", plural(s.errors, "error"), plural(s.warnings, "warning"));
        if s.problems > 0 {
            text.push_str(&format!(", {} that cannot be used", plural(s.problems, "document")));
        }
        text.push_str(&format!("; {} in {}", plural(s.objects, "object"), plural(s.files, "file")));
        blocks.push(Block::Line(Cell::new(text, tone)));
        blocks
    }

    fn names(&self) -> Vec<String> {
        let errors = self.findings.iter().filter(|f| f.finding.severity == Severity::Error);
        let names: BTreeMap<String, ()> = errors.map(|f| (name(&f.finding.object), ())).collect();
        names.into_keys().collect()
    }
}

/// `httproute.gateway.networking.k8s.io/web`, as kubectl's `-o name` has it.
pub(crate) fn name(object: &ObjectRef) -> String {
    let group = object.kind.group();
    let kind = object.kind.as_str().to_ascii_lowercase();
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}{dot}{group}/{}", object.name())
}

/// `1 error`, `2 errors`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
