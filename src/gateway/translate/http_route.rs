//! HTTPRoute: its rules and matches. Filters, backends and timeouts are the shared parts.

use std::collections::BTreeSet;
use std::fmt::Arguments;

use http::HeaderName;

use super::rule::{Draft, Rules};
use super::timeout::response_timeout;
use crate::gateway::finding::Code;
use crate::gateway::ir::{HttpMatch, Match, PathMatch, Text, ValueMatch};
use crate::gateway::resource::gateway_api::http_route::{
    HttpRouteRules, HttpRouteRulesMatches, HttpRouteRulesMatchesHeadersType, HttpRouteRulesMatchesMethod,
    HttpRouteRulesMatchesPathType, HttpRouteRulesMatchesQueryParamsType, HttpRouteSpec,
};

/// Builds every rule. A route without rules has the schema's default one, which matches everything.
pub(super) fn rules<'s>(rules: &mut Rules<'_, 's>, spec: &'s HttpRouteSpec) {
    match spec.rules.as_deref().filter(|r| !r.is_empty()) {
        Some(all) => {
            rules.reserve(all.len());
            all.iter().enumerate().for_each(|(index, rule)| add(rules, index, rule));
        }
        None => {
            let matches = Some(vec![everything(rules)]);
            rules.add(Draft {
                index: 0,
                name: None,
                matches,
                filters: Vec::new(),
                backends: Vec::new(),
                prefix_only: true,
                response_timeout_ms: None,
            });
        }
    }
}

fn add<'s>(rules: &mut Rules<'_, 's>, index: usize, rule: &'s HttpRouteRules) {
    let matches = matches(rules, index, rule.matches.as_deref().unwrap_or_default());
    let prefix_only = rule.matches.iter().flatten().all(|m| {
        let r#type = m.path.as_ref().and_then(|p| p.r#type.as_ref());
        r#type.is_none_or(|t| *t == HttpRouteRulesMatchesPathType::PathPrefix)
    });
    let timeouts = rule.timeouts.as_ref();
    let request = timeouts.and_then(|t| t.request.as_deref());
    let response_timeout_ms = response_timeout(rules, index, request, timeouts.and_then(|t| t.backend_request.as_deref()));
    if rule.retry.is_some() {
        let message = format!("rule {index} is served without its retry policy, which is not part of this version");
        rules.report(Code::RetryUnsupported, index, format_args!("retry"), message);
    }
    if rule.session_persistence.is_some() {
        let message = format!("rule {index} is served without session persistence, which is not part of this version");
        rules.report(Code::SessionPersistenceUnsupported, index, format_args!("sessionPersistence"), message);
    }
    let backends = rule.backend_refs.as_deref().unwrap_or_default().iter();
    rules.add(Draft {
        index,
        name: rule.name.as_deref(),
        matches,
        filters: rule.filters.as_deref().unwrap_or_default().iter().map(Into::into).collect(),
        backends: backends
            .map(|b| (b.into(), b.filters.as_deref().unwrap_or_default().iter().map(Into::into).collect()))
            .collect(),
        prefix_only,
        response_timeout_ms,
    });
}

fn everything(rules: &mut Rules<'_, '_>) -> Match {
    let path = PathMatch::Prefix(rules.ctx.text("/"));
    Match::Http(HttpMatch { path, method: None, headers: Vec::new(), query: Vec::new() })
}

fn matches(rules: &mut Rules<'_, '_>, rule: usize, all: &[HttpRouteRulesMatches]) -> Option<Vec<Match>> {
    if all.is_empty() {
        return Some(vec![everything(rules)]);
    }
    let built: Vec<Option<Match>> = all.iter().enumerate().map(|(at, m)| one(rules, rule, at, m)).collect();
    built.into_iter().collect()
}

fn one(rules: &mut Rules<'_, '_>, rule: usize, at: usize, r#match: &HttpRouteRulesMatches) -> Option<Match> {
    let field = format_args!("matches[{at}]");
    let r#type = r#match.path.as_ref().and_then(|p| p.r#type.clone());
    let value = r#match.path.as_ref().and_then(|p| p.value.as_deref()).unwrap_or("/");
    let path = path(rules, rule, field, r#type.unwrap_or(HttpRouteRulesMatchesPathType::PathPrefix), value);
    let headers = r#match.headers.iter().flatten().map(|h| {
        let regex = h.r#type == Some(HttpRouteRulesMatchesHeadersType::RegularExpression);
        (h.name.as_str(), h.value.as_str(), regex)
    });
    let headers = self::headers(rules, rule, field, headers);
    let query = r#match.query_params.iter().flatten().map(|q| {
        let regex = q.r#type == Some(HttpRouteRulesMatchesQueryParamsType::RegularExpression);
        (q.name.as_str(), q.value.as_str(), regex)
    });
    let query = self::query(rules, rule, field, query);
    let method = r#match.method.as_ref().map(|m| method(m).to_owned());
    Some(Match::Http(HttpMatch { path: path?, method, headers: headers?, query: query? }))
}

