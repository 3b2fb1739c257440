//! WebSocket: the handshake, the session and its refusals.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::backend::{echo, saying, scripted};
use super::*;
use crate::gateway::ir::{Filter, HeaderEdit};

const ACCEPT: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade, x-hop\r\nx-hop: 1\r\n\
                      Sec-WebSocket-Accept: abc\r\nSec-WebSocket-Protocol: chat\r\n\r\n";

/// Accepts the handshake and then sends back, in upper case, what it gets.
async fn shouting() -> backend::Backend {
    scripted(|_, mut wire| async move {
        let head = wire.head().await.unwrap().to_ascii_lowercase();
        let complete =
            ["connection: upgrade\r\n", "upgrade: websocket\r\n", "sec-websocket-version: 13\r\n", "sec-websocket-key: k\r\n"];
        if head.starts_with("get /chat ") && complete.iter().all(|h| head.contains(h)) && !head.contains("content-length") {
            wire.write(ACCEPT).await;
            while let Some(line) = wire.until(b"\n").await {
                wire.write(&line.to_ascii_uppercase()).await;
            }
        } else {
            wire.write("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    })
    .await
}

fn handshake() -> (Inbound, Request<Body>) {
    let inbound = Inbound { authority: "a.example".into(), websocket: true, via: TUNNEL };
    (inbound, Request::get("/chat").header("sec-websocket-key", "k").header("origin", "x").body(Body::Empty).unwrap())
}

async fn upgrade(f: &Fixture) -> Response<Body> {
    let (inbound, request) = handshake();
    f.serve(inbound, request).await
}

#[tokio::test]
async fn bytes_flow_both_ways_until_one_side_ends() {
    let f = plane(&h1(shouting().await.address));
    let response = upgrade(&f).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["sec-websocket-accept"], "abc");
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert_eq!(response.headers()["upgrade"], "websocket");
    assert_eq!(response.headers()["connection"], "Upgrade");
    assert!(!response.headers().contains_key("x-hop"));
    let upgraded = response.extensions().get::<Upgraded>().unwrap().clone();
    drop(response);
    let mut session = upgraded.take().unwrap();
    assert!(upgraded.take().is_none());
    assert_eq!((f.plane.in_flight(), f.metric("cftunnel_proxy_websocket_sessions")), (1, 1));
    for word in ["hello\n", "again\n"] {
        session.write_all(word.as_bytes()).await.unwrap();
        let mut heard = vec![0; word.len()];
        session.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, word.to_ascii_uppercase().as_bytes());
    }
    session.shutdown().await.unwrap();
    assert_eq!(session.read(&mut [0; 8]).await.unwrap(), 0);
    drop(session);
    f.idle().await;
    assert_eq!(f.metric("cftunnel_proxy_websocket_sessions"), 0);
    assert_eq!(f.metric("cftunnel_proxy_requests_total{code_class=\"1xx\"}"), 1);
}

#[tokio::test]
async fn a_session_that_nobody_takes_ends() {
    let f = plane(&h1(shouting().await.address));
    drop(upgrade(&f).await);
    f.idle().await;
}

#[tokio::test]
async fn a_backend_may_decline() {
    let f = plane(&h1(saying("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await.address));
    let answer = read(upgrade(&f).await).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::FORBIDDEN, "no"));
    f.idle().await;
}

#[tokio::test]
async fn switching_to_something_else_is_a_bad_gateway() {
    let other = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n";
    let f = plane(&h1(saying(other).await.address));
    assert_eq!(upgrade(&f).await.status(), StatusCode::BAD_GATEWAY);
    let f = plane(&h1(backend::nobody().await));
    assert_eq!(upgrade(&f).await.status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn response_filters_apply_to_the_101_too() {
    let mut config = h1(shouting().await.address);
    config.routes[0].rules[0].filters = vec![Filter::ResponseHeaders(HeaderEdit {
        set: vec![("x-by".into(), "rule".into())],
        add: Vec::new(),
        remove: vec!["sec-websocket-accept".into()],
    })];
    let response = upgrade(&plane(&config)).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["x-by"], "rule");
    assert!(!response.headers().contains_key("sec-websocket-accept"), "honoured as written");
}

#[tokio::test]
async fn where_upgrades_are_not_passed_on_the_backend_gets_an_ordinary_request() {
    let backend = echo("b").await;
    let mut required = h1(backend.address);
    required.options.websocket_require_app_protocol = true;
    for config in [required, all_to(BackendProtocol::H2c, &[backend.address])] {
        let f = plane(&config);
        let answer = read(upgrade(&f).await).await;
        assert_eq!(answer.status, StatusCode::OK);
        let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(backend::echoed(&echo, "upgrade"), None);
        assert_eq!(backend::echoed(&echo, "connection"), None);
        // A length beside the upgrade announces bytes that do not follow: they would be taken from the next request.
        for _ in 0..2 {
            let (inbound, mut request) = handshake();
            request.headers_mut().insert("content-length", "30".parse().unwrap());
            let answer = read(f.serve(inbound, request).await).await;
            assert_eq!(answer.status, StatusCode::OK);
            let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(backend::echoed(&echo, "content-length"), None);
        }
    }
    let mut marked = h1(shouting().await.address);
    marked.options.websocket_require_app_protocol = true;
    marked.backends.values_mut().next().unwrap().websocket = true;
    assert_eq!(upgrade(&plane(&marked)).await.status(), StatusCode::SWITCHING_PROTOCOLS);
}

#[tokio::test]
async fn a_backend_that_does_not_answer_the_handshake_in_time_gets_a_504() {
    let silent = scripted(|_, mut wire| async move {
        wire.drain().await;
    })
    .await;
    let mut config = h1(silent.address);
    config.routes[0].rules[0].response_timeout_ms = Some(50);
    assert_eq!(upgrade(&plane(&config)).await.status(), StatusCode::GATEWAY_TIMEOUT);
}
