//! What a trace shows: a view of the table's own explanation and of the document's rule. Nothing is matched here.

use std::fmt;

use serde::Serialize;

use super::request::TracedRequest;
use crate::commands::output::{Block, Cell, Tone, View};
use crate::commands::serve::overview::{match_text, percent};
use crate::gateway::id::ObjectRef;
use crate::gateway::ir::{self, RouteConfig};
use crate::proxy::table::explain::{Candidate, Explanation, ListenerOutcome, Missed, Outcome};
use crate::proxy::table::{Action, RouteTable};

/// Everything about one request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    request: RequestView,
    listeners: Vec<ListenerRow>,
    candidates: Vec<CandidateRow>,
    filters: Vec<String>,
    backends: Vec<BackendRow>,
    pub(super) answer: Answer,
}

#[derive(Debug, Serialize)]
struct RequestView {
    method: String,
    url: String,
    grpc: bool,
}

#[derive(Debug, Serialize)]
struct ListenerRow {
    listener: String,
    hostname: String,
    chosen: bool,
    result: String,
}

#[derive(Debug, Serialize)]
struct CandidateRow {
    route: String,
    kind: &'static str,
    rule: String,
    r#match: String,
    hostname: String,
    chosen: bool,
    result: String,
}

#[derive(Debug, Serialize)]
struct BackendRow {
    backend: String,
    share: String,
    endpoints: Vec<String>,
    filters: Vec<String>,
    result: String,
    #[serde(skip)]
    weight: u32,
    #[serde(skip)]
    tone: Tone,
}

/// What the client gets.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// The status, unless a backend decides it.
    pub(super) status: Option<u16>,
    /// The rule that answers.
    pub(super) rule: Option<Chosen>,
    /// In words.
    pub(super) text: String,
    /// Where a redirect points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) location: Option<String>,
}

/// The rule that gets the request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chosen {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) rule: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule_name: Option<String>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = &self.rule {
            write!(f, "{}/{} rule {}: ", rule.namespace, rule.name, rule.rule)?;
        }
        f.write_str(&self.text)
    }
}

impl Report {
    /// Asks the table and looks up in the document what it names.
    ///
    /// `location` is what the request path redirects to.
    pub(super) fn new(
        request: &TracedRequest,
        config: &RouteConfig,
        table: &RouteTable,
        knows_endpoints: bool,
        location: Option<String>,
    ) -> Self {
        let explanation = table.explain(&request.key());
        let chosen = explanation.chosen();
        let rule = chosen.and_then(|c| rule_of(config, &c.route, c.rule));
        Self {
            request: RequestView {
                method: request.method.to_string(),
                url: format!("{}://{}{}", request.scheme, request.host, request.uri),
                grpc: request.grpc,
            },
            listeners: listener_rows(config, &explanation),
            candidates: candidate_rows(config, &explanation),
            filters: rule.map(|r| r.filters.iter().map(filter_text).collect()).unwrap_or_default(),
            backends: rule.map(|r| backend_rows(config, r, knows_endpoints)).unwrap_or_default(),
            answer: {
                let rows = rule.map(|r| backend_rows(config, r, knows_endpoints)).unwrap_or_default();
                answer(request, table, chosen, &rows, location)
            },
        }
    }
}

fn rule_of<'c>(config: &'c RouteConfig, route: &ObjectRef, rule: usize) -> Option<&'c ir::Rule> {
    config.routes.iter().find(|r| r.object == *route)?.rules.iter().find(|r| r.index == rule)
}

fn listener_rows(config: &RouteConfig, explanation: &Explanation) -> Vec<ListenerRow> {
    let hostname = |h: Option<&crate::gateway::hostname::Hostname>| h.map_or_else(|| "*".to_owned(), ToString::to_string);
    let name = |source: &ObjectRef, name: &str| format!("{}/{}:{name}", source.namespace(), source.name());
    let mut rows: Vec<ListenerRow> = explanation
        .listeners
        .iter()
        .map(|l| ListenerRow {
            listener: name(&l.source, &l.name),
            hostname: hostname(l.hostname.as_ref()),
            chosen: l.outcome == ListenerOutcome::Owns,
            result: match &l.outcome {
                ListenerOutcome::Owns => "chosen: owns the host".to_owned(),
                ListenerOutcome::LostTo(other) => format!("lost to the more specific {other}"),
            },
        })
        .collect();
    rows.sort_by_key(|r| !r.chosen);
    for listener in &config.listeners {
        if listener.hostname.as_ref().is_some_and(|h| !h.matches(&explanation.host)) {
            rows.push(ListenerRow {
                listener: name(&listener.source, &listener.name),
                hostname: hostname(listener.hostname.as_ref()),
                chosen: false,
                result: "does not cover the host".to_owned(),
            });
        }
    }
    rows
}

