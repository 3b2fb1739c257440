//! The versioned document that a plane receives: everything it serves by, and nothing it does not read.
//!
//! `translate` builds it, the config API carries it as JSON, `compile` turns it into a route table. Every rule and backend
//! keeps the object and field it came from, so that logs, `explain` and status never have to guess.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::uri::PathAndQuery;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::hostname::Hostname;
use super::id::ObjectRef;

/// The only document format there is so far. A plane refuses any other.
pub const FORMAT: u32 = 1;

/// What one plane serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteConfig {
    /// The document format, [`FORMAT`].
    pub format: u32,
    /// Listeners that are accepted, in the order of their Gateways and fields. Routes name them by index.
    pub listeners: Vec<Listener>,
    /// Routes in the order that decides ties: oldest first, then namespace and name.
    pub routes: Vec<Route>,
    /// Backends by key. A key is stable over changes of the backend's endpoints.
    pub backends: BTreeMap<BackendKey, Backend>,
    /// Settings of the whole plane.
    #[serde(default)]
    pub options: Options,
}

impl RouteConfig {
    /// An empty document: every request gets 404.
    pub fn empty() -> Self {
        Self { format: FORMAT, ..Self::default() }
    }

    /// Whether anything served needs trailers, which only the HTTP/2 transport carries (X16).
    pub fn needs_trailers(&self) -> bool {
        self.routes.iter().any(|r| r.kind == RouteKind::Grpc)
    }
}

/// Settings of a plane that change how requests are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Options {
    /// Route by `X-Original-Host` when a request has it (X27). Off by default: any client may send the header.
    pub allow_x_original_host: bool,
    /// Upgrade to WebSocket only on backends whose `appProtocol` says so (X12).
    pub websocket_require_app_protocol: bool,
}

/// An accepted listener of a Gateway or of one of its ListenerSets. It owns its hostname even without a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listener {
    /// The Gateway within which the listener competes for hosts.
    pub gateway: ObjectRef,
    /// The object that declares the listener: the Gateway itself or a ListenerSet.
    pub source: ObjectRef,
    /// The section name.
    pub name: String,
    /// The port as declared. In tunnel mode it is not compared (S3 "Listener isolation").
    pub port: u16,
    /// The protocol as declared.
    pub protocol: ListenerProtocol,
    /// The hostname it is pinned to; none for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Hostname>,
}

/// Protocols of a listener that a tunnel can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ListenerProtocol {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS, which ends at the edge in tunnel mode.
    Https,
}

/// Which kind of route a document entry came from; it decides how its matches are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RouteKind {
    /// HTTPRoute.
    Http,
    /// GRPCRoute: matches only requests with a gRPC content type (X26).
    Grpc,
}

/// One attached route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The route object.
    pub object: ObjectRef,
    /// Its kind.
    pub kind: RouteKind,
    /// Hostnames as the route writes them; empty for any. A request must match one of these and the hostname of the
    /// listener that owns its host.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "short_list")]
    pub hostnames: Vec<Hostname>,
    /// Indexes into [`RouteConfig::listeners`] of the listeners it is attached to, ascending.
    #[serde(deserialize_with = "short_list")]
    pub listeners: Vec<usize>,
    /// The rules it serves, in list order. A rule that the spec says to drop is absent; its index stays unused.
    #[serde(deserialize_with = "short_list")]
    pub rules: Vec<Rule>,
}

/// One rule of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Index in `spec.rules` of the route.
    pub index: usize,
    /// `spec.rules[].name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Any of these. Never empty: a rule without matches has one that matches everything.
    #[serde(deserialize_with = "short_list")]
    pub matches: Vec<Match>,
    /// Filters of the rule, in list order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Filter>,
    /// Where requests go, by weight. All weights zero or no entry at all: 500 (unless a filter answers).
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "short_list")]
    pub backends: Vec<WeightedBackend>,
    /// Longest wait for the head of the response, milliseconds; no limit when absent (X9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_timeout_ms: Option<u64>,
    /// Set when the whole rule must fail closed: every request that matches gets 500 (gRPC: UNAVAILABLE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// One match of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Match {
    /// Of an HTTPRoute.
    Http(HttpMatch),
    /// Of a GRPCRoute.
    Grpc(GrpcMatch),
}

/// HTTPRoute match; all parts must hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpMatch {
    /// The path, before any query.
    pub path: PathMatch,
    /// The method, upper case as in the spec; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Headers, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ValueMatch>,
    /// Query parameters, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<ValueMatch>,
}

/// GRPCRoute match; all parts must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcMatch {
    /// Full service name such as `helloworld.Greeter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Text>,
    /// Method name such as `SayHello`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Text>,
    /// Headers, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ValueMatch>,
}

