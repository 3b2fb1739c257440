//! The edge's side is a quinn server on loopback.

use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{ReadToEndError, RecvStream, SendStream, ServerConfig};
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use super::*;
use crate::proxy::connector::tests::{App, OnDrop, app, body};
use crate::proxy::connector::wire::message::Limits;
use crate::proxy::connector::wire::rpc::{ConfigurationClient, ConfigurationClientEvent};
use crate::proxy::connector::wire::stream::{ConnectKind, ConnectRequest, ConnectResponse, RPC_SIGNATURE};
use crate::proxy::http::{Body, Inbound, Upgraded, Via};

pub(super) struct Edge {
    pub(super) connection: Connection,
    pub(super) link: Link,
    _endpoint: Endpoint,
}

fn server() -> (Endpoint, Roots) {
    let key = rcgen::generate_simple_self_signed(vec![tls::server_name_text(Transport::Quic).to_owned()]).expect("a key");
    let roots = Roots::from_pem(key.cert.pem().as_bytes(), "test").expect("roots");
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key");
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .expect("a certificate");
    tls.alpn_protocols = vec![b"argotunnel".to_vec()];
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).expect("ciphers")));
    (Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).expect("a server"), roots)
}

pub(super) async fn connect(streams: Streams<App>) -> Edge {
    let (endpoint, roots) = server();
    let settings = Settings::new(&roots, true).expect("settings");
    let sockets = Sockets::default();
    let address = endpoint.local_addr().expect("an address");
    let accept = async { endpoint.accept().await.expect("a client").await.expect("a connection") };
    let (link, connection) = tokio::join!(dial(address, &settings, &sockets, streams), accept);
    Edge { connection, link: link.expect("a link"), _endpoint: endpoint }
}

pub(super) fn head(kind: ConnectKind, dest: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
    let base = [("HttpMethod", "POST"), ("HttpHost", "app.example.test")];
    let pair = |(k, v): &(&str, &str)| ((*k).to_owned(), Bytes::from((*v).to_owned()));
    let base = base.iter().filter(|(key, _)| pairs.iter().all(|(k, _)| k != key));
    let metadata = base.chain(pairs).map(pair).collect();
    ConnectRequest { dest: dest.into(), kind, metadata }.encode().expect("a head")
}

impl Edge {
    /// Opens a stream with these bytes; more can follow.
    pub(super) async fn open(&self, bytes: &[u8]) -> (SendStream, RecvStream) {
        let (mut send, recv) = self.connection.open_bi().await.expect("a stream");
        send.write_all(bytes).await.expect("sent");
        (send, recv)
    }

    pub(super) async fn call(
        &self,
        kind: ConnectKind,
        dest: &str,
        pairs: &[(&str, &str)],
        body: &[u8],
    ) -> (ConnectResponse, Vec<u8>) {
        let (mut send, mut recv) = self.open(&[&head(kind, dest, pairs), body].concat()).await;
        send.finish().expect("finished");
        let (response, mut rest) = response(&mut recv).await;
        rest.extend(recv.read_to_end(1 << 24).await.expect("a complete body"));
        (response, rest.to_vec())
    }
}

pub(super) async fn response(recv: &mut RecvStream) -> (ConnectResponse, BytesMut) {
    let mut buffer = BytesMut::new();
    loop {
        if let Some(response) = ConnectResponse::take(&mut buffer, &Limits::DEFAULT).expect("a response") {
            return (response, buffer);
        }
        let chunk = recv.read_chunk(1 << 16, true).await.expect("read").expect("more");
        buffer.extend_from_slice(&chunk.bytes);
    }
}

pub(super) fn metadata<'a>(response: &'a ConnectResponse, key: &str) -> Vec<&'a [u8]> {
    response.metadata.iter().filter(|(k, _)| k == key).map(|(_, v)| &v[..]).collect()
}

/// Answers with what it was sent.
fn echo() -> Streams<App> {
    app(|inbound: Inbound, request: Request<Body>| async move {
        assert!(matches!(inbound.via, Via::Tunnel { connection: 1, trailers: false }));
        let head = format!("{} {} {}\n", inbound.authority, request.method(), request.uri());
        match request.into_body().collect().await {
            Ok(body) => Response::new(Body::full([head.as_bytes(), &body.to_bytes()].concat())),
            Err(error) => Response::builder().status(400).body(Body::full(error.to_string())).expect("a response"),
        }
    })
}

