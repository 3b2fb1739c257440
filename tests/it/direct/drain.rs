//! The end of the listeners: nothing that was asked stays unanswered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cftunnel::proxy::direct::Limits;
use futures_util::{SinkExt as _, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Listening, until};
use crate::support::client::{no_body, read, to, within};
use crate::support::{SOON, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn busy_keep_alive_clients_lose_nothing() {
    let listening = Listening::start(Limits::default()).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let told = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let (addr, answered, told) = (listening.addr, Arc::clone(&answered), Arc::clone(&told));
        clients.spawn(async move {
            let (mut sender, connection) = http1::handshake(TokioIo::new(TcpStream::connect(addr).await.unwrap())).await.unwrap();
            tokio::spawn(connection);
            // Every request of a connection must be answered, up to the one that says it is the last.
            loop {
                sender.ready().await.expect("open");
                let response = sender.send_request(to("GET", "/bytes/2000").body(no_body()).unwrap()).await.expect("answered");
                let close = response.headers().get("connection").is_some_and(|c| c == "close");
                assert_eq!(response.into_body().collect().await.expect("whole").to_bytes().len(), 2000);
                answered.fetch_add(1, Ordering::Relaxed);
                if close {
                    told.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        });
    }
    eventually("they are at work", || answered.load(Ordering::Relaxed) > 200).await;
    within(SOON, listening.direct.drain()).await;
    within(SOON, clients.join_all()).await;
    assert_eq!(told.load(Ordering::Relaxed), 20);
    assert_eq!(listening.direct.connections(), 0);
    assert!(TcpStream::connect(listening.addr).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_finish_on_both_protocols() {
    let listening = Listening::start(Limits::default()).await;
    let mut h1 = listening.connect().await;
    h1.write_all(b"GET /sleep/700 HTTP/1.1\r\nHost: app.example.test\r\n\r\n").await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(listening.connect().await)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::builder().uri("http://app.example.test/sleep/700").body(no_body()).unwrap();
    let h2 = tokio::spawn(async move { read(sender.send_request(request).await.unwrap()).await.unwrap() });
    eventually("both are under way", || listening.requests() == 2).await;
    let drained = AtomicBool::new(false);
    let drain = async {
        listening.direct.drain().await;
        drained.store(true, Ordering::SeqCst);
    };
    let answers = async {
        let answer = until(&mut h1, "slept").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
        assert_eq!(h2.await.unwrap().text(), "slept");
    };
    within(SOON, async { tokio::join!(drain, answers) }).await;
    assert!(within(SOON, connection).await.unwrap().is_ok(), "the HTTP/2 client saw a good end");
    assert!(drained.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_idle_connections_do_not_hold_up_the_end() {
    let listening = Listening::start(Limits::default()).await;
    let _silent = listening.connect().await;
    let mut idle = listening.connect().await;
    idle.write_all(b"GET /x HTTP/1.1\r\nHost: app.example.test\r\n\r\n").await.unwrap();
    until(&mut idle, "GET /x").await;
    eventually("both are there", || listening.direct.connections() == 2).await;
    within(SOON / 2, listening.direct.drain()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_the_stubborn_are_cut_at_the_end() {
    let listening = Listening::start(Limits::default()).await;
    let mut socket = listening.connect().await;
    let handshake = "GET /ws HTTP/1.1\r\nHost: app.example.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(handshake.as_bytes()).await.unwrap();
    until(&mut socket, "\r\n\r\n").await;
    let mut ws = WebSocketStream::from_raw_socket(socket, Role::Client, None).await;
    let mut endless = listening.connect().await;
    endless.write_all(b"GET /stall/10 HTTP/1.1\r\nHost: app.example.test\r\n\r\n").await.unwrap();
    eventually("both are under way", || listening.requests() == 2).await;
    let grace = tokio::time::timeout(Duration::from_secs(1), listening.direct.drain()).await;
    assert!(grace.is_err(), "sessions and responses are waited for");
    ws.send(Message::text("still here")).await.unwrap();
    assert_eq!(within(SOON, ws.next()).await.unwrap().unwrap(), Message::text("still here"));
    listening.direct.close();
    within(SOON, listening.direct.drain()).await;
    assert!(within(SOON, ws.next()).await.is_none_or(|end| end.is_err()));
    eventually("no request is left", || listening.plane.in_flight() == 0).await;
}
