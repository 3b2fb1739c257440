//! From manifests to the one configuration that a laptop serves or traces. Calls the core and hands on what it says.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::lint::plural;
use super::output::fail;
use crate::cluster::manifest::Problem;
use crate::cluster::objects::Manifests;
use crate::gateway::finding::{Finding, Severity};
use crate::gateway::id::Kind;
use crate::gateway::ir::RouteConfig;
use crate::gateway::snapshot::{Options, ServicePort};
use crate::gateway::translate::{Plane, PlaneId, translate};

/// What the core makes of the manifests when everything is served from one plane.
#[derive(Debug)]
pub(crate) struct Judged {
    /// What the plane serves; none when it is held, for these reasons.
    pub(crate) config: Result<RouteConfig, Vec<String>>,
    /// All that was diagnosed.
    pub(crate) findings: Vec<Finding>,
    /// Documents that cannot be used.
    pub(crate) problems: Vec<Problem>,
    /// Whether endpoints are known: EndpointSlices were given.
    pub(crate) knows_endpoints: bool,
}

/// Settings of the local plane.
pub(crate) fn options(quic_pinned: bool, backends: BTreeMap<ServicePort, Vec<SocketAddr>>) -> Options {
    Options { single_plane: true, allow_loopback_endpoints: true, quic_pinned, backends, ..Options::default() }
}

/// Judges the manifests. Of the `complete` kinds there are no other objects than theirs.
pub(crate) fn judge(manifests: &Manifests, options: Options, complete: &[Kind]) -> Judged {
    let (snapshot, duplicates) = manifests.snapshot(jiff::Timestamp::now(), options, complete);
    let mut translation = translate(&snapshot);
    let mut problems = manifests.problems();
    problems.extend(duplicates);
    let config = match translation.planes.remove(&PlaneId::Local) {
        Some(Plane::Ready(config)) => Ok(config),
        Some(Plane::Held(reasons)) => Err(reasons.iter().map(|h| format!("{}: {}", h.kind, h.reason)).collect()),
        None => Ok(RouteConfig::empty()),
    };
    let knows_endpoints = snapshot.is_complete(Kind::EndpointSlice);
    Judged { config, findings: translation.findings, problems, knows_endpoints }
}

/// The error when nothing can be served, with the reasons that the findings give.
pub(crate) fn nothing_servable(judged: &Judged, files: usize) -> anyhow::Error {
    let mut reasons: Vec<String> =
        judged.findings.iter().filter(|f| f.severity != Severity::Info).take(5).map(|f| format!("{f}; {}", f.remedy)).collect();
    reasons.extend(judged.problems.iter().take(5).map(ToString::to_string));
    if reasons.is_empty() {
        reasons.push(
            "give a Gateway, and an HTTPRoute or GRPCRoute whose parentRefs name it; examples/quickstart shows both".to_owned(),
        );
    }
    fail(
        format!("there is nothing to serve in {}: no route is attached to a listener", plural(files, "file")),
        reasons.join("\n"),
    )
}
