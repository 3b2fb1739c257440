//! The clients' side: HTTP/1.1 and h2c, with WebSocket and gRPC over them. Makes of a client's request what the real edge makes
//! of it, and of what comes back what a client may see.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use super::link::{Exchange, Head, Length, LinkError, TunnelResponse, Upload};
use super::relay::{ResponseBody, pump, splice};
use super::session::{EventKind, InFlight};

/// How long a client may take for a request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// Most bytes of a request's head.
const MAX_HEAD: usize = 128 * 1024;
/// What the real edge answers when a tunnel has no connection.
const NO_CONNECTION: u16 = 530;

/// Number of the next request, for its `cf-ray`.
static RAY: AtomicU64 = AtomicU64::new(1);

pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(4096)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .max_header_list_size(MAX_HEAD as u32)
        .max_pending_accept_reset_streams(4096)
        .max_local_error_reset_streams(None);
    let builder = Arc::new(builder);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.closing.cancelled() => return,
        };
        match accepted {
            Ok((tcp, peer)) => drop(shared.tasks.spawn(serve(Arc::clone(&shared), Arc::clone(&builder), tcp, peer))),
            // Out of descriptors, most likely: wait for some to come free.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(shared: Arc<Shared>, builder: Arc<auto::Builder<TokioExecutor>>, tcp: TcpStream, peer: SocketAddr) {
    let _ = tcp.set_nodelay(true);
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(shared, request, peer).await) }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tcp), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // An error is a client that left or a response that was cut; both are dealt with where they show.
        _ = &mut connection => return,
        () = shared.closing.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = shared.stop.cancelled() => {}
    }
}

/// Answers one request, through whichever connection is next.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>, peer: SocketAddr) -> Response<ResponseBody> {
    let ray = format!("{:016x}-LOC", RAY.fetch_add(1, Ordering::Relaxed));
    let mut response = match tunnel(&shared, request, peer, &ray).await {
        Ok(response) => response,
        Err(Failure::Request(reason)) => plain(400, format!("bad request: {reason}\n")),
        Err(Failure::NoConnection) => plain(NO_CONNECTION, "error code: 1033\n"),
        Err(Failure::Link(reason, in_flight)) => {
            let mut response = plain(502, format!("error code: 502\n{reason}\n"));
            name_connection(response.headers_mut(), &in_flight);
            response
        }
    };
    if let Ok(ray) = HeaderValue::try_from(ray) {
        response.headers_mut().insert("cf-ray", ray);
    }
    response
}

