//! The compiled route table: immutable, found by host, path, method, headers and query without allocation.
//!
//! PURE: no I/O, no clock, no async. `find` and `explain` share one order of precedence. [`compile`](compile::compile) builds a
//! table from a [`RouteConfig`](crate::gateway::ir::RouteConfig) and says which rules it had to refuse.

mod action;
pub mod compile;
pub mod explain;
mod flat;
mod hosts;
mod index;
mod matcher;
mod pattern;
mod rank;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::gateway::hostname::Hostname;
use crate::gateway::id::ObjectRef;
use crate::gateway::ir;
use hosts::Hosts;
use index::{Indexes, Set};
use matcher::{Matchers, Position};

pub use rank::{PathKind, Tier};

/// Everything one plane serves by. Immutable; a new document makes a new table.
///
/// A request first selects, within each Gateway, the listeners that own its host (S3 "Listener isolation"). The routes attached
/// there are asked by the hostname that they wrote, most specific first; the first hostname with a match decides (X25). Among
/// its matches a GRPCRoute's comes first on a gRPC request (X26), then rank decides (S3 "Route Conflict Resolution").
#[derive(Default)]
pub struct RouteTable {
    hosts: Hosts,
    /// What the sets of routes consist of that `hosts` names.
    indexes: Indexes,
    matchers: Matchers,
    rules: Box<[Rule]>,
    routes: Box<[RouteEntry]>,
    listeners: Box<[ir::Listener]>,
    backends: BTreeMap<ir::BackendKey, Arc<Backend>>,
    options: ir::Options,
    needs_trailers: bool,
}

/// What `explain` needs to know of a route.
#[derive(Debug)]
struct RouteEntry {
    object: ObjectRef,
    hostnames: Box<[Hostname]>,
    /// Positions of the listeners it is attached to.
    listeners: Box<[usize]>,
    /// Its matchers.
    matchers: Range<usize>,
}

impl RouteTable {
    /// The rule that a request gets; none means 404. Does not allocate, except where an expression is asked: for its cache, once
    /// per thread, and to decode a query parameter.
    pub fn find<'t>(&'t self, key: &RequestKey<'_>) -> Option<Hit<'t>> {
        let first = |sets: &[Set]| match sets {
            // The usual host has one route that takes everything: no match is looked at.
            [Set::Always { rule, .. }] => Some(Hit { rule: &self.rules[*rule as usize], prefix: "/" }),
            [set] => self.indexes.find(*set, &self.matchers, key).map(|position| self.hit(position)),
            several => {
                let found = several.iter().filter_map(|set| self.indexes.find(*set, &self.matchers, key));
                found.min_by_key(|position| self.matchers.rank(*position)).map(|position| self.hit(position))
            }
        };
        self.hosts.buckets(key.host).find_map(first)
    }

    fn hit(&self, position: Position) -> Hit<'_> {
        let matcher = self.matchers.get(position);
        Hit { rule: &self.rules[matcher.rule as usize], prefix: matcher.prefix() }
    }

    /// Whether anything served needs trailers, which only the HTTP/2 transport carries (X16).
    pub const fn needs_trailers(&self) -> bool {
        self.needs_trailers
    }

    /// Settings of the whole plane.
    pub const fn options(&self) -> &ir::Options {
        &self.options
    }

    /// Every backend of the document, by key.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.backends.values()
    }
}

impl fmt::Debug for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteTable")
            .field("listeners", &self.listeners.len())
            .field("routes", &self.routes.len())
            .field("rules", &self.rules.len())
            .field("backends", &self.backends.len())
            .finish_non_exhaustive()
    }
}

/// A rule as the request path uses it: parsed once, shared by every request.
#[derive(Debug)]
pub struct Rule {
    /// The route it belongs to.
    pub route: ObjectRef,
    /// Index in the route's `spec.rules`.
    pub index: usize,
    /// `spec.rules[].name`.
    pub name: Option<Box<str>>,
    /// What it does with a request.
    pub action: Action,
    /// Filters of the rule, in list order; redirects and refusals are in `action`.
    pub filters: Box<[Filter]>,
    /// Longest wait for the head of the response.
    pub response_timeout: Option<Duration>,
}

