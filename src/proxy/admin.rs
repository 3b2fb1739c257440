//! Probes and metrics over plain HTTP: `/healthz`, `/readyz` (alias `/ready`) and `/metrics`. Changes nothing and tells no
//! secret: the port is open to the cluster.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::http::Plane;

/// Connections at once. Probes and scrapes need a handful.
const MAX_CONNECTIONS: usize = 64;
/// Longest wait for the head of a request, which also ends idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest life of a connection, and then what a response under way may still take: a client that reads nothing keeps its place
/// no longer, and a scraper just connects again.
const LIFE: Duration = Duration::from_secs(120);
const LAST_RESPONSE: Duration = Duration::from_secs(10);

/// What the probes look at.
#[derive(Clone, Debug)]
pub struct State {
    /// The plane: has it a configuration?
    pub plane: Arc<Plane>,
    /// The metrics.
    pub registry: Arc<Registry>,
    /// Registered connections to the edge; `None` for a plane without a tunnel, which needs none.
    pub registered: Option<watch::Receiver<usize>>,
    /// Whether a stored configuration serves because none has been pushed.
    pub stale: watch::Receiver<bool>,
    /// Whether the plane is on its way out.
    pub draining: watch::Receiver<bool>,
}

/// Readiness and what it is made of: configuration applied, at least one connection registered, not draining.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// Everything is there.
    pub ready: bool,
    /// What is not.
    pub missing: Vec<&'static str>,
    /// Registered connections to the edge.
    pub ready_connections: usize,
    /// The version of the configuration that serves.
    pub config_version: Option<String>,
    /// It was stored by an earlier run, and none has been pushed since.
    pub config_stale: bool,
    /// The plane is on its way out.
    pub draining: bool,
}

impl State {
    /// Readiness at this moment.
    pub fn readiness(&self) -> Readiness {
        let config_version = self.plane.version();
        let ready_connections = self.registered.as_ref().map_or(0, |registered| *registered.borrow());
        let disconnected = self.registered.is_some() && ready_connections == 0;
        let draining = *self.draining.borrow();
        let missing: Vec<_> =
            [("configuration", config_version.is_none()), ("connection", disconnected), ("not draining", draining)]
                .into_iter()
                .filter_map(|(name, missing)| missing.then_some(name))
                .collect();
        let config_stale = *self.stale.borrow();
        Readiness { ready: missing.is_empty(), missing, ready_connections, config_version, config_stale, draining }
    }
}

/// Answers until `shutdown`. A connection that fails ends alone.
pub async fn serve(listener: TcpListener, state: State, shutdown: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = Arc::clone(&permits).acquire_owned();
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = async { (permit.await, listener.accept().await) } => accepted,
        };
        match accepted {
            (Ok(permit), Ok((socket, _))) => {
                let state = state.clone();
                let shutdown = shutdown.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = connection(socket, &state) => {}
                    }
                    drop(permit);
                });
            }
            (_, Err(error)) => {
                tracing::warn!(%error, "Cannot accept an admin connection");
                // Out of file descriptors, most likely: do not spin.
                sleep(Duration::from_millis(100)).await;
            }
            // The semaphore is never closed.
            (Err(_), _) => return,
        }
    }
}

async fn connection<IO: AsyncRead + AsyncWrite + Unpin>(socket: IO, state: &State) {
    let service = service_fn(|request: Request<Incoming>| std::future::ready(Ok::<_, Infallible>(answer(&request, state))));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(socket), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = sleep(LIFE) => {
            served.as_mut().graceful_shutdown();
            let Ok(ended) = timeout(LAST_RESPONSE, served).await else {
                tracing::debug!("Admin connection cut: its client does not read");
                return;
            };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "Admin connection ended");
    }
}

fn answer<B>(request: &Request<B>, state: &State) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" | "/ready" => {
            let verbose =
                request.uri().query().is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
            ready(&state.readiness(), verbose)
        }
        "/metrics" => metrics(&state.registry),
        _ => text(StatusCode::NOT_FOUND, "paths: /healthz /readyz /metrics\n"),
    }
}