fn path(
    rules: &mut Rules<'_, '_>,
    rule: usize,
    field: Arguments<'_>,
    r#type: HttpRouteRulesMatchesPathType,
    value: &str,
) -> Option<PathMatch> {
    let field = format_args!("{field}.path.value");
    if r#type == HttpRouteRulesMatchesPathType::RegularExpression {
        return rules.pattern_compiles(rule, field, value).then(|| PathMatch::Regex(value.into()));
    }
    if let Some(problem) = path_problem(value) {
        rules.report(Code::MatchInvalid, rule, field, format!("rule {rule} is dropped: path {value:?} {problem}"));
        return None;
    }
    Some(match r#type {
        HttpRouteRulesMatchesPathType::Exact => PathMatch::Exact(rules.ctx.text(value)),
        _ => PathMatch::Prefix(rules.ctx.text(value)),
    })
}

/// What the schema's rules say about a literal path (Gateway API `HTTPPathMatch`), for objects that no API server has checked.
fn path_problem(value: &str) -> Option<&'static str> {
    let has_any = |parts: &[&str]| parts.iter().any(|part| value.contains(part));
    if value == "/" {
        None
    } else if !value.starts_with('/') {
        Some("does not start with a slash")
    } else if value.len() > 1024 {
        Some("has more than 1024 characters")
    } else if has_any(&["//", "/./", "/../", "%2f", "%2F", "#"]) || value.ends_with("/..") || value.ends_with("/.") {
        Some("has a part that paths are normalised by, and so matches nothing")
    } else if !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@%".contains(&b)) {
        Some("has characters that no path may have")
    } else {
        None
    }
}

/// Header matches by lower-case name. Of several with one name only the first counts (Gateway API `HTTPHeaderMatch.name`).
pub(super) fn headers<'a>(
    rules: &mut Rules<'_, '_>,
    rule: usize,
    field: Arguments<'_>,
    headers: impl Iterator<Item = (&'a str, &'a str, bool)>,
) -> Option<Vec<ValueMatch>> {
    let mut names = BTreeSet::new();
    let mut built = Vec::new();
    let mut usable = true;
    for (at, (name, value, regex)) in headers.enumerate() {
        let field = format_args!("{field}.headers[{at}]");
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            let message = format!("rule {rule} is dropped: {name:?} is no header name");
            rules.report(Code::MatchInvalid, rule, format_args!("{field}.name"), message);
            usable = false;
            continue;
        }
        let lower = name.to_ascii_lowercase();
        if !names.insert(lower.clone()) {
            let message = format!("rule {rule} matches header {name} more than once; only the first counts");
            rules.report(Code::HeaderMatchRepeated, rule, field, message);
            continue;
        }
        match text(rules, rule, format_args!("{field}.value"), value, regex) {
            Some(value) => built.push(ValueMatch { name: lower, value }),
            None => usable = false,
        }
    }
    usable.then_some(built)
}

fn query<'a>(
    rules: &mut Rules<'_, '_>,
    rule: usize,
    field: Arguments<'_>,
    query: impl Iterator<Item = (&'a str, &'a str, bool)>,
) -> Option<Vec<ValueMatch>> {
    let mut names = BTreeSet::new();
    let mut built = Vec::new();
    let mut usable = true;
    // Names are case-sensitive here, and the schema keeps them unique; from a file the first of several counts.
    for (at, (name, value, regex)) in query.enumerate().filter(|(_, (name, ..))| names.insert(*name)) {
        match text(rules, rule, format_args!("{field}.queryParams[{at}].value"), value, regex) {
            Some(value) => built.push(ValueMatch { name: name.to_owned(), value }),
            None => usable = false,
        }
    }
    usable.then_some(built)
}

/// A literal, or an expression that compiles.
pub(super) fn text(rules: &mut Rules<'_, '_>, rule: usize, field: Arguments<'_>, value: &str, regex: bool) -> Option<Text> {
    if regex {
        rules.pattern_compiles(rule, field, value).then(|| Text::Regex(value.to_owned()))
    } else {
        Some(Text::Exact(value.to_owned()))
    }
}

const fn method(method: &HttpRouteRulesMatchesMethod) -> &'static str {
    match method {
        HttpRouteRulesMatchesMethod::Get => "GET",
        HttpRouteRulesMatchesMethod::Head => "HEAD",
        HttpRouteRulesMatchesMethod::Post => "POST",
        HttpRouteRulesMatchesMethod::Put => "PUT",
        HttpRouteRulesMatchesMethod::Delete => "DELETE",
        HttpRouteRulesMatchesMethod::Connect => "CONNECT",
        HttpRouteRulesMatchesMethod::Options => "OPTIONS",
        HttpRouteRulesMatchesMethod::Trace => "TRACE",
        HttpRouteRulesMatchesMethod::Patch => "PATCH",
    }
}
