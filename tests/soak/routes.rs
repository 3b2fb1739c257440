//! The configurations that are pushed: the routes that clients use stay, everything around them changes with every one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use cftunnel::gateway::id::{Kind, ObjectRef};
use cftunnel::gateway::ir::{
    Backend, BackendKey, BackendProtocol, Filter, GrpcMatch, HeaderEdit, HttpMatch, Listener, ListenerProtocol, Match, PathMatch,
    Route, RouteConfig, RouteKind, Rule, Target, WeightedBackend,
};

use crate::chance::Chance;
use crate::plan;

/// Header of every response that says by which configuration it was served.
pub(crate) const CONFIG: &str = "x-soak-config";

/// Configuration number `n`, with a route for gRPC or without.
pub(crate) fn config(n: u64, grpc: bool, origins: &[SocketAddr], chance: &mut Chance) -> anyhow::Result<RouteConfig> {
    let names = ["a", "b", "c"];
    let app = names.map(|name| key(name, "http1"));
    let (h2c, call) = (key("d", "h2c"), key("e", "h2c"));
    let mut backends = BTreeMap::new();
    let mut weights = Vec::new();
    for (index, (name, key)) in names.into_iter().zip(&app).enumerate() {
        // The last may have no endpoint at all; then nothing is sent there.
        let gone = index == 2 && chance.percent(30);
        let endpoints = if gone { Vec::new() } else { some(origins, chance) };
        backends.insert(key.clone(), backend(name, BackendProtocol::Http1, endpoints));
        let weight = if gone { 0 } else { u32::try_from(chance.between(u64::from(index == 0), 10))? };
        weights.push(WeightedBackend { index, weight, target: Target::Backend(key.clone()), filters: Vec::new() });
    }
    for (name, key) in [("d", &h2c), ("e", &call)] {
        backends.insert(key.clone(), backend(name, BackendProtocol::H2c, some(origins, chance)));
    }
    let to = |key: &BackendKey| {
        vec![WeightedBackend { index: 0, weight: 1, target: Target::Backend(key.clone()), filters: Vec::new() }]
    };
    let everything = || Match::Http(http_match("/"));
    let mut routes = vec![
        route("app", RouteKind::Http, plan::APP, everything(), weights, n)?,
        route("h2c", RouteKind::Http, plan::H2C, everything(), to(&h2c), n)?,
    ];
    if grpc {
        routes.push(route("grpc", RouteKind::Grpc, plan::GRPC, Match::Grpc(GrpcMatch::default()), to(&call), n)?);
    }
    // Neighbours that come and go; none of them may ever answer.
    for i in 0..chance.between(20, 80) {
        let (name, host) = (format!("other-{i}"), format!("other-{i}-{n}.soak.test"));
        let path = Match::Http(http_match(&format!("/{}", chance.between(0, 1000))));
        routes.push(route(&name, RouteKind::Http, &host, path, to(&app[0]), n)?);
    }
    let gateway = ObjectRef::new(Kind::Gateway, "soak", "gateway");
    let listener = Listener {
        gateway: gateway.clone(),
        source: gateway,
        name: "http".into(),
        port: 80,
        protocol: ListenerProtocol::Http,
        hostname: None,
    };
    Ok(RouteConfig { listeners: vec![listener], routes, backends, ..RouteConfig::empty() })
}

fn key(name: &str, protocol: &str) -> BackendKey {
    BackendKey(format!("soak/{name}:80/{protocol}").into())
}

/// At least one of the backends, and now and then a neighbour at whose port nobody listens.
fn some(origins: &[SocketAddr], chance: &mut Chance) -> Vec<SocketAddr> {
    let always = chance.between(0, origins.len() as u64) as usize;
    let mut chosen: Vec<_> =
        origins.iter().enumerate().filter(|(i, _)| *i == always || chance.percent(60)).map(|(_, a)| *a).collect();
    if chance.percent(20) {
        chosen.push(([127, 0, 0, 1], 1).into());
    }
    chosen.sort();
    chosen
}

fn backend(name: &str, protocol: BackendProtocol, endpoints: Vec<SocketAddr>) -> Backend {
    Backend { object: ObjectRef::new(Kind::Service, "soak", name), port: 80, protocol, websocket: false, endpoints }
}

fn http_match(prefix: &str) -> HttpMatch {
    HttpMatch { path: PathMatch::Prefix(prefix.into()), method: None, headers: Vec::new(), query: Vec::new() }
}

fn route(
    name: &str,
    kind: RouteKind,
    host: &str,
    r#match: Match,
    backends: Vec<WeightedBackend>,
    n: u64,
) -> anyhow::Result<Route> {
    let object = match kind {
        RouteKind::Http => Kind::HttpRoute,
        RouteKind::Grpc => Kind::GrpcRoute,
    };
    let stamp = HeaderEdit { set: vec![(CONFIG.into(), n.to_string())], ..HeaderEdit::default() };
    Ok(Route {
        object: ObjectRef::new(object, "soak", name),
        kind,
        hostnames: vec![host.parse()?],
        listeners: vec![0],
        rules: vec![Rule {
            index: 0,
            name: None,
            matches: vec![r#match],
            filters: vec![Filter::ResponseHeaders(stamp)],
            backends,
            response_timeout_ms: None,
            refusal: None,
        }],
    })
}

/// The configuration that was pushed last.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    pub(crate) number: u64,
    pub(crate) document: RouteConfig,
}