fn candidate_rows(config: &RouteConfig, explanation: &Explanation) -> Vec<CandidateRow> {
    let mut rows: Vec<CandidateRow> = explanation
        .candidates
        .iter()
        .map(|c| CandidateRow {
            route: format!("{}/{}", c.route.namespace(), c.route.name()),
            kind: c.route.kind.as_str(),
            rule: c.rule_name.as_ref().map_or_else(|| c.rule.to_string(), |n| format!("{} ({n})", c.rule)),
            r#match: match_of(config, c).map(match_text).unwrap_or_default(),
            hostname: c.hostname.as_ref().map_or_else(|| "*".to_owned(), ToString::to_string),
            chosen: c.outcome == Outcome::Chosen,
            result: outcome_text(&c.outcome),
        })
        .collect();
    for route in &explanation.isolated {
        let listeners: Vec<&str> =
            route.listeners.iter().filter_map(|i| explanation.listeners.get(*i)).map(|l| l.name.as_str()).collect();
        rows.push(CandidateRow {
            route: format!("{}/{}", route.route.namespace(), route.route.name()),
            kind: route.route.kind.as_str(),
            rule: String::new(),
            r#match: String::new(),
            hostname: String::new(),
            chosen: false,
            result: format!("only on listener {}, which lost the host", listeners.join(", ")),
        });
    }
    rows
}

fn match_of<'c>(config: &'c RouteConfig, candidate: &Candidate) -> Option<&'c ir::Match> {
    rule_of(config, &candidate.route, candidate.rule)?.matches.get(candidate.match_index)
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Chosen => "chosen".to_owned(),
        Outcome::Lost(tier) => format!("lost on {tier}"),
        Outcome::Missed(missed) => match missed {
            Missed::NotGrpc => "no match: content type is not application/grpc".to_owned(),
            Missed::Path => "no match: path".to_owned(),
            Missed::Method => "no match: method".to_owned(),
            Missed::Header(name) => format!("no match: header {name}"),
            Missed::Query(name) => format!("no match: query parameter {name}"),
        },
    }
}

fn filter_text(filter: &ir::Filter) -> String {
    let edit = |what: &str, e: &ir::HeaderEdit| {
        let mut parts: Vec<String> = e.set.iter().map(|(n, v)| format!("set {n}: {v}")).collect();
        parts.extend(e.add.iter().map(|(n, v)| format!("add {n}: {v}")));
        parts.extend(e.remove.iter().map(|n| format!("remove {n}")));
        format!("{what}: {}", parts.join(", "))
    };
    let path = |p: &ir::PathRewrite| match p {
        ir::PathRewrite::Full(path) => format!("path {path}"),
        ir::PathRewrite::Prefix(path) => format!("path prefix replaced by {path}"),
    };
    match filter {
        ir::Filter::RequestHeaders(e) => edit("request headers", e),
        ir::Filter::ResponseHeaders(e) => edit("response headers", e),
        ir::Filter::Redirect(r) => format!("redirect {}", r.status),
        ir::Filter::Rewrite(r) => {
            let parts: Vec<String> = r.hostname.iter().map(|h| format!("host {h}")).chain(r.path.iter().map(path)).collect();
            format!("rewrite: {}", parts.join(", "))
        }
    }
}

fn backend_rows(config: &RouteConfig, rule: &ir::Rule, knows_endpoints: bool) -> Vec<BackendRow> {
    let total: u64 = rule.backends.iter().map(|b| u64::from(b.weight)).sum();
    let row = |entry: &ir::WeightedBackend| {
        let redirect = entry.filters.iter().find_map(|f| if let ir::Filter::Redirect(r) = f { Some(r.status) } else { None });
        let (backend, endpoints, result, tone) = match &entry.target {
            ir::Target::Invalid(reason) => {
                (format!("backendRefs[{}]", entry.index), Vec::new(), format!("500: {reason}"), Tone::Bad)
            }
            ir::Target::Backend(key) => {
                let backend = config.backends.get(key);
                let name = backend
                    .map_or_else(|| key.to_string(), |b| format!("{}/{}:{}", b.object.namespace(), b.object.name(), b.port));
                let ready: Vec<String> =
                    backend.map(|b| b.endpoints.iter().map(ToString::to_string).collect()).unwrap_or_default();
                let (result, tone) = match (ready.is_empty(), knows_endpoints) {
                    _ if redirect.is_some() => ("redirected", Tone::Good),
                    (false, _) => ("forwarded", Tone::Good),
                    (true, true) => ("503: no ready endpoint", Tone::Warn),
                    (true, false) => ("forwarded, if it has ready endpoints: no EndpointSlices were given", Tone::Plain),
                };
                (name, ready, result.to_owned(), tone)
            }
        };
        let share = percent(u64::from(entry.weight), total);
        BackendRow {
            weight: entry.weight,
            backend,
            share,
            endpoints,
            filters: entry.filters.iter().map(filter_text).collect(),
            result,
            tone,
        }
    };
    rule.backends.iter().map(row).collect()
}