/// How a path is compared. Bytes as sent: nothing is decoded or normalised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathMatch {
    /// The whole path.
    Exact(#[serde(deserialize_with = "shared")] Arc<str>),
    /// By path element: `/api` covers `/api` and `/api/x`, not `/apix`. A trailing slash is not significant.
    Prefix(#[serde(deserialize_with = "shared")] Arc<str>),
    /// An expression (RE2 syntax) that must match the whole path.
    Regex(#[serde(deserialize_with = "shared")] Arc<str>),
}

/// A literal or an expression that must match the whole value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Text {
    /// Equal, case-sensitive.
    Exact(String),
    /// RE2 syntax, whole value.
    Regex(String),
}

/// A named value to compare: a header (name case-insensitive) or a query parameter (name case-sensitive).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueMatch {
    /// Name of the header or parameter.
    pub name: String,
    /// What its value must be.
    pub value: Text,
}

/// A filter that this version can apply. What it cannot apply becomes a refusal, never an absent filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderEdit),
    /// Changes the response's headers, 101 included.
    ResponseHeaders(HeaderEdit),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Changes host and path of the request on its way to the backend.
    Rewrite(Rewrite),
}

/// Changes to a set of headers, applied as: set, add, remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderEdit {
    /// Replaces every value of the name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(String, String)>,
    /// Adds a value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<(String, String)>,
    /// Removes every value of the name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Where a redirect points. What is absent is taken from the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Redirect {
    /// `http` or `https`; the request's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host; the request's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The port in `Location`.
    pub port: RedirectPort,
    /// The path; the request's own when absent. The query is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewrite>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// The port of a redirect. Well-known ports are left out of `Location` whatever this says (S3 "Redirect port").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RedirectPort {
    /// No port: the filter sets a scheme but no port.
    None,
    /// As the filter says.
    Explicit(u16),
    /// That of the listener for the scheme of the request, already chosen among several; none when clients cannot reach it.
    Listener {
        /// For `http`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        http: Option<u16>,
        /// For `https`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        https: Option<u16>,
    },
}

/// Change of host and path towards the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rewrite {
    /// New host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// New path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewrite>,
}

/// How a path is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathRewrite {
    /// The whole path.
    Full(String),
    /// The part that the match's prefix covered.
    Prefix(String),
}

/// A replacement of a path as it goes on a request line: with its leading slash, which a route may leave out. None for what is no
/// path, such as one with a query or a fragment: no value can add a header or change more than the path.
pub fn request_path(text: &str) -> Option<String> {
    let rooted = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    let parsed: PathAndQuery = rooted.parse().ok()?;
    // The parser would cut a fragment off.
    (text.is_ascii() && parsed.as_str() == rooted && parsed.query().is_none()).then_some(rooted)
}

/// One backendRef with its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightedBackend {
    /// Index in the rule's `backendRefs`.
    pub index: usize,
    /// Share of the rule's requests, relative to the others. Zero: none.
    pub weight: u32,
    /// Where it leads.
    pub target: Target,
    /// Filters of this backendRef, applied after the rule's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Filter>,
}

/// What a backendRef leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// A backend of the document. Without endpoints it answers 503.
    Backend(BackendKey),
    /// A reference that cannot be used: its share gets 500 (gRPC: UNAVAILABLE). Holds the reason.
    Invalid(String),
}

/// Names a backend within a document: `NAMESPACE/NAME:PORT/PROTOCOL`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendKey(#[serde(deserialize_with = "shared")] pub Arc<str>);

impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A port of a Service, and the addresses behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backend {
    /// The Service.
    pub object: ObjectRef,
    /// Its port, as the backendRef names it.
    pub port: u16,
    /// How to talk to it.
    pub protocol: BackendProtocol,
    /// Whether `appProtocol` marks it for WebSocket (`kubernetes.io/ws`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub websocket: bool,
    /// Ready endpoints, sorted, without duplicates. Empty: 503.
    #[serde(deserialize_with = "short_list")]
    pub endpoints: Vec<std::net::SocketAddr>,
}

/// The protocol towards a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, prior knowledge (RFC 9113 §3.3).
    H2c,
}

/// Reads a text that will be shared, into its place at once.
fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    struct Shared;

    impl Visitor<'_> for Shared {
        type Value = Arc<str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Arc<str>, E> {
            Ok(text.into())
        }
    }

    deserializer.deserialize_str(Shared)
}

/// Reads a list that has one element more often than not: serde would make room for four in each, which is most of what a
/// large document takes.
fn short_list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct ShortList<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ShortList<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let Some(first) = elements.next_element()? else { return Ok(Vec::new()) };
            let mut list = Vec::with_capacity(1);
            list.push(first);
            while let Some(next) = elements.next_element()? {
                list.push(next);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(ShortList(PhantomData))
}
