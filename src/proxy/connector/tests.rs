//! What the tests of both transports share: a service made of a function, and bodies that a test writes by hand. And the
//! connector as a whole, as far as it needs no edge; with one, it is tested end to end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::io::duplex;
use tokio_util::task::TaskTracker;

use super::stream::Streams;
use super::uploads::Uploads;
use super::*;
use crate::proxy::http::{Body, Inbound, Serve};

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A service made of a function.
pub(super) struct App(Box<dyn Fn(Inbound, Request<Body>) -> Answering + Send + Sync>);

impl Serve for App {
    fn serve(&self, inbound: Inbound, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send {
        (self.0)(inbound, request)
    }
}

/// The streams of connection 1, answered by a function.
pub(super) fn app<F, A>(answer: F) -> Streams<App>
where
    F: Fn(Inbound, Request<Body>) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let service = App(Box::new(move |inbound, request| Box::pin(answer(inbound, request))));
    let large_heads = tokio::sync::Semaphore::new(stream::LARGE_HEADS);
    let uploads = Uploads::new();
    Streams { service: Arc::new(service), index: 1, requests: TaskTracker::new(), pushed: Arc::default(), uploads, large_heads }
}

/// Requests that reached a service.
#[derive(Default)]
pub(super) struct Seen {
    all: AtomicUsize,
    live: AtomicUsize,
    most: AtomicUsize,
}

struct Alive(Arc<Seen>);

impl Alive {
    fn new(seen: &Arc<Seen>) -> Self {
        seen.all.fetch_add(1, Ordering::Relaxed);
        let live = seen.live.fetch_add(1, Ordering::Relaxed) + 1;
        seen.most.fetch_max(live, Ordering::Relaxed);
        Self(Arc::clone(seen))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seen {
    /// All of them.
    pub(super) fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Those under way.
    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// The most that were under way at once.
    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Waits until so many are under way.
    pub(super) async fn reach(&self, live: usize) {
        let reached = async {
            while self.live() != live {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
        assert!(reached.is_ok(), "{} requests are under way, not {live}", self.live());
    }

    /// Waits until none is under way.
    pub(super) async fn gone(&self) {
        self.reach(0).await;
    }
}

/// A service that answers by path and counts: `/` at once, `/read` once the body is read, `/big` with 4 MiB, `/hold` never.
pub(super) fn counted() -> (Streams<App>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let counted = Arc::clone(&seen);
    let big = Bytes::from(vec![0; 4 << 20]);
    let streams = app(move |_: Inbound, request: Request<Body>| {
        let (alive, big) = (Alive::new(&counted), big.clone());
        async move {
            let _alive = alive;
            match request.uri().path() {
                "/read" => {
                    let body = request.into_body().collect().await.expect("a complete body").to_bytes();
                    Response::new(Body::full(body.len().to_string()))
                }
                "/big" => Response::new(Body::full(big)),
                "/hold" => {
                    // The body is neither read nor given up.
                    let _body = request.into_body();
                    std::future::pending().await
                }
                _ => Response::new(Body::full("hello")),
            }
        }
    });
    (streams, seen)
}

/// The streams of another connection to the same service.
pub(super) fn beside(streams: &Streams<App>) -> Streams<App> {
    Streams { service: Arc::clone(&streams.service), ..app(|_, _| std::future::pending()) }
}

/// A body, and what writes it. Resetting the writer is a body that fails.
pub(super) async fn body() -> (h2::SendStream<Bytes>, Body) {
    let (near, far) = duplex(1 << 20);
    let (client, server) = tokio::join!(h2::client::handshake(near), h2::server::handshake(far));
    let (mut client, connection) = client.expect("a client");
    let mut server = server.expect("a server");
    tokio::spawn(connection);
    let (_, writer) = client.send_request(Request::new(()), false).expect("a request");
    let (request, respond) = server.accept().await.expect("a stream").expect("a request");
    tokio::spawn(async move {
        // Streams are gone with their connection and their handles.
        let _kept = (client, respond);
        while server.accept().await.is_some() {}
    });
    (writer, Body::H2(request.into_body()))
}

/// Tells when it is dropped.
pub(super) struct OnDrop(pub(super) Option<tokio::sync::oneshot::Sender<()>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            sender.send(()).unwrap_or_default();
        }
    }
}

/// An address of which the first lookup succeeds and the second is a bug.
struct Buggy(std::sync::atomic::AtomicBool);

impl Resolve for Buggy {
    async fn srv(&self, name: &str) -> Result<Vec<(String, u16)>, dns::ResolveError> {
        Err(dns::ResolveError::NotFound(name.to_owned()))
    }

    async fn addresses(&self, _: &str) -> Result<Vec<std::net::IpAddr>, dns::ResolveError> {
        assert!(!self.0.swap(true, Ordering::Relaxed), "on purpose");
        Ok(vec![std::net::Ipv4Addr::LOCALHOST.into()])
    }
}

fn config() -> Config {
    let token = TunnelToken {
        account_tag: "acc".into(),
        tunnel_id: Uuid::nil(),
        secret: crate::gateway::token::TunnelSecret::new(vec![1]),
        endpoint: None,
    };
    let mut config = Config::new(token).expect("roots");
    // Nothing listens there.
    config.edge = EdgeSource::Static(vec!["edge.invalid:1".parse().expect("an address")]);
    config.protocol = Protocol::Http2;
    config
}

fn start(config: Config) -> Connector {
    let service = app(|_, _| async { Response::new(Body::Empty) }).service;
    let (_, needs_trailers) = watch::channel(false);
    spawn_with(config, service, needs_trailers, Buggy(false.into())).expect("a connector")
}

#[tokio::test(start_paused = true)]
async fn a_bug_in_the_connector_is_told_and_one_in_a_connection_is_survived() {
    let connector = start(config());
    let error = connector.failed().await.to_string();
    assert!(error.starts_with("the tunnel connector stopped: ") && error.contains("panic"), "{error}");
    connector.drain().await;
}

#[tokio::test]
async fn an_edge_that_is_not_there_shows_in_the_status_and_a_drain_ends_at_once() {
    let connector = start(config());
    let failed = |c: &ConnectionStatus| c.last_error.is_some();
    while !connector.connections().iter().all(failed) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = &connector.connections()[3];
    assert_eq!((status.index, status.address.map(|a| a.port())), (3, Some(1)));
    assert!(status.last_error.as_ref().expect("an error").starts_with("cannot connect to the edge at 127.0.0.1:1"), "{status:?}");
    assert_eq!(*connector.registered().borrow(), 0);
    connector.drain().await;
    assert!(connector.connections().iter().all(|c| c.state == ConnectionState::Stopped));
    let failed = tokio::time::timeout(Duration::from_millis(50), connector.failed()).await;
    assert!(failed.is_err(), "a drain is no failure");
}

#[test]
fn protocols_are_written_as_they_are_read() {
    for protocol in [Protocol::Auto, Protocol::Quic, Protocol::Http2] {
        assert_eq!(protocol.to_string().parse(), Ok(protocol));
    }
    let error = "HTTP2".parse::<Protocol>().expect_err("exact").to_string();
    assert_eq!(error, "unknown tunnel protocol \"HTTP2\"; use auto, quic or http2");
}