/// What a rule does with a request that it matches.
#[derive(Debug)]
pub enum Action {
    /// Sends it to one of the backends.
    Forward(Backends),
    /// Answers with a redirect.
    Redirect(Box<Redirect>),
    /// Answers 500 (gRPC: UNAVAILABLE), for this reason.
    Refuse(Box<str>),
}

/// Backends with their shares.
#[derive(Debug)]
pub struct Backends {
    /// The entries that have a weight.
    pub entries: Box<[BackendEntry]>,
    /// Sum of the weights; zero when nothing can be served (500).
    pub total: u64,
}

impl Backends {
    /// The entry for a random number of any size. None when there is nothing to choose from.
    pub fn pick(&self, draw: u64) -> Option<&BackendEntry> {
        let draw = draw.checked_rem(self.total)?;
        self.entries.get(self.entries.partition_point(|entry| entry.upper <= draw))
    }
}

/// One backendRef.
#[derive(Debug)]
pub struct BackendEntry {
    /// Index in the rule's `backendRefs`.
    pub index: usize,
    /// Sum of the weights up to and including this entry: the entry covers the draws below it.
    pub upper: u64,
    /// Where it leads.
    pub target: Target,
    /// Filters of the backendRef.
    pub filters: Box<[Filter]>,
}

/// What a backendRef leads to.
#[derive(Debug)]
pub enum Target {
    /// A backend; without endpoints it answers 503.
    Backend(Arc<Backend>),
    /// Answers 500 (gRPC: UNAVAILABLE), for this reason.
    Refuse(Box<str>),
    /// A redirect filter on the backendRef itself.
    Redirect(Box<Redirect>),
}

/// A backend as the request path uses it.
#[derive(Debug)]
pub struct Backend {
    /// Its key in the document, stable over changes of its endpoints: connection pools are kept under it.
    pub key: ir::BackendKey,
    /// The Service.
    pub object: ObjectRef,
    /// How to talk to it.
    pub protocol: ir::BackendProtocol,
    /// Whether WebSocket upgrades are passed on.
    pub websocket: bool,
    /// Ready endpoints.
    pub endpoints: Box<[std::net::SocketAddr]>,
}

/// A filter ready to apply.
#[derive(Debug)]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderEdit),
    /// Changes the response's headers.
    ResponseHeaders(HeaderEdit),
    /// Changes host and path towards the backend.
    Rewrite {
        /// New host.
        host: Option<HeaderValue>,
        /// New path.
        path: Option<ir::PathRewrite>,
    },
}

/// Parsed [`ir::HeaderEdit`].
#[derive(Debug, Default)]
pub struct HeaderEdit {
    /// Replaces every value of the name.
    pub set: Box<[(HeaderName, HeaderValue)]>,
    /// Adds a value.
    pub add: Box<[(HeaderName, HeaderValue)]>,
    /// Removes every value of the name.
    pub remove: Box<[HeaderName]>,
}

/// Parsed [`ir::Redirect`].
#[derive(Debug)]
pub struct Redirect {
    /// `http` or `https`; the request's own when absent.
    pub scheme: Option<Box<str>>,
    /// The host; the request's own when absent.
    pub hostname: Option<Box<str>>,
    /// The port.
    pub port: ir::RedirectPort,
    /// The path; the request's own when absent.
    pub path: Option<ir::PathRewrite>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

/// What a request is routed by. Everything borrowed, nothing decoded.
#[derive(Clone, Copy, Debug)]
pub struct RequestKey<'r> {
    /// Host, lower case, without port.
    pub host: &'r str,
    /// Path as sent, without query.
    pub path: &'r str,
    /// Query as sent, without `?`.
    pub query: Option<&'r str>,
    /// Method.
    pub method: &'r Method,
    /// Headers.
    pub headers: &'r http::HeaderMap,
    /// Whether the content type is `application/grpc` or `application/grpc+…`.
    pub grpc: bool,
}

/// The rule that a request gets.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'t> {
    /// The rule.
    pub rule: &'t Rule,
    /// The path prefix that its match covered, for `ReplacePrefixMatch`, without trailing slash; `/` when it was `/` or the
    /// match was not by prefix.
    pub prefix: &'t str,
}

#[cfg(test)]
mod tests;