fn answer(
    request: &TracedRequest,
    table: &RouteTable,
    chosen: Option<&Candidate>,
    backends: &[BackendRow],
    location: Option<String>,
) -> Answer {
    let (Some(hit), Some(chosen)) = (table.find(&request.key()), chosen) else {
        return Answer { status: Some(404), rule: None, text: "404: no rule matches".to_owned(), location: None };
    };
    let chosen = Chosen {
        namespace: chosen.route.namespace().to_owned(),
        name: chosen.route.name().to_owned(),
        kind: chosen.route.kind.as_str(),
        rule: chosen.rule,
        rule_name: chosen.rule_name.clone(),
    };
    let (status, text, location) = match &hit.rule.action {
        Action::Refuse(reason) => (Some(500), format!("500: {reason}"), None),
        Action::Redirect(redirect) => {
            let status = redirect.status.as_u16();
            (Some(status), format!("{status} to {}", location.as_deref().unwrap_or("nowhere")), location)
        }
        Action::Forward(backends) if backends.total == 0 => (Some(500), "500: no backend with a weight".to_owned(), None),
        Action::Forward(_) => {
            let served: Vec<&BackendRow> = backends.iter().filter(|r| r.weight > 0).collect();
            let text = served.iter().map(|r| if r.result.starts_with('5') { r.result.clone() } else { r.backend.clone() });
            let mut texts: Vec<String> = text.zip(&served).map(|(t, r)| format!("{t} ({})", r.share)).collect();
            texts.dedup();
            let statuses: Vec<Option<u16>> = served.iter().map(|r| r.result.get(..3).and_then(|s| s.parse().ok())).collect();
            // One status only when every share gets it.
            let status = statuses.first().copied().flatten().filter(|s| statuses.iter().all(|x| *x == Some(*s)));
            (status, texts.join(", "), None)
        }
    };
    let text = if request.grpc && status.is_some_and(|s| s >= 400) { format!("{text}, as a gRPC status") } else { text };
    Answer { status, rule: Some(chosen), text, location }
}

impl View for Report {
    fn blocks(&self, wide: bool) -> Vec<Block> {
        let mark = |chosen: bool, text: &str| Cell::new(text, if chosen { Tone::Good } else { Tone::Plain });
        let listeners = self
            .listeners
            .iter()
            .map(|l| vec![mark(l.chosen, &l.listener), l.hostname.as_str().into(), mark(l.chosen, &l.result)]);
        let candidates = self.candidates.iter().map(|c| {
            let mut row = vec![
                mark(c.chosen, &c.route),
                c.rule.as_str().into(),
                c.r#match.as_str().into(),
                c.hostname.as_str().into(),
                mark(c.chosen, &c.result),
            ];
            if wide {
                row.insert(1, c.kind.into());
            }
            row
        });
        let mut header = vec!["ROUTE", "RULE", "MATCH", "HOSTNAME", "RESULT"];
        if wide {
            header.insert(1, "KIND");
        }
        let mut blocks = vec![Block::Table { header: vec!["LISTENER", "HOSTNAME", "RESULT"], rows: listeners.collect() }];
        if !self.candidates.is_empty() {
            blocks.push(Block::Gap);
            blocks.push(Block::Table { header, rows: candidates.collect() });
        }
        if !self.backends.is_empty() {
            let rows = self.backends.iter().map(|b| {
                let endpoints = match (&b.endpoints[..], wide) {
                    ([], _) => String::new(),
                    (all, true) => all.join(", "),
                    (all, false) => format!("{} ready", all.len()),
                };
                let mut row = vec![b.backend.as_str().into(), b.share.as_str().into(), endpoints.into()];
                row.push(Cell::new(b.result.as_str(), b.tone));
                row
            });
            blocks.push(Block::Gap);
            blocks.push(Block::Table { header: vec!["BACKEND", "SHARE", "ENDPOINTS", "RESULT"], rows: rows.collect() });
        }
        blocks.push(Block::Gap);
        let filters = self.filters.iter().chain(self.backends.iter().flat_map(|b| &b.filters));
        let mut fields: Vec<(&'static str, Cell)> = filters.map(|f| ("Filter", f.as_str().into())).collect();
        let tone = if self.answer.status.is_some_and(|s| s >= 400) { Tone::Bad } else { Tone::Strong };
        fields.push(("Answer", Cell::new(self.answer.to_string(), tone)));
        blocks.push(Block::Fields(fields));
        blocks
    }

    fn names(&self) -> Vec<String> {
        let rule = self.answer.rule.iter();
        rule.map(|r| format!("{}.gateway.networking.k8s.io/{}", r.kind.to_ascii_lowercase(), r.name)).collect()
    }
}
