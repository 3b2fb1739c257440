//! The compiled route table: immutable, found by host, path, method, headers and query without allocation.
//!
//! PURE: no I/O, no clock, no async. `find` and `explain` share one order of precedence. [`compile`](compile::compile) builds a
//! table from a [`RouteConfig`](crate::gateway::ir::RouteConfig) and says which rules it had to refuse.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::gateway::id::ObjectRef;
use crate::gateway::ir;

/// A rule as the request path uses it: parsed once, shared by every request.
#[derive(Debug)]
pub struct Rule {
    /// The route it belongs to.
    pub route: Arc<ObjectRef>,
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
    Redirect(Redirect),
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
    Redirect(Redirect),
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
    /// The path prefix that its match covered, for `ReplacePrefixMatch`; `/` when the match was not by prefix.
    pub prefix: &'t str,
}
