//! Every protocol that a client may speak reaches the backend, and its answer the client.

use std::sync::Arc;

use cftunnel::proxy::direct::tls::Resumption;
use cftunnel::proxy::direct::{self, Limits};
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request, Version};
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Certificate, Listening, connect_tls, rest, until};
use crate::support::SOON;
use crate::support::client::{Out, full, get, no_body, read, send_h2c, to, within};
use crate::support::origin::{checksum, pattern};

/// The service `test.Echo` and HTTP over one h2 connection.
fn h2(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://app.example.test{path}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_and_h2c_share_a_port_and_the_backend_learns_who_asks() {
    let listening = Listening::start(Limits::default()).await;
    let whole = get(listening.addr, "/bytes/100000?q").await;
    assert_eq!((whole.status, whole.body), (200, pattern(100_000)));
    let seen = listening.origin.last();
    assert_eq!(seen.uri.path_and_query().unwrap(), "/bytes/100000?q");
    for (name, value) in [
        ("host", "app.example.test"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "app.example.test"),
    ] {
        assert_eq!(seen.headers[name], value);
    }
    let response = send_h2c(listening.addr, h2("POST", "/upload").body(full(pattern(300_000))).unwrap()).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    assert_eq!(read(response).await.unwrap().text(), format!("300000 {}", checksum(&pattern(300_000))));
    assert_eq!(listening.origin.last().headers["host"], "app.example.test");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_carries_both_protocols_and_says_so() {
    let certificate = Certificate::new();
    let listening = Listening::with(Limits::default(), Some(certificate.server(Resumption::Tickets))).await;
    for (offered, version) in
        [(&["h2", "http/1.1"][..], Version::HTTP_2), (&["http/1.1"], Version::HTTP_11), (&[], Version::HTTP_11)]
    {
        let tls = connect_tls(listening.addr, &certificate.client(offered)).await;
        let response = if version == Version::HTTP_2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(h2("GET", "/bytes/50000").body(no_body()).unwrap()).await.unwrap()
        } else {
            let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(to("GET", "/bytes/50000").body(no_body()).unwrap()).await.unwrap()
        };
        assert_eq!(response.version(), version);
        assert_eq!(read(response).await.unwrap().body, pattern(50_000));
        assert_eq!(listening.origin.last().headers["x-forwarded-proto"], "https");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_resumed_unless_that_is_switched_off() {
    let certificate = Certificate::new();
    for (resumption, second) in [(Resumption::Tickets, HandshakeKind::Resumed), (Resumption::Off, HandshakeKind::Full)] {
        let listening = Listening::with(Limits::default(), Some(certificate.server(resumption))).await;
        let client = certificate.client(&["http/1.1"]);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut tls = connect_tls(listening.addr, &client).await;
            // The ticket comes after the handshake: with the answer at the latest.
            tls.write_all(b"GET / HTTP/1.1\r\nHost: app.example.test\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            within(SOON, tls.read_to_end(&mut answer)).await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200"));
            kinds.push(tls.get_ref().1.handshake_kind().unwrap());
        }
        assert_eq!(kinds, [HandshakeKind::Full, second], "{resumption:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let listening = Listening::start(Limits::default()).await;
    let mut all = String::new();
    for i in 0..20 {
        // The first ones are the slowest.
        all += &format!("GET /sleep/{} HTTP/1.1\r\nHost: app.example.test\r\nX-N: {i}\r\n\r\n", 20 - i);
        all += &format!("POST /r{i} HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: 3\r\n\r\nabc");
    }
    all += "GET /last HTTP/1.1\r\nHost: app.example.test\r\nConnection: close\r\n\r\n";
    let answers = listening.exchange(all).await;
    let mut at = 0;
    for i in 0..20 {
        let found =
            answers[at..].find(&format!("POST /r{i}\u{0}").replace('\u{0}', "")).unwrap_or_else(|| panic!("{i}: {answers}"));
        at += found;
    }
    assert!(answers.ends_with("GET /last"));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 41);
}

#[tokio::test(flavor = "multi_thread")]
async fn http10_gets_answers_that_it_can_read() {
    let listening = Listening::start(Limits::default()).await;
    let old = |path: &str, field: &str| format!("GET {path} HTTP/1.0\r\nHost: app.example.test\r\n{field}\r\n");
    let answer = listening.exchange(old("/bytes/10", "")).await;
    assert!(answer.starts_with("HTTP/1.0 200 OK") && answer.contains("content-length: 10\r\n"), "{answer}");
    let answer = listening.exchange(old("/chunked/30000", "Connection: keep-alive\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!head.contains("transfer-encoding") && body.len() >= 30_000, "closed where the body ends: {head}");
    let mut socket = listening.connect().await;
    for _ in 0..2 {
        socket.write_all(old("/status/204", "Connection: keep-alive\r\n").as_bytes()).await.unwrap();
        assert!(until(&mut socket, "\r\n\r\n").await.contains("connection: keep-alive"));
    }
    socket.write_all(old("/", "").as_bytes()).await.unwrap();
    assert!(rest(&mut socket).await.ends_with("GET /"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_only_when_somebody_takes_it() {
    let listening = Listening::start(Limits::default()).await;
    let head = |host: &str| {
        format!("POST /upload HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\nExpect: 100-Continue\r\nConnection: close\r\n\r\n")
    };
    let mut socket = listening.connect().await;
    socket.write_all(head("app.example.test").as_bytes()).await.unwrap();
    assert_eq!(until(&mut socket, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"hello").await.unwrap();
    let answer = rest(&mut socket).await;
    assert!(answer.ends_with(&format!("5 {}", checksum(b"hello"))), "{answer}");
    assert!(!listening.origin.last().headers.contains_key("expect"), "this hop has met the expectation");
    let before = listening.requests();
    let refused = listening.exchange(head("bad host")).await;
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    assert_eq!(listening.requests(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_ends_in_trailers() {
    let listening = Listening::start(Limits::default()).await;
    for (method, status) in [("Say", "0"), ("Fail", "5")] {
        let request =
            h2("POST", &format!("/test.Echo/{method}")).header("content-type", "application/grpc").header("te", "trailers");
        let response = send_h2c(listening.addr, request.body(full("message")).unwrap()).await.unwrap();
        let whole = read(response).await.unwrap();
        assert_eq!((whole.status, whole.text()), (200, "message"));
        assert_eq!(whole.trailers.unwrap()["grpc-status"], status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_its_request() {
    let listening = Listening::start(Limits::default()).await;
    let mut socket = listening.connect().await;
    socket.write_all(b"GET /sleep/60000 HTTP/1.1\r\nHost: app.example.test\r\n\r\n").await.unwrap();
    crate::support::eventually("the request arrives", || listening.requests() == 1).await;
    drop(socket);
    crate::support::eventually("it is canceled", || listening.origin.canceled() == 1).await;
}

const WEBSOCKET: &str = "GET /ws HTTP/1.1\r\nHost: app.example.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn websocket_by_upgrade() {
    let listening = Listening::start(Limits::default()).await;
    let mut socket = listening.connect().await;
    socket.write_all(WEBSOCKET.as_bytes()).await.unwrap();
    let head = until(&mut socket, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    // The key of RFC 6455 §1.3 and its proof, made by the backend.
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    let mut ws = WebSocketStream::from_raw_socket(socket, Role::Client, None).await;
    for message in [Message::text("hello"), Message::binary(pattern(100_000))] {
        ws.send(message.clone()).await.unwrap();
        assert_eq!(within(SOON, ws.next()).await.unwrap().unwrap(), message);
    }
    assert_eq!(listening.direct.connections(), 1, "a session holds its place");
    ws.send(Message::text("vanish")).await.unwrap();
    assert!(within(SOON, ws.next()).await.is_none_or(|end| end.is_err()), "the backend's end is the client's");
    crate::support::eventually("the place is free", || listening.direct.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_upgrade_is_an_ordinary_answer() {
    let listening = Listening::start(Limits::default()).await;
    let asked = WEBSOCKET.replace("/ws", "/status/403").replace("keep-alive, ", "");
    let mut socket = listening.connect().await;
    for _ in 0..2 {
        socket.write_all(asked.as_bytes()).await.unwrap();
        let head = until(&mut socket, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 403") && head.contains("x-origin: yes"), "{head}");
    }
    let other = "GET /plain HTTP/1.1\r\nHost: app.example.test\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n";
    assert!(listening.exchange(other).await.ends_with("GET /plain"), "an upgrade that nobody offers is left out");
    assert!(!listening.origin.last().headers.contains_key("upgrade"));
}

#[tokio::test(flavor = "multi_thread")]
async fn websocket_by_extended_connect() {
    let listening = Listening::start(Limits::default()).await;
    let tcp = listening.connect().await;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    // The first answer comes with the settings that allow it.
    let first = sender.send_request(h2("GET", "/").body(no_body()).unwrap()).await.unwrap();
    first.into_body().collect().await.unwrap();
    let mut request: Request<Out> = h2("CONNECT", "/ws").header("sec-websocket-version", "13").body(no_body()).unwrap();
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    let response = within(SOON, sender.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("sec-websocket-accept"));
    let io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut ws = WebSocketStream::from_raw_socket(io, Role::Client, None).await;
    ws.send(Message::text("over h2")).await.unwrap();
    assert_eq!(within(SOON, ws.next()).await.unwrap().unwrap(), Message::text("over h2"));
    assert_eq!(listening.origin.last().method, Method::GET);
    // The connection carries on beside the session.
    let next = sender.send_request(h2("GET", "/next").body(no_body()).unwrap()).await.unwrap();
    assert_eq!(read(next).await.unwrap().text(), "GET /next");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_while_the_configuration_changes() {
    let listening = Listening::start(Limits::default()).await;
    let tcp = listening.connect().await;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    let mut ask = async |path: &str| {
        sender.ready().await.unwrap();
        let response = sender.send_request(to("GET", path).body(no_body()).unwrap()).await.unwrap();
        read(response).await.unwrap()
    };
    assert_eq!(ask("/one").await.status, 200);
    let config = crate::support::routes(listening.origin.addr, true);
    let empty = cftunnel::gateway::ir::RouteConfig { routes: vec![], ..config.clone() };
    listening.plane.apply(&empty).unwrap();
    assert_eq!(ask("/two").await.status, 404);
    listening.plane.apply(&config).unwrap();
    assert_eq!(ask("/three").await.text(), "GET /three");
    assert_eq!(listening.direct.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_sockets_share_a_port_and_no_stranger_does() {
    let listening = Listening::start(Limits::default()).await;
    let taken = direct::bind(listening.addr, 2).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let sockets = direct::bind(([127, 0, 0, 1], 0).into(), 3).unwrap();
    let addr = sockets[0].local_addr().unwrap();
    for socket in sockets {
        assert_eq!(socket.local_addr().unwrap(), addr);
        let socket = tokio::net::TcpListener::from_std(socket).unwrap();
        tokio::spawn(Arc::clone(&listening.direct).serve(socket, None));
    }
    for _ in 0..10 {
        assert_eq!(get(addr, "/").await.status, 200);
    }
}