fn ready(readiness: &Readiness, verbose: bool) -> Response<Full<Bytes>> {
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if verbose {
        return text(status, spell_out(readiness));
    }
    match serde_json::to_vec(readiness) {
        Ok(json) => response(status, "application/json", json),
        Err(_) => text(status, ""),
    }
}

/// One line a condition, in the manner of the API server's `/readyz?verbose`.
fn spell_out(readiness: &Readiness) -> String {
    let mark = |missing: &str| if readiness.missing.contains(&missing) { "[-]" } else { "[+]" };
    let version = readiness.config_version.as_deref().unwrap_or("none applied");
    let stale = if readiness.config_stale { " (stale)" } else { "" };
    let draining = if readiness.draining { "yes" } else { "no" };
    format!(
        "{}configuration: {version}{stale}\n{}connections registered: {}\n{}draining: {draining}\n{}\n",
        mark("configuration"),
        mark("connection"),
        readiness.ready_connections,
        mark("not draining"),
        if readiness.ready { "ready" } else { "not ready" },
    )
}

fn metrics(registry: &Registry) -> Response<Full<Bytes>> {
    let mut lines = String::new();
    match prometheus_client::encoding::text::encode(&mut lines, registry) {
        Ok(()) => response(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", lines),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", body)
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::gateway::ir::RouteConfig;
    use crate::proxy::http::plane::Options;
    use crate::proxy::metrics::Metrics;

    struct Probe {
        state: State,
        registered: watch::Sender<usize>,
        stale: watch::Sender<bool>,
        draining: watch::Sender<bool>,
    }

    fn probe() -> Probe {
        let mut registry = Registry::default();
        let plane = Plane::new(Options::new(Metrics::register(&mut registry)));
        let (registered, stale, draining) = (watch::Sender::new(0), watch::Sender::new(false), watch::Sender::new(false));
        let state = State {
            plane,
            registry: Arc::new(registry),
            registered: Some(registered.subscribe()),
            stale: stale.subscribe(),
            draining: draining.subscribe(),
        };
        Probe { state, registered, stale, draining }
    }

    async fn get(state: &State, path: &str) -> (StatusCode, String) {
        let response = answer(&Request::get(path).body(()).unwrap(), state);
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ready_is_configuration_and_connection_and_not_draining() {
        let p = probe();
        let (status, body) = get(&p.state, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            body,
            r#"{"ready":false,"missing":["configuration","connection"],"readyConnections":0,"configVersion":null,"configStale":false,"draining":false}"#
        );
        let version = p.state.plane.apply(&RouteConfig::empty()).unwrap().version;
        assert_eq!(p.state.readiness().missing, ["connection"]);
        p.registered.send_replace(4);
        p.stale.send_replace(true);
        let (status, body) = get(&p.state, "/ready").await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains(&version) && body.contains("\"readyConnections\":4") && body.contains("\"configStale\":true"));
        p.draining.send_replace(true);
        assert_eq!(p.state.readiness().missing, ["not draining"]);
        let (status, body) = get(&p.state, "/readyz?verbose").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("[+]connections registered: 4\n[-]draining: yes\nnot ready"), "{body}");
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused() {
        let p = probe();
        assert_eq!(get(&p.state, "/healthz").await, (StatusCode::OK, "ok\n".into()));
        assert_eq!(get(&p.state, "/").await.0, StatusCode::NOT_FOUND);
        let post = Request::post("/healthz").body(()).unwrap();
        assert_eq!(answer(&post, &p.state).status(), StatusCode::METHOD_NOT_ALLOWED);
        let (status, metrics) = get(&p.state, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(metrics.contains("cftunnel_proxy_requests_in_flight 0") && metrics.ends_with("# EOF\n"), "{metrics}");
    }

    #[tokio::test]
    async fn it_answers_over_a_socket_until_shut_down() {
        let p = probe();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, p.state, shutdown.clone()));
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
        shutdown.cancel();
        server.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_keeps_no_place() {
        let p = probe();
        let (mut client, socket) = tokio::io::duplex(64);
        let start = tokio::time::Instant::now();
        client.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        connection(socket, &p.state).await;
        assert_eq!(start.elapsed(), LIFE + LAST_RESPONSE);
    }
}
