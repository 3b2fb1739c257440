//! The order of precedence, as `Ord` on typed summaries: what is smaller comes first and wins. Indexes are sorted by it and
//! `explain` names the field that decided. No matching here.
//!
//! Gateway API `HTTPRouteRule.matches` and `GRPCRouteRule.matches`, S3 "Route Conflict Resolution", X25, X26.

use std::cmp::{Ordering, Reverse};

use serde::Serialize;

use crate::gateway::hostname::Hostname;
use crate::gateway::id::ObjectRef;

/// How specific the hostname is that a route wrote (X25). Comes before everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostRank {
    /// The host itself.
    Exact,
    /// A wildcard; more labels win.
    Wildcard(Reverse<usize>),
    /// The route names no host.
    Any,
}

impl HostRank {
    /// Ranks a hostname as written. Only ranks of hostnames that match the same host can be compared.
    pub(super) fn of(hostname: Option<&Hostname>) -> Self {
        match hostname {
            None => Self::Any,
            Some(h) if h.is_wildcard() => Self::Wildcard(Reverse(h.as_str().split('.').count())),
            Some(_) => Self::Exact,
        }
    }
}

/// The rank of one match among those of equally specific hostnames. Never equal for two matches of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// What the match asks for.
    pub(super) criteria: Criteria,
    /// Position of the route in the document: oldest first, then namespace and name.
    pub(super) route: u32,
    /// Position of the rule in its route.
    pub(super) rule: u32,
    /// Position of the match in its rule.
    pub(super) position: u32,
}

/// What a match asks for. Every gRPC match ranks above every HTTP match (X26); only gRPC requests can have both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Criteria {
    /// Of a GRPCRoute.
    Grpc(GrpcCriteria),
    /// Of an HTTPRoute.
    Http(HttpCriteria),
}

/// The criteria of a GRPCRoute match, first one first. Whether a name is exact or an expression does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrpcCriteria {
    /// Characters of the service; zero without one.
    pub(super) service: Reverse<u32>,
    /// Characters of the method; zero without one.
    pub(super) method: Reverse<u32>,
    /// Number of headers.
    pub(super) headers: Reverse<u32>,
}

/// The criteria of an HTTPRoute match, first one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HttpCriteria {
    /// How the path is compared.
    pub(super) path: PathKind,
    /// Characters of the path as written, without the trailing slash of a prefix, which says nothing.
    pub(super) length: Reverse<u32>,
    /// Whether a method is asked for.
    pub(super) method: Reverse<bool>,
    /// Number of headers.
    pub(super) headers: Reverse<u32>,
    /// Number of query parameters.
    pub(super) query: Reverse<u32>,
}

/// How a path is compared, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PathKind {
    /// The whole path, byte by byte.
    Exact,
    /// An expression over the whole path.
    Regex,
    /// By path element.
    Prefix,
}

/// The first point on which two matches differ, and so the reason why the one is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Tier {
    /// The other route names a more specific hostname.
    Hostname,
    /// A GRPCRoute comes before every HTTPRoute on a gRPC request.
    Kind,
    /// Exact before expression before prefix.
    PathType,
    /// The longer path.
    PathLength,
    /// The match that asks for a method.
    Method,
    /// The longer gRPC service.
    GrpcService,
    /// The longer gRPC method.
    GrpcMethod,
    /// More headers.
    Headers,
    /// More query parameters.
    Query,
    /// The older route: by name the other one would have come first.
    Age,
    /// The older route or, of two equally old ones, the first by namespace and name. The document carries only the order.
    AgeOrName,
    /// The earlier rule of one route.
    RuleOrder,
    /// The earlier match of one rule.
    MatchOrder,
}

impl Tier {
    /// A short phrase that completes "lost on …".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hostname => "hostname",
            Self::Kind => "route kind",
            Self::PathType => "path type",
            Self::PathLength => "path length",
            Self::Method => "method",
            Self::GrpcService => "gRPC service length",
            Self::GrpcMethod => "gRPC method length",
            Self::Headers => "number of headers",
            Self::Query => "number of query parameters",
            Self::Age => "route age",
            Self::AgeOrName => "route age or name",
            Self::RuleOrder => "rule order",
            Self::MatchOrder => "match order",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The tier on which `winner` beats `loser`; both match one host. The objects are those of the two routes.
pub(super) fn deciding_tier(winner: (HostRank, Rank, &ObjectRef), loser: (HostRank, Rank, &ObjectRef)) -> Tier {
    let (w, l) = (winner.1, loser.1);
    if winner.0 != loser.0 {
        return Tier::Hostname;
    }
    let criteria = match (w.criteria, l.criteria) {
        (Criteria::Grpc(a), Criteria::Grpc(b)) => first_difference(&[
            (a.service.cmp(&b.service), Tier::GrpcService),
            (a.method.cmp(&b.method), Tier::GrpcMethod),
            (a.headers.cmp(&b.headers), Tier::Headers),
        ]),
        (Criteria::Http(a), Criteria::Http(b)) => first_difference(&[
            (a.path.cmp(&b.path), Tier::PathType),
            (a.length.cmp(&b.length), Tier::PathLength),
            (a.method.cmp(&b.method), Tier::Method),
            (a.headers.cmp(&b.headers), Tier::Headers),
            (a.query.cmp(&b.query), Tier::Query),
        ]),
        _ => Some(Tier::Kind),
    };
    criteria.unwrap_or_else(|| match (w.route == l.route, w.rule == l.rule) {
        (false, _) if winner.2.key() > loser.2.key() => Tier::Age,
        (false, _) => Tier::AgeOrName,
        (true, false) => Tier::RuleOrder,
        (true, true) => Tier::MatchOrder,
    })
}

fn first_difference(fields: &[(Ordering, Tier)]) -> Option<Tier> {
    fields.iter().find(|(order, _)| order.is_ne()).map(|(_, tier)| *tier)
}