/// Why there is no answer from a backend.
enum Failure {
    Request(&'static str),
    NoConnection,
    /// Why, and the request that it came to.
    Link(String, Box<InFlight>),
}

async fn tunnel(
    shared: &Arc<Shared>,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    ray: &str,
) -> Result<Response<ResponseBody>, Failure> {
    let head = head(&request, peer, ray).map_err(Failure::Request)?;
    tokio::time::sleep(shared.faults.request_delay()).await;
    let Some(in_flight) = InFlight::begin(shared) else {
        shared.sessions.record(EventKind::NoConnection);
        return Err(Failure::NoConnection);
    };
    let failed = |error: LinkError, in_flight: InFlight| {
        in_flight.failed(error.to_string());
        Failure::Link(error.to_string(), Box::new(in_flight))
    };
    let websocket = head.websocket;
    let Exchange { upload, answer } = match in_flight.link.begin(head).await {
        Ok(exchange) => exchange,
        Err(error) => return Err(failed(error, in_flight)),
    };
    if websocket {
        let answer = match answer.head().await {
            Ok(answer) => answer,
            Err(error) => return Err(failed(error, in_flight)),
        };
        return Ok(match upload {
            Some(upload) if answer.switched => switch(shared, &mut request, in_flight, answer, upload),
            upload => {
                // Ended, not dropped: a reset would take the refusal's body with it.
                upload.into_iter().for_each(Upload::finish);
                relay(shared, in_flight, answer, None)
            }
        });
    }
    let body = request.into_body();
    let upload = upload.map(|upload| AbortOnDropHandle::new(tokio::spawn(pump(body, upload))));
    match answer.head().await {
        Ok(answer) => Ok(relay(shared, in_flight, answer, upload)),
        Err(error) => Err(failed(error, in_flight)),
    }
}

/// A response that is passed on as it comes.
fn relay(
    shared: &Shared,
    in_flight: InFlight,
    mut answer: TunnelResponse,
    upload: Option<AbortOnDropHandle<()>>,
) -> Response<ResponseBody> {
    strip_hop(&mut answer.headers);
    name_connection(&mut answer.headers, &in_flight);
    let kill = shared.faults.take_kill();
    let body = ResponseBody::tunnelled(answer.body, in_flight, kill, upload);
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// A response that switches protocols, and the task that passes the bytes on afterwards.
fn switch(
    shared: &Arc<Shared>,
    request: &mut Request<Incoming>,
    in_flight: InFlight,
    mut answer: TunnelResponse,
    upload: Upload,
) -> Response<ResponseBody> {
    strip_hop(&mut answer.headers);
    name_connection(&mut answer.headers, &in_flight);
    answer.headers.remove(header::CONTENT_LENGTH);
    answer.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let upgraded = hyper::upgrade::on(request);
    let stop = shared.stop.clone();
    shared.tasks.spawn(async move {
        let Ok(client) = upgraded.await else { return };
        let spliced = tokio::select! {
            spliced = splice(TokioIo::new(client), upload, answer.body) => spliced,
            () = stop.cancelled() => return,
        };
        if let Err(error) = spliced {
            in_flight.cut(error.to_string());
        }
    });
    let mut response = Response::new(ResponseBody::own(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers;
    response
}

/// The request as it goes into the tunnel.
fn head(request: &Request<Incoming>, peer: SocketAddr, ray: &str) -> Result<Head, &'static str> {
    if request.method() == Method::CONNECT {
        return Err("this is no forward proxy");
    }
    let authority = authority(request)?;
    let target = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let websocket = is_websocket(request);
    let mut headers = request.headers().clone();
    let body = match request.body().size_hint().exact() {
        Some(0) => Length::None,
        Some(length) => Length::Known(length),
        None => Length::Unknown,
    };
    let declared_empty = body == Length::None && headers.contains_key(header::CONTENT_LENGTH);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::HOST);
    let trailers = headers.get(header::TE).is_some_and(|te| te.to_str().is_ok_and(|te| te.contains("trailers")));
    strip_hop(&mut headers);
    strip_tunnel(&mut headers);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if declared_empty {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    add_forwarding(&mut headers, peer, ray);
    Ok(Head { method: request.method().clone(), authority, target, headers, body, websocket })
}

/// The host that the client asks for: exactly one, and one that a URL can hold (RFC 9112 §3.2).
fn authority(request: &Request<Incoming>) -> Result<Authority, &'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, more) = (hosts.next(), hosts.next());
    if more.is_some() {
        return Err("more than one host");
    }
    let authority = match (request.uri().authority(), host) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => Authority::try_from(host.as_bytes()).map_err(|_| "the host is malformed")?,
        (None, None) => return Err("no host"),
    };
    if authority.as_str().contains('@') { Err("a host with user information") } else { Ok(authority) }
}

fn is_websocket(request: &Request<Incoming>) -> bool {
    let lists = |name, token: &str| {
        request
            .headers()
            .get_all(name)
            .iter()
            .any(|value| value.to_str().is_ok_and(|v| v.split(',').any(|t| t.trim().eq_ignore_ascii_case(token))))
    };
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && lists(header::UPGRADE, "websocket")
        && lists(header::CONNECTION, "upgrade")
}

/// Removes what belongs to one hop (RFC 9110 §7.6.1), named in `connection` or by itself.
fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in ["connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "transfer-encoding", "upgrade"] {
        headers.remove(name);
    }
}

/// Removes the tunnel's own headers: a client must not open a control stream.
fn strip_tunnel(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with("cf-cloudflared-")).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

/// Adds what the real edge adds (X27). The scheme is the one the client really used.
fn add_forwarding(headers: &mut HeaderMap, peer: SocketAddr, ray: &str) {
    let ip = peer.ip().to_canonical().to_string();
    append_list(headers, "x-forwarded-for", &ip);
    append_list(headers, "cdn-loop", "cloudflare; loops=1");
    let set = [
        ("x-forwarded-proto", "http"),
        ("cf-connecting-ip", &ip),
        ("cf-ray", ray),
        ("cf-ipcountry", "XX"),
        ("cf-visitor", r#"{"scheme":"http"}"#),
    ];
    for (name, value) in set {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Appends to a list that may be spread over several fields, and leaves one field.
fn append_list(headers: &mut HeaderMap, name: &'static str, value: &str) {
    let mut list: Vec<u8> = Vec::new();
    for part in headers.get_all(name).iter().map(HeaderValue::as_bytes).chain([value.as_bytes()]) {
        if !list.is_empty() {
            list.extend_from_slice(b", ");
        }
        list.extend_from_slice(part);
    }
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(HeaderName::from_static(name), list);
    }
}

/// Says through which connection the response came, or failed to come, for people and tests.
fn name_connection(headers: &mut HeaderMap, in_flight: &InFlight) {
    if let Ok(value) = HeaderValue::try_from(format!("{}/{}", in_flight.transport, in_flight.index)) {
        headers.insert("x-cftunnel-connection", value);
    }
    if let Ok(value) = HeaderValue::try_from(in_flight.id.to_string()) {
        headers.insert("x-cftunnel-connection-id", value);
    }
}

fn plain(status: u16, text: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::own(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