#[tokio::test]
async fn requests_come_whole_and_responses_go_back() {
    let edge = connect(echo()).await;
    let chunked = [("HttpHeader:Transfer-Encoding", "chunked")];
    let length = [("HttpHeader:Content-Length", "5")];
    for (pairs, body, seen) in [
        (&[][..], &b""[..], &b""[..]),
        (&chunked, b"hello", b"hello"),
        (&length, b"hello", b"hello"),
        // By the protocol's rule there is no body without a length.
        (&[], b"hello", b""),
    ] {
        let (response, answer) = edge.call(ConnectKind::Http, "https://app.example.test/a%2fb?q=1", pairs, body).await;
        assert_eq!(response.error, "");
        assert_eq!(metadata(&response, "HttpStatus"), [b"200"]);
        assert_eq!(answer, [b"app.example.test POST /a%2fb?q=1\n", seen].concat());
        assert_eq!(metadata(&response, "HttpHeader:content-length"), [answer.len().to_string().as_bytes()]);
    }
    let big = vec![7; 8 << 20];
    let (_, answer) = edge.call(ConnectKind::Http, "/", &chunked, &big).await;
    assert!(answer.ends_with(&big), "{} bytes", answer.len());
}

#[tokio::test]
async fn a_body_of_another_length_than_declared_is_an_error() {
    let edge = connect(echo()).await;
    let length = [("HttpHeader:Content-Length", "5")];
    for (body, error) in
        [(&b"hell"[..], "1 bytes of the declared length are missing"), (b"hello!", "more bytes than the declared length")]
    {
        let (response, answer) = edge.call(ConnectKind::Http, "/", &length, body).await;
        assert_eq!(metadata(&response, "HttpStatus"), [b"400"]);
        assert_eq!(String::from_utf8_lossy(&answer), error);
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_an_error_or_a_status() {
    let edge = connect(app(|_, _| async { panic!("on purpose") })).await;
    let (tcp, _) = edge.call(ConnectKind::Tcp, "10.0.0.1:22", &[], b"").await;
    assert_eq!(tcp.error, "tcp flows are not served by this connector");
    let (bad, _) = edge.call(ConnectKind::Http, "/", &[("HttpHeader:Content-Length", "x")], b"").await;
    assert_eq!((bad.error.as_str(), &metadata(&bad, "HttpStatus")[..]), ("", &[&b"400"[..]][..]));
    let (panicked, _) = edge.call(ConnectKind::Http, "/", &[], b"").await;
    assert_eq!((panicked.error.as_str(), &metadata(&panicked, "HttpStatus")[..]), ("", &[&b"502"[..]][..]));
    let (management, _) = edge.call(ConnectKind::Http, "/", &[("HttpHost", "management.argotunnel.com")], b"").await;
    assert_eq!(metadata(&management, "HttpStatus"), [b"404"]);
}

#[tokio::test]
async fn unknown_streams_and_garbage_are_reset_alone() {
    let edge = connect(echo()).await;
    let signed = |rest: &[u8]| [&b"\x0a\x36\xcd\x12\xa1\x3e01"[..], rest].concat();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &signed(&[0xff; 64]), &signed(&[0; 4096]), &[0; 64], &[0x52, 0xbb, 0]] {
        let (_send, mut recv) = edge.open(bytes).await;
        let end = timeout(Duration::from_secs(5), recv.read_to_end(1024)).await.expect("not left open");
        assert!(matches!(end, Err(ReadToEndError::Read(quinn::ReadError::Reset(_)))), "{bytes:?}: {end:?}");
    }
    let (mut send, mut recv) = edge.open(&signed(b"\0\0")).await;
    send.finish().expect("finished");
    assert!(recv.read_to_end(1024).await.is_err(), "an end inside the head");
    let (response, _) = edge.call(ConnectKind::Http, "/", &[], b"").await;
    assert_eq!(metadata(&response, "HttpStatus"), [b"200"], "the connection is none the worse");
}

#[tokio::test]
async fn a_body_that_fails_is_no_complete_body_and_trailers_are_left_out() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let mut writers = Vec::new();
    for _ in 0..2 {
        let (writer, body) = body().await;
        writers.push(writer);
        bodies.lock().expect("not poisoned").push(body);
    }
    let edge = connect(app(move |_, _| {
        let body = bodies.lock().expect("not poisoned").remove(0);
        async move { Response::new(body) }
    }))
    .await;
    for (i, writer) in writers.iter_mut().enumerate() {
        let (_send, mut recv) = edge.open(&head(ConnectKind::Http, "/", &[])).await;
        let (_, mut got) = response(&mut recv).await;
        writer.send_data(Bytes::from_static(b"part"), false).expect("sent");
        while got.len() < 4 {
            got.extend_from_slice(&recv.read_chunk(64, true).await.expect("read").expect("more").bytes);
        }
        if i == 0 {
            writer.send_reset(h2::Reason::INTERNAL_ERROR);
            assert!(recv.read_to_end(64).await.is_err(), "a truncated body must not look complete");
        } else {
            let trailers = [(header::ETAG, HeaderValue::from_static("x"))].into_iter().collect();
            writer.send_trailers(trailers).expect("sent");
            assert_eq!(recv.read_to_end(64).await.expect("complete"), b"");
        }
    }
}

