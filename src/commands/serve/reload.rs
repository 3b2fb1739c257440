//! From manifests to what the local plane serves, at the start and after every edit, and what is said about it. The verdicts are
//! the core's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::Context as _;

use super::demo::DemoBackends;
use crate::cluster::objects::Manifests;
use crate::cluster::watch::Update;
use crate::commands::Context;
use crate::commands::lint::tone;
use crate::commands::output::{Help as _, Tone};
use crate::commands::plane::{Judged, judge, options};
use crate::gateway::finding::Severity;
use crate::gateway::id::{Kind, NamespacedName};
use crate::gateway::ir::RouteConfig;
use crate::gateway::snapshot::ServicePort;
use crate::proxy::table::compile::Refusal;

/// A value of `--backend`: `NAMESPACE/NAME:PORT=HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackendArg {
    service: ServicePort,
    /// `HOST:PORT`, not resolved yet.
    address: String,
}

impl FromStr for BackendArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not NAMESPACE/NAME:PORT=HOST:PORT, as in shop/web:80=127.0.0.1:3000");
        let (service, address) = text.split_once('=').ok_or_else(wrong)?;
        let (name, port) = service.rsplit_once(':').ok_or_else(wrong)?;
        let name: NamespacedName = name.parse().map_err(|_| wrong())?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|p| *p > 0);
        let port = number(port).ok_or_else(wrong)?;
        let (host, address_port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || number(address_port).is_none() {
            return Err(wrong());
        }
        let service = ServicePort { namespace: name.namespace, name: name.name, port };
        Ok(Self { service, address: address.to_owned() })
    }
}

/// What is not in the files does not exist here: no cluster has more endpoints.
const HERE: &[Kind] = &[Kind::EndpointSlice];

/// Where the addresses of backends come from besides EndpointSlices.
#[derive(Debug)]
pub(super) struct Backends {
    given: BTreeMap<ServicePort, Vec<SocketAddr>>,
    demo: Option<DemoBackends>,
    quic_pinned: bool,
}

impl Backends {
    /// Resolves the names of `--backend`, once.
    pub(super) async fn new(given: Vec<BackendArg>, demo: bool, quic_pinned: bool) -> anyhow::Result<Self> {
        let mut addresses: BTreeMap<ServicePort, Vec<SocketAddr>> = BTreeMap::new();
        for backend in given {
            let found = tokio::net::lookup_host(&backend.address)
                .await
                .with_context(|| format!("cannot find the address of {}", backend.address))
                .help("--backend names a host and a port that this machine can reach")?;
            addresses.entry(backend.service).or_default().extend(found);
        }
        for list in addresses.values_mut() {
            list.sort_unstable();
            list.dedup();
        }
        Ok(Self { given: addresses, demo: demo.then(DemoBackends::default), quic_pinned })
    }

    /// Judges the manifests, after starting what echo servers they need.
    pub(super) async fn judge(&mut self, manifests: &Manifests) -> anyhow::Result<Judged> {
        let judged = self.judge_now(manifests);
        let (Some(demo), Ok(config)) = (&mut self.demo, &judged.config) else { return Ok(judged) };
        let started = demo.cover(config, &self.given).await.context("cannot start an echo server for --demo-backends")?;
        Ok(if started { self.judge_now(manifests) } else { judged })
    }

    /// Judges the manifests by the addresses that are known now.
    fn judge_now(&self, manifests: &Manifests) -> Judged {
        let mut backends = self.given.clone();
        backends.extend(self.demo.iter().flat_map(DemoBackends::addresses));
        judge(manifests, options(self.quic_pinned, backends), HERE)
    }
}

/// Whether any request can reach a rule.
pub(super) fn is_servable(config: &RouteConfig) -> bool {
    config.routes.iter().any(|r| !r.listeners.is_empty() && !r.rules.is_empty())
}

/// What has been said already, so that an edit is answered by what is new.
#[derive(Debug)]
pub(super) struct Said {
    context: Context,
    lines: BTreeSet<String>,
}

impl Said {
    pub(super) fn new(context: Context) -> Self {
        Self { context, lines: BTreeSet::new() }
    }

    /// Says what is wrong and was not said last time.
    pub(super) fn say(&mut self, judged: &Judged, refusals: &[Refusal]) {
        let mut lines: Vec<(&str, Tone, String)> = Vec::new();
        lines.extend(judged.problems.iter().map(|p| ("warning", Tone::Warn, p.to_string())));
        let heard: Vec<_> = judged.findings.iter().filter(|f| f.severity != Severity::Info).collect();
        for finding in &heard {
            let label = if finding.severity == Severity::Error { "error" } else { "warning" };
            let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
            let remedy = if finding.remedy.is_empty() { String::new() } else { format!("; {}", finding.remedy) };
            let text = format!("{}: {field}{} ({}){remedy}", finding.object, finding.message, finding.code.as_str());
            lines.push((label, tone(finding.severity), text));
        }
        for refusal in refusals {
            // What the core has diagnosed, it has diagnosed better.
            if !heard.iter().any(|f| f.object == refusal.route && f.rule.is_none_or(|r| r == refusal.rule)) {
                lines.push(("error", Tone::Bad, format!("{}: rule {}: {}", refusal.route, refusal.rule, refusal.reason)));
            }
        }
        if let Err(reasons) = &judged.config {
            lines.extend(reasons.iter().map(|r| ("warning", Tone::Warn, format!("the configuration is held: {r}"))));
        }
        for (label, tone, text) in &lines {
            if !self.lines.contains(text) {
                self.context.out.remark(label, *tone, text);
            }
        }
        self.lines = lines.into_iter().map(|(_, _, text)| text).collect();
    }

    /// Says which files could not be taken as they are now.
    pub(super) fn kept(&self, update: &Update) {
        if let Some(error) = &update.error {
            self.context.out.remark("warning", Tone::Warn, &format!("{error}; what was read before keeps serving"));
        }
        for file in update.manifests.kept() {
            self.context.out.remark("note", Tone::Strong, &format!("{file}: its last good version keeps serving"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_read_strictly() {
        let arg: BackendArg = "shop/web:80=[::1]:3000".parse().expect("a backend");
        assert_eq!(arg.address, "[::1]:3000");
        assert_eq!(arg.service, ServicePort { namespace: "shop".into(), name: "web".into(), port: 80 });
        for text in
            ["", "web:80=h:1", "shop/web=h:1", "shop/web:0=h:1", "shop/web:80", "shop/web:80=h", "shop/web:80=:1", "a/b/c:1=h:1"]
        {
            assert!(text.parse::<BackendArg>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_resolved_and_every_address_counts_once() {
        let arg = |text: &str| text.parse::<BackendArg>().expect("a backend");
        let given = vec![arg("shop/web:80=127.0.0.1:3000"), arg("shop/web:80=127.0.0.1:3000"), arg("shop/web:80=127.0.0.1:3001")];
        let backends = Backends::new(given, false, false).await.expect("addresses");
        assert_eq!(backends.given.values().next().map(Vec::len), Some(2));
    }
}
