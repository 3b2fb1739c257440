//! Connectors of another make, some of them broken, at the built-in edge. Written with the wire formats alone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cftunnel::edge::{ConfigAck, Edge, EventKind, State, Transport};
use cftunnel::proxy::connector::wire::message::Limits;
use cftunnel::proxy::connector::wire::registration::{ClientInfo, ConnectionOptions, ConnectionResponse, Registration};
use cftunnel::proxy::connector::wire::rpc::{
    ConfigurationEvent, ConfigurationServer, RegistrationClient, RegistrationClientEvent,
};
use cftunnel::proxy::connector::wire::stream::{ConnectResponse, Opening};
use cftunnel::proxy::connector::wire::{WireError, headers};
use http::{Response, StatusCode};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::task::JoinHandle;

use crate::support::client::{get, no_body, read, send, to, within};
use crate::support::{SOON, Setup};

fn registration(edge: &Edge) -> Registration {
    let token = edge.token();
    Registration {
        account_tag: token.account_tag.clone(),
        tunnel_secret: token.secret.clone(),
        tunnel_id: token.tunnel_id,
        conn_index: 9,
        options: ConnectionOptions {
            client: ClientInfo { version: "foreign 1".into(), arch: "plan9_mips".into(), ..ClientInfo::default() },
            num_previous_attempts: 3,
            ..ConnectionOptions::default()
        },
    }
}

fn tls(edge: &Edge, alpn: &[&[u8]]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(edge.ca_pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    config
}

fn registered(events: Result<Vec<RegistrationClientEvent>, WireError>) -> bool {
    let registered =
        |e: &RegistrationClientEvent| matches!(e, RegistrationClientEvent::Registered(ConnectionResponse::Details { .. }));
    events.unwrap().iter().any(registered)
}

/// Dials the edge, offering `h2` by ALPN as some do, and serves until the task is dropped.
async fn http2(edge: &Edge) -> JoinHandle<()> {
    let tcp = tokio::net::TcpStream::connect(edge.tunnel_addr()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls(edge, &[b"h2"])));
    let tls = connector.connect(ServerName::try_from("h2.cftunnel.com").unwrap(), tcp).await.unwrap();
    let registration = registration(edge);
    tokio::spawn(async move {
        let mut server = h2::server::handshake(tls).await.unwrap();
        while let Some(Ok((request, respond))) = server.accept().await {
            let upgrade = request.headers().get(headers::UPGRADE).map(|v| v.as_bytes().to_vec());
            let registration = registration.clone();
            tokio::spawn(async move {
                match upgrade.as_deref() {
                    Some(b"control-stream") => control(request.into_body(), respond, registration).await,
                    Some(b"update-configuration") => configuration(respond),
                    _ => answer_http2(request.uri().path(), respond).await,
                }
            });
        }
    })
}

async fn control(mut body: h2::RecvStream, mut respond: h2::server::SendResponse<Bytes>, registration: Registration) {
    let mut out = respond.send_response(Response::new(()), false).unwrap();
    let mut client = RegistrationClient::new();
    out.send_data(client.start(&registration).unwrap().into(), false).unwrap();
    while let Some(Ok(bytes)) = body.data().await {
        registered(client.receive(&bytes));
        out.send_data(client.take_output().into(), false).unwrap();
    }
}