#[tokio::test]
async fn heads_that_never_end_hold_little_and_stop_nobody_else() {
    use crate::proxy::connector::stream::LARGE_HEADS;
    let edge = connect(echo()).await;
    let large = "x".repeat(60_000);
    let whole = head(ConnectKind::Http, "/", &[("HttpHeader:X", large.as_str())]);
    let mut stuck = Vec::new();
    for _ in 0..LARGE_HEADS {
        stuck.push(edge.open(&whole[..40_000]).await);
    }
    let (response, _) = edge.call(ConnectKind::Http, "/", &[], b"").await;
    assert_eq!(metadata(&response, "HttpStatus"), [b"200"]);
    // The connector takes places as it comes to read the heads: until then another one still finds a place.
    let mut waiting = None;
    for _ in 0..50 {
        let (send, mut recv) = edge.open(&whole).await;
        if timeout(Duration::from_millis(200), recv.read_chunk(64, true)).await.is_err() {
            waiting = Some((send, recv));
            break;
        }
    }
    let (_send, mut recv) = waiting.expect("there is no place for another large head");
    stuck.clear();
    let (served, _) = timeout(Duration::from_secs(5), self::response(&mut recv)).await.expect("places come free");
    assert_eq!(metadata(&served, "HttpStatus"), [b"200"]);
}

#[tokio::test]
async fn an_edge_that_stops_a_response_or_resets_the_request_cancels_it() {
    for stop in [true, false] {
        let (dropped, seen) = tokio::sync::oneshot::channel();
        let guard = Mutex::new(Some(OnDrop(Some(dropped))));
        let edge = connect(app(move |_, _| {
            let guard = guard.lock().expect("not poisoned").take();
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        }))
        .await;
        let (mut send, mut recv) = edge.open(&head(ConnectKind::Http, "/slow", &[])).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if stop {
            recv.stop(VarInt::from_u32(0)).expect("stopped");
        } else {
            send.reset(VarInt::from_u32(0)).expect("reset");
        }
        timeout(Duration::from_secs(5), seen).await.expect("cancelled at once").expect("dropped");
        timeout(Duration::from_secs(5), edge.link.idle()).await.expect("the stream is over");
    }
}

#[tokio::test]
async fn a_websocket_keeps_its_101_and_copies_both_ways() {
    let edge = connect(app(|inbound: Inbound, _| async move {
        assert!(inbound.websocket);
        let (near, mut far) = duplex(64);
        tokio::spawn(async move {
            let mut buffer = [0; 10];
            far.read_exact(&mut buffer).await.expect("read");
            far.write_all(&buffer).await.expect("written");
            far.shutdown().await.expect("ended");
        });
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.extensions_mut().insert(Upgraded::new(near));
        response
    }))
    .await;
    // The first bytes come right behind the head.
    let (mut send, mut recv) = edge.open(&[&head(ConnectKind::Websocket, "/ws", &[])[..], b"hello"].concat()).await;
    let (response, mut echoed) = response(&mut recv).await;
    assert_eq!(metadata(&response, "HttpStatus"), [b"101"]);
    send.write_all(b"again").await.expect("sent");
    echoed.extend(recv.read_to_end(64).await.expect("a clean end"));
    assert_eq!(&echoed[..], b"helloagain");
}

