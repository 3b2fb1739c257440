//! GRPCRoute: its rules and matches. Filters and backends are the shared parts.

use super::http_route::{headers, text};
use super::rule::{Draft, Rules};
use crate::gateway::finding::Code;
use crate::gateway::ir::{GrpcMatch, Match};
use crate::gateway::resource::gateway_api::grpc_route::{
    GrpcRouteRules, GrpcRouteRulesMatches, GrpcRouteRulesMatchesHeadersType, GrpcRouteRulesMatchesMethodType, GrpcRouteSpec,
};

/// Builds every rule. Unlike an HTTPRoute, a route without rules has no default one.
pub(super) fn rules<'s>(rules: &mut Rules<'_, 's>, spec: &'s GrpcRouteSpec) {
    let all = spec.rules.as_deref().unwrap_or_default();
    if all.is_empty() {
        rules.ctx.report(Code::NoRules, rules.object, "spec.rules", "the route has no rules and so takes no request");
    }
    rules.reserve(all.len());
    all.iter().enumerate().for_each(|(index, rule)| add(rules, index, rule));
}

fn add<'s>(rules: &mut Rules<'_, 's>, index: usize, rule: &'s GrpcRouteRules) {
    let matches = matches(rules, index, rule.matches.as_deref().unwrap_or_default());
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
        prefix_only: false,
        response_timeout_ms: None,
    });
}

fn matches(rules: &mut Rules<'_, '_>, rule: usize, all: &[GrpcRouteRulesMatches]) -> Option<Vec<Match>> {
    if all.is_empty() {
        return Some(vec![Match::Grpc(GrpcMatch::default())]);
    }
    let built: Vec<Option<Match>> = all.iter().enumerate().map(|(at, m)| one(rules, rule, at, m)).collect();
    built.into_iter().collect()
}

fn one(rules: &mut Rules<'_, '_>, rule: usize, at: usize, r#match: &GrpcRouteRulesMatches) -> Option<Match> {
    let field = format_args!("matches[{at}]");
    let headers = r#match.headers.iter().flatten().map(|h| {
        let regex = h.r#type == Some(GrpcRouteRulesMatchesHeadersType::RegularExpression);
        (h.name.as_str(), h.value.as_str(), regex)
    });
    let headers = self::headers(rules, rule, field, headers);
    let Some(method) = &r#match.method else {
        return Some(Match::Grpc(GrpcMatch { service: None, method: None, headers: headers? }));
    };
    let regex = method.r#type == Some(GrpcRouteRulesMatchesMethodType::RegularExpression);
    let mut part = |name: &str, value: &Option<String>| match value.as_deref() {
        None => Some(None),
        Some(value) if !regex && (value.is_empty() || value.contains('/')) => {
            let message = format!("rule {rule} is dropped: {value:?} is no name of a gRPC {name}");
            rules.report(Code::MatchInvalid, rule, format_args!("{field}.method.{name}"), message);
            None
        }
        Some(value) => text(rules, rule, format_args!("{field}.method.{name}"), value, regex).map(Some),
    };
    let service = part("service", &method.service);
    let method = part("method", &method.method);
    Some(Match::Grpc(GrpcMatch { service: service?, method: method?, headers: headers? }))
}