/// An error that is no text, as the usual connector sends it.
fn configuration(mut respond: h2::server::SendResponse<Bytes>) {
    let mut out = respond.send_response(Response::new(()), false).unwrap();
    out.send_data(r#"{"lastAppliedVersion":4,"err":{"Value":"number"}}"#.into(), true).unwrap();
}

async fn answer_http2(path: &str, mut respond: h2::server::SendResponse<Bytes>) {
    let response = Response::builder();
    match path {
        "/plain" => {
            let response = response.header("content-length", "5").body(()).unwrap();
            respond.send_response(response, false).unwrap().send_data("plain".into(), true).unwrap();
        }
        "/malformed" => {
            let response = response.header(headers::RESPONSE_HEADERS, "YQ:***").body(()).unwrap();
            respond.send_response(response, true).unwrap();
        }
        "/refused" => {
            let response = response.status(StatusCode::BAD_GATEWAY).header(headers::RESPONSE_META, headers::META_CONNECTOR);
            respond.send_response(response.body(()).unwrap(), true).unwrap();
        }
        "/cut" => {
            let mut out = respond.send_response(Response::new(()), false).unwrap();
            out.send_data("a part".into(), false).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            out.send_reset(h2::Reason::INTERNAL_ERROR);
        }
        _ => respond.send_reset(h2::Reason::INTERNAL_ERROR),
    }
}

#[tokio::test]
async fn over_http2() {
    let edge = Setup::edge().await;
    let connector = http2(&edge).await;
    assert!(edge.wait_until(SOON, |s| s.live().count() == 1).await, "{:#?}", edge.state());
    let session = edge.state().sessions.remove(0);
    assert_eq!((session.transport, session.index, session.previous_attempts), (Transport::Http2, 9, 3));
    assert_eq!((session.version.as_str(), session.arch.as_str()), ("foreign 1", "plan9_mips"));
    assert_eq!(session.alpn.as_deref(), Some("h2"));
    let clients = edge.client_addr();
    for (path, status, body) in
        [("/plain", 200, Some("plain")), ("/malformed", 502, None), ("/refused", 502, Some("")), ("/reset", 502, None)]
    {
        let whole = get(clients, path).await;
        assert_eq!(whole.status, status, "{path}: {whole:?}");
        assert!(body.is_none_or(|b| b == whole.text()), "{path}: {whole:?}");
    }
    cut(clients, "/cut").await;
    edge.push_config(5, "{}");
    let ack = ConfigAck { sent: 5, applied: Ok(4), error: r#"{"Value":"number"}"#.into() };
    assert!(edge.wait_until(SOON, |s| acked(s, &ack)).await, "{:#?}", edge.state());
    connector.abort();
    assert!(edge.wait_until(SOON, |s| s.sessions.is_empty()).await, "{:#?}", edge.state());
}

fn acked(state: &State, ack: &ConfigAck) -> bool {
    state.live().all(|s| s.config_ack.as_ref() == Some(ack))
}

/// The client must not take a part for the whole.
async fn cut(clients: SocketAddr, path: &str) {
    // A cut that is quick enough takes the head along.
    if let Ok(response) = within(SOON, send(clients, to("GET", path).body(no_body()).unwrap())).await {
        assert!(within(SOON, read(response)).await.is_err(), "{path}");
    }
}

async fn quic(edge: &Edge) -> JoinHandle<()> {
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls(edge, &[b"argotunnel"])).unwrap();
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let connection = endpoint.connect_with(config, edge.tunnel_addr(), "quic.cftunnel.com").unwrap().await.unwrap();
    let registration = registration(edge);
    tokio::spawn(async move {
        let _endpoint = endpoint;
        let mut client = RegistrationClient::new();
        let (mut out, mut input) = connection.open_bi().await.unwrap();
        out.write_all(&client.start(&registration).unwrap()).await.unwrap();
        let control = async {
            while let Ok(Some(chunk)) = input.read_chunk(4096, true).await {
                registered(client.receive(&chunk.bytes));
                out.write_all(&client.take_output()).await.unwrap();
            }
        };
        let streams = async {
            while let Ok((send, receive)) = connection.accept_bi().await {
                tokio::spawn(stream(send, receive));
            }
        };
        tokio::join!(control, streams);
    })
}

async fn stream(mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
    let mut buffer = BytesMut::new();
    let opening = loop {
        if let Some(opening) = Opening::take(&mut buffer, &Limits::DEFAULT).unwrap() {
            break opening;
        }
        let Ok(Some(chunk)) = receive.read_chunk(4096, true).await else { return };
        buffer.extend_from_slice(&chunk.bytes);
    };
    match opening {
        Opening::Rpc => configuration_quic(buffer, send, receive).await,
        Opening::Request(request) => answer_quic(request.dest.rsplit('/').next().unwrap_or_default(), &mut send).await,
    }
}

async fn configuration_quic(buffer: BytesMut, mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
    let mut server = ConfigurationServer::new();
    let mut bytes = buffer.freeze();
    loop {
        for event in server.receive(&bytes).unwrap() {
            if let ConfigurationEvent::UpdateConfiguration { call, version, .. } = event {
                let answer = server.answer(call, version - 1, Some("not yet")).unwrap();
                send.write_all(&answer).await.unwrap();
            }
        }
        send.write_all(&server.take_output()).await.unwrap();
        let Ok(Some(chunk)) = receive.read_chunk(4096, true).await else { return };
        bytes = chunk.bytes;
    }
}

async fn answer_quic(what: &str, send: &mut quinn::SendStream) {
    let head = |metadata: &[(&str, &'static str)], error: &str| {
        let metadata = metadata.iter().map(|(k, v)| ((*k).to_owned(), Bytes::from_static(v.as_bytes()))).collect();
        ConnectResponse { error: error.into(), metadata }.encode().unwrap()
    };
    let ok = head(&[("HttpStatus", "200"), ("HttpHeader:Content-Length", "6"), ("unknown", "key")], "");
    match what {
        // Head and body in pieces of one byte.
        "split" => {
            for byte in ok.iter().chain(b"pieces") {
                send.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        "together" => send.write_all(&[&ok[..], b"onego."].concat()).await.unwrap(),
        "nostatus" => send.write_all(&head(&[("HttpHeader:A", "b")], "")).await.unwrap(),
        "badstatus" => send.write_all(&head(&[("HttpStatus", "20")], "")).await.unwrap(),
        "error" => send.write_all(&head(&[], "no such service")).await.unwrap(),
        "garbage" => send.write_all(&[0x55; 300]).await.unwrap(),
        "nothing" => {}
        "short" => send.write_all(&[&ok[..], b"shor"].concat()).await.unwrap(),
        "long" => send.write_all(&[&ok[..], b"too long"].concat()).await.unwrap(),
        _ => {
            send.write_all(&[&ok[..], b"cut"].concat()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            send.reset(0_u32.into()).unwrap();
            return;
        }
    }
    send.finish().unwrap();
}

#[tokio::test]
async fn over_quic() {
    let edge = Setup::edge().await;
    let connector = quic(&edge).await;
    assert!(edge.wait_until(SOON, |s| s.live().count() == 1).await, "{:#?}", edge.state());
    let clients = edge.client_addr();
    for (path, body) in [("/split", "pieces"), ("/together", "onego.")] {
        let whole = get(clients, path).await;
        assert_eq!((whole.status, whole.text()), (200, body), "{path}");
    }
    for path in ["/nostatus", "/badstatus", "/error", "/garbage", "/nothing"] {
        assert_eq!(get(clients, path).await.status, 502, "{path}");
    }
    assert!(get(clients, "/error").await.text().contains("no such service"));
    // Nor what is longer than it said.
    for path in ["/short", "/cut", "/long"] {
        cut(clients, path).await;
    }
    edge.push_config(5, "{}");
    let ack = ConfigAck { sent: 5, applied: Ok(4), error: "not yet".into() };
    assert!(edge.wait_until(SOON, |s| acked(s, &ack)).await, "{:#?}", edge.state());
    connector.abort();
    let gone = |s: &State| s.sessions.is_empty() && s.events.iter().any(|e| matches!(e.kind, EventKind::Gone { .. }));
    assert!(edge.wait_until(SOON * 4, gone).await, "{:#?}", edge.state());
}
