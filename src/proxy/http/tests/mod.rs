//! The request path in process, against backends that behave and backends that do not.

mod backend;
mod body;
mod cause;
mod filters;
mod forward;
mod hostile;
mod reload;
mod upgrade;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use prometheus_client::registry::Registry;

use super::plane::Options;
use super::*;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::ir::{self, BackendKey, BackendProtocol, PathMatch, RouteConfig};
use crate::proxy::metrics::Metrics;

/// Nothing in these tests takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

const TUNNEL: Via = Via::Tunnel { connection: 0, trailers: true };

struct Fixture {
    plane: Arc<Plane>,
    registry: Registry,
}

/// A plane that serves by `config`.
fn plane(config: &RouteConfig) -> Fixture {
    let fixture = unconfigured();
    let applied = fixture.plane.apply(config).unwrap();
    assert_eq!(applied.refusals, [], "the fixture is sound");
    fixture
}

fn unconfigured() -> Fixture {
    let mut registry = Registry::default();
    let mut options = Options::new(Metrics::register(&mut registry));
    options.connect_timeout = Duration::from_secs(1);
    Fixture { plane: Plane::new(options), registry }
}

impl Fixture {
    async fn send(&self, request: Request<Body>) -> Answer {
        self.send_to("a.example", request).await
    }

    async fn send_to(&self, authority: &str, request: Request<Body>) -> Answer {
        let inbound = Inbound { authority: authority.into(), websocket: false, via: TUNNEL };
        read(self.serve(inbound, request).await).await
    }

    async fn serve(&self, inbound: Inbound, request: Request<Body>) -> Response<Body> {
        tokio::time::timeout(PATIENCE, self.plane.serve(inbound, request)).await.expect("an answer in time")
    }

    /// The value of a metric, labels included in `name`.
    fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    async fn idle(&self) {
        tokio::time::timeout(PATIENCE, self.plane.idle()).await.expect("nothing stays in flight");
    }
}

/// A response read to its end.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
    /// Why the body ended early.
    cut: Option<BodyError>,
}

impl Answer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?.to_str().unwrap();
        assert!(values.next().is_none(), "{name} more than once");
        Some(value)
    }
}

async fn read(response: Response<Body>) -> Answer {
    let (head, mut body) = response.into_parts();
    let mut answer = Answer { status: head.status, headers: head.headers, body: Bytes::new(), trailers: None, cut: None };
    let mut bytes = Vec::new();
    while let Some(frame) = tokio::time::timeout(PATIENCE, body.frame()).await.expect("a frame in time") {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(Err(frame)) => answer.trailers = frame.into_trailers().ok(),
            Err(error) => {
                answer.cut = Some(error);
                break;
            }
        }
    }
    answer.body = bytes.into();
    answer
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::Empty).unwrap()
}

fn post(path: &str, body: &'static str) -> Request<Body> {
    Request::post(path).header("content-length", body.len()).body(Body::full(body)).unwrap()
}

/// One listener for every host and one route with `rules`.
fn config(rules: Vec<ir::Rule>, backends: Vec<(&str, ir::Backend)>) -> RouteConfig {
    let gateway = ObjectRef::new(Kind::Gateway, "infra", "web");
    let listener = ir::Listener {
        gateway: gateway.clone(),
        source: gateway,
        name: "http".into(),
        port: 80,
        protocol: ir::ListenerProtocol::Http,
        hostname: None,
    };
    let route = ir::Route {
        object: ObjectRef::new(Kind::HttpRoute, "shop", "web"),
        kind: ir::RouteKind::Http,
        hostnames: Vec::new(),
        listeners: vec![0],
        rules,
    };
    RouteConfig {
        listeners: vec![listener],
        routes: vec![route],
        backends: backends.into_iter().map(|(key, backend)| (BackendKey(key.into()), backend)).collect(),
        ..RouteConfig::empty()
    }
}

/// Everything below `prefix` to the backends with these keys and weights.
fn rule(index: usize, prefix: &str, backends: &[(&str, u32)]) -> ir::Rule {
    ir::Rule {
        index,
        name: None,
        matches: vec![ir::Match::Http(ir::HttpMatch {
            path: PathMatch::Prefix(prefix.into()),
            method: None,
            headers: Vec::new(),
            query: Vec::new(),
        })],
        filters: Vec::new(),
        backends: backends.iter().enumerate().map(|(i, (key, weight))| weighted(i, key, *weight)).collect(),
        response_timeout_ms: None,
        refusal: None,
    }
}

fn weighted(index: usize, key: &str, weight: u32) -> ir::WeightedBackend {
    ir::WeightedBackend { index, weight, target: ir::Target::Backend(BackendKey(key.into())), filters: Vec::new() }
}

fn at(protocol: BackendProtocol, endpoints: &[SocketAddr]) -> ir::Backend {
    ir::Backend {
        object: ObjectRef::new(Kind::Service, "shop", "web"),
        port: 80,
        protocol,
        websocket: false,
        endpoints: endpoints.to_vec(),
    }
}

/// Everything to one backend.
fn all_to(protocol: BackendProtocol, endpoints: &[SocketAddr]) -> RouteConfig {
    config(vec![rule(0, "/", &[("b", 1)])], vec![("b", at(protocol, endpoints))])
}

fn h1(endpoint: SocketAddr) -> RouteConfig {
    all_to(BackendProtocol::Http1, &[endpoint])
}

/// A request body that the test feeds piece by piece, as a stream of a tunnel connection does.
async fn streamed() -> (h2::SendStream<Bytes>, Body) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let server = tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        let (request, respond) = server.accept().await.unwrap().unwrap();
        tokio::spawn(async move {
            let _respond = respond;
            while server.accept().await.is_some() {}
        });
        request.into_body()
    });
    let (client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (response, sender) = client.send_request(Request::new(()), false).unwrap();
    tokio::spawn(response);
    (sender, Body::H2(server.await.unwrap()))
}
