//! Streams: nothing waits for an end that may never come, and what ends on one side ends on the other.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::support::client::{Out, get, no_body, send, send_h2c, to, within};
use crate::support::{BOTH, SOON, World, eventually};

/// A body that is fed by hand.
fn fed() -> (mpsc::Sender<Bytes>, Out) {
    let (feed, pieces) = mpsc::channel::<Bytes>(1);
    let stream = futures_util::stream::unfold(pieces, |mut pieces| async {
        let piece = pieces.recv().await?;
        Some((Ok(Frame::data(piece)), pieces))
    });
    (feed, StreamBody::new(stream).boxed_unsync())
}

#[tokio::test]
async fn events_come_when_they_happen() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let start = Instant::now();
        let response = send(world.clients(), to("GET", "/sse/300").body(no_body()).unwrap()).await.unwrap();
        let mut body = response.into_body();
        let first = within(SOON, body.frame()).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(&first[..], b"data: 0\n\n", "{protocol:?}");
        // The last comes 1.2 s after the first.
        assert!(start.elapsed() < Duration::from_millis(900), "{protocol:?}: buffered for {:?}", start.elapsed());
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 4 * first.len());
    }
}

#[tokio::test]
async fn full_duplex() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        for http2 in [false, true] {
            let (feed, body) = fed();
            feed.send("first".into()).await.unwrap();
            let request = if http2 {
                http::Request::builder().method("POST").uri("http://app.example.test/duplex").body(body).unwrap()
            } else {
                to("POST", "/duplex").body(body).unwrap()
            };
            let response = within(SOON, async {
                if http2 { send_h2c(world.clients(), request).await } else { send(world.clients(), request).await }
            });
            let mut back = response.await.unwrap().into_body();
            for next in ["second", "third", "fourth"] {
                let piece = within(SOON, back.frame()).await.unwrap().unwrap().into_data().unwrap();
                assert!(!piece.is_empty());
                feed.send(next.into()).await.unwrap();
            }
            drop(feed);
            let rest = within(SOON, back.collect()).await.unwrap().to_bytes();
            assert!(rest.ends_with(b"fourth"), "{protocol:?} {rest:?}");
        }
    }
}

#[tokio::test]
async fn websocket() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let url = format!("ws://{}/ws", world.clients());
        let tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
        let (mut ws, response) = within(SOON, tokio_tungstenite::client_async(url, tcp)).await.unwrap();
        assert_eq!(response.status(), 101, "{protocol:?}");
        for message in [Message::text("hello"), Message::binary(vec![7; 100_000]), Message::text("")] {
            ws.send(message.clone()).await.unwrap();
            assert_eq!(within(SOON, ws.next()).await.unwrap().unwrap(), message, "{protocol:?}");
        }
        ws.close(None).await.unwrap();
        while within(SOON, ws.next()).await.is_some_and(|m| m.is_ok()) {}
        let idle = world.edge.wait_until(SOON, |state| state.requests_in_flight == 0).await;
        assert!(idle, "{protocol:?}: the session is over on all sides");
    }
}

#[tokio::test]
async fn a_refused_websocket_is_a_response() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let request = to("GET", "/status/403")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(no_body())
            .unwrap();
        let response = within(SOON, send(world.clients(), request)).await.unwrap();
        assert_eq!(response.status(), 403, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_request_at_the_backend() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        // Before the head, and in the middle of the body.
        for (i, path) in ["/sleep/60000", "/stall/100"].into_iter().enumerate() {
            let request = to("GET", path).body(no_body()).unwrap();
            let asked = tokio::time::timeout(Duration::from_millis(300), async {
                let response = send(world.clients(), request).await.unwrap();
                response.into_body().collect().await
            });
            assert!(asked.await.is_err(), "{path} has no end");
            eventually("the backend sees the cancel", || world.origin.canceled() == i + 1).await;
        }
        assert_eq!(get(world.clients(), "/x").await.status, 200, "{protocol:?}: the connection lives on");
    }
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_no_upload() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let (feed, body) = fed();
        let request = to("POST", "/upload").header("content-length", "1000").body(body).unwrap();
        let asked = tokio::spawn(send(world.clients(), request));
        feed.send(vec![1; 500].into()).await.unwrap();
        eventually("the request arrives", || world.origin.seen.requests.load(Ordering::SeqCst) == 1).await;
        asked.abort();
        drop(feed);
        let broken = || world.origin.seen.broken_uploads.load(Ordering::SeqCst) + world.origin.canceled();
        eventually("the backend sees the break", || broken() == 1).await;
        let _ = asked.await;
    }
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_upload_arrives_whole() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        for _ in 0..20 {
            let (feed, body) = fed();
            let asked = tokio::spawn(send(world.clients(), to("POST", "/early/300000").body(body).unwrap()));
            feed.send(vec![1; 100_000].into()).await.unwrap();
            let response = within(SOON, asked).await.unwrap().unwrap();
            assert_eq!(response.status(), 200, "{protocol:?}");
            let got = within(SOON, response.into_body().collect()).await.unwrap().to_bytes();
            assert_eq!(got.len(), 300_000, "{protocol:?}");
            drop(feed);
        }
        assert_eq!(get(world.clients(), "/x").await.status, 200, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_part_of_a_response_never_looks_whole() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        for path in ["/cut/1000/chunked", "/cut/1000/length"] {
            let response = within(SOON, send(world.clients(), to("GET", path).body(no_body()).unwrap())).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(within(SOON, response.into_body().collect()).await.is_err(), "{protocol:?} {path} over http/1.1");
            let request = http::Request::builder().uri(format!("http://app.example.test{path}")).body(no_body()).unwrap();
            let response = within(SOON, send_h2c(world.clients(), request)).await.unwrap();
            assert!(within(SOON, response.into_body().collect()).await.is_err(), "{protocol:?} {path} over h2c");
        }
        let idle = world.edge.wait_until(SOON, |state| state.requests_in_flight == 0).await;
        assert!(idle && world.sessions().len() == 4, "{protocol:?}: only those streams ended");
        eventually("nothing is left in flight", || world.plane.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn a_websocket_whose_backend_or_client_vanishes_ends_everywhere() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let url = format!("ws://{}/ws", world.clients());
        let tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
        let (mut ws, _) = within(SOON, tokio_tungstenite::client_async(&url, tcp)).await.unwrap();
        // The backend leaves without a close frame of its own.
        ws.send(Message::text("vanish")).await.unwrap();
        let end = within(SOON, ws.next()).await;
        assert!(end.is_none_or(|m| m.is_err()), "{protocol:?}");
        let tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
        let (ws, _) = within(SOON, tokio_tungstenite::client_async(&url, tcp)).await.unwrap();
        drop(ws);
        eventually("the plane lets go", || world.plane.in_flight() == 0).await;
        // A client that ends its side is given a moment by the edge for the last words of the other.
        let idle = world.edge.wait_until(SOON * 2, |state| state.requests_in_flight == 0).await;
        assert!(idle, "{protocol:?}");
    }
}
