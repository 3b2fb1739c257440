//! Tests of the route table: one per rule of precedence and isolation, what the compiler refuses, and a comparison with a
//! slow model that shares no code with the table.

mod compiled;
mod isolation;
mod matching;
mod model;
mod precedence;
mod trace;

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::compile::{Compiled, compile};
use super::{RequestKey, RouteTable};
use crate::gateway::hostname::Hostname;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::ir;

/// A document under construction. Routes are admitted by every listener unless they say otherwise; the rules of a route are
/// called by the route's name and their index, such as `web/0`.
#[derive(Clone, Debug)]
struct Document(ir::RouteConfig);

impl Document {
    /// One Gateway with one listener for every host.
    fn open() -> Self {
        Self::with(&[("gw", None)])
    }

    /// Listeners as Gateway and hostname.
    fn with(listeners: &[(&str, Option<&str>)]) -> Self {
        let mut config = ir::RouteConfig::empty();
        config.listeners = listeners.iter().enumerate().map(|(i, (gateway, host))| listener(gateway, i, *host)).collect();
        Self(config)
    }

    fn http(self, name: &str, hostnames: &[&str], rules: Vec<Vec<ir::HttpMatch>>) -> Self {
        let rules = rules.into_iter().map(|matches| matches.into_iter().map(ir::Match::Http).collect()).collect();
        self.route(ir::RouteKind::Http, name, hostnames, rules)
    }

    fn grpc(self, name: &str, hostnames: &[&str], rules: Vec<Vec<ir::GrpcMatch>>) -> Self {
        let rules = rules.into_iter().map(|matches| matches.into_iter().map(ir::Match::Grpc).collect()).collect();
        self.route(ir::RouteKind::Grpc, name, hostnames, rules)
    }

    fn route(mut self, kind: ir::RouteKind, name: &str, hostnames: &[&str], rules: Vec<Vec<ir::Match>>) -> Self {
        let object = match kind {
            ir::RouteKind::Http => ObjectRef::new(Kind::HttpRoute, "ns", name),
            ir::RouteKind::Grpc => ObjectRef::new(Kind::GrpcRoute, "ns", name),
        };
        let listeners = (0..self.0.listeners.len()).collect();
        let rules = rules.into_iter().enumerate().map(|(index, matches)| rule(index, matches)).collect();
        let hostnames = hostnames.iter().map(|h| host(h)).collect();
        self.0.routes.push(ir::Route { object, kind, hostnames, listeners, rules });
        self
    }

    /// Attaches the last route to these listeners only.
    fn on(mut self, listeners: &[usize]) -> Self {
        self.0.routes.last_mut().expect("a route").listeners = listeners.to_vec();
        self
    }

    fn compiled(&self) -> Compiled {
        compile(&self.0).expect("a document of this format")
    }

    /// The table, when nothing may be refused.
    fn table(&self) -> RouteTable {
        let compiled = self.compiled();
        assert_eq!(compiled.refusals, [], "nothing refused");
        compiled.table
    }

    /// The rule that a request gets, as `route/index`.
    fn finds(&self, request: &Request) -> Option<String> {
        let table = self.table();
        let found = table.find(&request.key()).map(|hit| format!("{}/{}", hit.rule.route.name(), hit.rule.index));
        let explained = table.explain(&request.key());
        assert_eq!(explained.chosen().map(|c| format!("{}/{}", c.route.name(), c.rule)), found, "explain says what find does");
        found
    }

    #[track_caller]
    fn expect(&self, request: &Request, rule: &str) {
        assert_eq!(self.finds(request).as_deref(), Some(rule), "{request:?}");
    }

    #[track_caller]
    fn expect_none(&self, request: &Request) {
        assert_eq!(self.finds(request), None, "{request:?}");
    }
}

fn listener(gateway: &str, index: usize, hostname: Option<&str>) -> ir::Listener {
    let object = ObjectRef::new(Kind::Gateway, "ns", gateway);
    ir::Listener {
        gateway: object.clone(),
        source: object,
        name: format!("l{index}"),
        port: 80,
        protocol: ir::ListenerProtocol::Http,
        hostname: hostname.map(host),
    }
}

fn rule(index: usize, matches: Vec<ir::Match>) -> ir::Rule {
    ir::Rule { index, name: None, matches, filters: vec![], backends: vec![], response_timeout_ms: None, refusal: None }
}

fn host(text: &str) -> Hostname {
    text.parse().expect("a hostname")
}

fn on_path(path: ir::PathMatch) -> ir::HttpMatch {
    ir::HttpMatch { path, method: None, headers: vec![], query: vec![] }
}

fn prefix(path: &str) -> ir::HttpMatch {
    on_path(ir::PathMatch::Prefix(path.into()))
}

fn exact(path: &str) -> ir::HttpMatch {
    on_path(ir::PathMatch::Exact(path.into()))
}

fn regex(expression: &str) -> ir::HttpMatch {
    on_path(ir::PathMatch::Regex(expression.into()))
}

fn is(text: &str) -> ir::Text {
    ir::Text::Exact(text.into())
}

fn like(expression: &str) -> ir::Text {
    ir::Text::Regex(expression.into())
}

fn call(service: Option<ir::Text>, method: Option<ir::Text>) -> ir::GrpcMatch {
    ir::GrpcMatch { service, method, headers: vec![] }
}

fn named(name: &str, value: ir::Text) -> ir::ValueMatch {
    ir::ValueMatch { name: name.into(), value }
}

/// Adds to a match.
trait Asking: Sized {
    fn header(self, name: &str, value: &str) -> Self;
}

impl Asking for ir::HttpMatch {
    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push(named(name, is(value)));
        self
    }
}

impl Asking for ir::GrpcMatch {
    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push(named(name, is(value)));
        self
    }
}

fn with_method(mut m: ir::HttpMatch, method: &str) -> ir::HttpMatch {
    m.method = Some(method.into());
    m
}

fn with_query(mut m: ir::HttpMatch, name: &str, value: ir::Text) -> ir::HttpMatch {
    m.query.push(named(name, value));
    m
}

/// A request that owns what a key borrows.
#[derive(Clone, Debug)]
struct Request {
    host: String,
    path: String,
    query: Option<String>,
    method: Method,
    headers: HeaderMap,
    grpc: bool,
}

impl Request {
    /// A GET for `host/path?query`.
    fn get(url: &str) -> Self {
        let (rest, query) = url.split_once('?').map_or((url, None), |(rest, query)| (rest, Some(query.to_owned())));
        let (host, path) = rest.split_at(rest.find('/').expect("a path"));
        Self { host: host.into(), path: path.into(), query, method: Method::GET, headers: HeaderMap::new(), grpc: false }
    }

    fn grpc(url: &str) -> Self {
        Self { method: Method::POST, grpc: true, ..Self::get(url) }
    }

    fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        self.headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        self
    }

    fn key(&self) -> RequestKey<'_> {
        RequestKey {
            host: &self.host,
            path: &self.path,
            query: self.query.as_deref(),
            method: &self.method,
            headers: &self.headers,
            grpc: self.grpc,
        }
    }
}

fn no_backends() -> BTreeMap<ir::BackendKey, ir::Backend> {
    BTreeMap::new()
}