#[tokio::test]
async fn configuration_pushes_are_acknowledged_on_rpc_streams() {
    let edge = connect(echo()).await;
    for (version, applied) in [(7, 7), (3, 7)] {
        let mut client = ConfigurationClient::new();
        let call = client.start(version, b"{}").expect("a call");
        let (mut send, mut recv) = edge.open(&[&RPC_SIGNATURE[..], &call].concat()).await;
        let answer = loop {
            let chunk = recv.read_chunk(4096, true).await.expect("read").expect("more");
            if let Some(event) = client.receive(&chunk.bytes).expect("an answer").pop() {
                break event;
            }
            send.write_all(&client.take_output()).await.expect("sent");
        };
        assert!(
            matches!(&answer, ConfigurationClientEvent::Answered { latest_applied, error } if *latest_applied == applied && error.is_empty()),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn datagrams_are_dropped_and_the_control_stream_is_the_first_one() {
    let mut edge = connect(echo()).await;
    for _ in 0..200 {
        edge.connection.send_datagram(Bytes::from_static(&[0; 100])).expect("sent");
    }
    let mut control = edge.link.control_stream().await.expect("a control stream");
    control.write_all(b"bootstrap").await.expect("written");
    let (_send, mut recv) = edge.connection.accept_bi().await.expect("a stream");
    let mut seen = [0; 9];
    recv.read_exact(&mut seen).await.expect("read");
    assert_eq!((&seen, recv.id().index()), (b"bootstrap", 0));
    edge.link.close(Duration::ZERO).await;
    let end = timeout(Duration::from_secs(5), edge.connection.closed()).await.expect("closed");
    assert!(matches!(end, quinn::ConnectionError::ApplicationClosed(close) if close.error_code == VarInt::from_u32(0)));
}

#[tokio::test]
async fn the_local_port_is_kept_over_reconnects() {
    let (endpoint, roots) = server();
    let (settings, sockets) = (Settings::new(&roots, false).expect("settings"), Sockets::default());
    let address = endpoint.local_addr().expect("an address");
    let mut ports = Vec::new();
    for _ in 0..2 {
        let accept = async { endpoint.accept().await.expect("a client").await.expect("a connection") };
        let (link, connection) = tokio::join!(dial(address, &settings, &sockets, echo()), accept);
        ports.push(connection.remote_address().port());
        link.expect("a link").close(Duration::ZERO).await;
    }
    assert_eq!(ports[0], ports[1]);
    let accept = async { endpoint.accept().await.expect("a client").await.expect("a connection") };
    let (probed, _connection) = tokio::join!(probe(address, &settings, &sockets), accept);
    assert!(probed.is_ok());
}

#[tokio::test]
async fn silent_udp_fails_in_three_seconds_and_a_stranger_is_not_trusted() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let (endpoint, _) = server();
    let (_, other_roots) = server();
    let (settings, sockets) = (Settings::new(&other_roots, true).expect("settings"), Sockets::default());
    let started = tokio::time::Instant::now();
    let error = dial(silent.local_addr().expect("an address"), &settings, &sockets, echo()).await.map(drop);
    assert_eq!(error.expect_err("silence").to_string(), "no quic handshake with the edge within 3s");
    assert!(started.elapsed() < Duration::from_millis(3500));
    let address = endpoint.local_addr().expect("an address");
    let accept = tokio::spawn(async move { endpoint.accept().await.expect("a client").await.map(drop) });
    let error = dial(address, &settings, &sockets, echo()).await.map(drop).expect_err("another authority");
    assert!(error.to_string().contains("certificate"), "{error}");
    drop(accept.await);
}
