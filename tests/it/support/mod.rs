//! A world for one test: a backend, a plane, a connector and an edge, and the means to look at all of them.

pub(crate) mod client;
pub(crate) mod origin;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cftunnel::edge::{self, Edge, SessionState};
use cftunnel::gateway::id::{Kind, ObjectRef};
use cftunnel::gateway::ir::{
    Backend, BackendKey, BackendProtocol, FORMAT, GrpcMatch, HttpMatch, Listener, ListenerProtocol, Match, PathMatch, Route,
    RouteConfig, RouteKind, Rule, Target, WeightedBackend,
};
use cftunnel::proxy::connector::{self, Connector, EdgeSource, Protocol, Roots};
use cftunnel::proxy::http::Plane;
use cftunnel::proxy::http::plane::Options;
use cftunnel::proxy::metrics::Metrics;
use origin::Origin;
use prometheus_client::registry::Registry;

/// Longest wait for anything that should take milliseconds. Machines that run tests are slow at times.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Both transports, for tests that hold for both.
pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http2, Protocol::Quic];

pub(crate) struct World {
    pub(crate) origin: Origin,
    pub(crate) edge: Edge,
    pub(crate) plane: Arc<Plane>,
    pub(crate) connector: Connector,
}

/// What differs between tests.
pub(crate) struct Setup {
    pub(crate) protocol: Protocol,
    pub(crate) grace: Duration,
    pub(crate) grpc: bool,
}

impl Setup {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self { protocol, grace: Duration::from_secs(10), grpc: false }
    }

    /// An edge without a connector, so that a test can prepare its faults.
    pub(crate) async fn edge() -> Edge {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Edge::start(edge::Config { clients: any, tunnel: any, token: None }).await.unwrap()
    }

    pub(crate) async fn start_at(self, edge: Edge) -> World {
        let origin = Origin::start().await;
        let mut registry = Registry::default();
        let plane = Plane::new(Options::new(Metrics::register(&mut registry)));
        plane.apply(&routes(origin.addr, self.grpc)).unwrap();
        let connector = connect(&edge, &plane, self.protocol, self.grace);
        World { origin, edge, plane, connector }
    }

    /// Starts everything and waits for four connections.
    pub(crate) async fn start(self) -> World {
        let world = self.start_at(Self::edge().await).await;
        world.wait_for(4, SOON).await;
        world
    }
}

pub(crate) fn connect(edge: &Edge, plane: &Arc<Plane>, protocol: Protocol, grace: Duration) -> Connector {
    let mut config = connector::Config::new(edge.token().clone()).unwrap();
    config.edge = EdgeSource::Static(vec![edge.tunnel_addr().into()]);
    config.roots = Roots::from_pem(edge.ca_pem().as_bytes(), "the built-in edge").unwrap();
    config.protocol = protocol;
    config.grace = grace;
    connector::spawn(config, Arc::clone(plane), plane.needs_trailers()).unwrap()
}

impl World {
    pub(crate) async fn start(protocol: Protocol) -> Self {
        Setup::new(protocol).start().await
    }

    /// Waits until exactly `n` connections take requests.
    pub(crate) async fn wait_for(&self, n: usize, limit: Duration) {
        let up = self.edge.wait_until(limit, |state| state.live().count() == n).await;
        assert!(up, "not {n} connections after {limit:?}: {:#?}", self.edge.state());
    }

    pub(crate) fn clients(&self) -> SocketAddr {
        self.edge.client_addr()
    }

    pub(crate) fn sessions(&self) -> Vec<SessionState> {
        self.edge.state().live().cloned().collect()
    }
}

/// Everything to one backend: HTTP/1.1 for any host, h2c for `grpc.example.test` and, for gRPC, by a GRPCRoute.
pub(crate) fn routes(origin: SocketAddr, grpc: bool) -> RouteConfig {
    let backend = |protocol| Backend {
        object: ObjectRef::new(Kind::Service, "test", "origin"),
        port: 80,
        protocol,
        websocket: false,
        endpoints: vec![origin],
    };
    let (http1, h2c) = (BackendKey("test/origin:80/http1".into()), BackendKey("test/origin:80/h2c".into()));
    let dead = BackendKey("test/dead:80/http1".into());
    let unreachable = Backend { endpoints: vec![([127, 0, 0, 1], 1).into()], ..backend(BackendProtocol::Http1) };
    let mut config = RouteConfig {
        format: FORMAT,
        listeners: vec![Listener {
            gateway: ObjectRef::new(Kind::Gateway, "test", "gateway"),
            source: ObjectRef::new(Kind::Gateway, "test", "gateway"),
            name: "http".into(),
            port: 80,
            protocol: ListenerProtocol::Http,
            hostname: None,
        }],
        routes: vec![
            route("h2c", RouteKind::Http, Some("h2c.example.test"), everything(), &h2c),
            route("dead", RouteKind::Http, Some("dead.example.test"), everything(), &dead),
            route("any", RouteKind::Http, None, everything(), &http1),
        ],
        backends: BTreeMap::from([
            (http1, backend(BackendProtocol::Http1)),
            (h2c.clone(), backend(BackendProtocol::H2c)),
            (dead, unreachable),
        ]),
        ..RouteConfig::default()
    };
    if grpc {
        config.routes.push(route("grpc", RouteKind::Grpc, None, Match::Grpc(GrpcMatch::default()), &h2c));
    }
    config
}

fn everything() -> Match {
    Match::Http(HttpMatch { path: PathMatch::Prefix("/".into()), method: None, headers: vec![], query: vec![] })
}

fn route(name: &str, kind: RouteKind, host: Option<&str>, r#match: Match, backend: &BackendKey) -> Route {
    let object = match kind {
        RouteKind::Http => Kind::HttpRoute,
        RouteKind::Grpc => Kind::GrpcRoute,
    };
    Route {
        object: ObjectRef::new(object, "test", name),
        kind,
        hostnames: host.map(|h| h.parse().unwrap()).into_iter().collect(),
        listeners: vec![0],
        rules: vec![Rule {
            index: 0,
            name: None,
            matches: vec![r#match],
            filters: vec![],
            backends: vec![WeightedBackend { index: 0, weight: 1, target: Target::Backend(backend.clone()), filters: vec![] }],
            response_timeout_ms: None,
            refusal: None,
        }],
    }
}

/// Waits until `ready` holds; panics with `what` when it never does.
pub(crate) async fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let wait = async {
        while !ready() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, wait).await.is_ok(), "never: {what}");
}
