//! Requests and responses of every shape, over both transports.

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use crate::support::client::{self, ask, full, get, no_body, read, send, send_h2c, to};
use crate::support::origin::{checksum, pattern};
use crate::support::{BOTH, Setup, World};
use cftunnel::proxy::connector::Protocol;

#[tokio::test]
async fn plain_requests() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let edge = world.clients();
        let whole = get(edge, "/a/b%2Fc//d?q=%20%zz&r=1").await;
        assert_eq!((whole.status, whole.text()), (200, "GET /a/b%2Fc//d?q=%20%zz&r=1"), "{protocol:?}");
        assert_eq!(whole.headers["content-length"], whole.body.len().to_string());
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let whole = ask(edge, to(method, "/x").body(no_body()).unwrap()).await;
            assert_eq!(whole.text(), format!("{method} /x"), "{protocol:?}");
        }
        let head = ask(edge, to("HEAD", "/bytes/5000").body(no_body()).unwrap()).await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{protocol:?}");
        assert_eq!(head.headers["content-length"], "5000", "{protocol:?}");
        for status in [204, 304, 404, 418, 500, 599] {
            let whole = get(edge, &format!("/status/{status}")).await;
            assert_eq!((whole.status, whole.body.len()), (status, 0), "{protocol:?}");
            assert_eq!(whole.headers["x-origin"], "yes");
        }
        let via = whole.headers["x-cftunnel-connection"].to_str().unwrap();
        assert!(via.starts_with(if protocol == Protocol::Quic { "quic/" } else { "http2/" }), "{via}");
    }
}

#[tokio::test]
async fn headers_both_ways() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let request = to("GET", "/headers")
            .header("x-forwarded-for", "192.0.2.1")
            .header("x-forwarded-for", "192.0.2.2")
            .header("cf-connecting-ip", "192.0.2.3")
            .header("cf-cloudflared-proxy-connection-upgrade", "control-stream")
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("cookie", "a=b; c=d")
            .header("x-latin", http::HeaderValue::from_bytes(b"caf\xe9").unwrap())
            .body(no_body())
            .unwrap();
        let whole = ask(world.clients(), request).await;
        let cookies: Vec<_> = whole.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"], "{protocol:?}");
        assert_eq!(whole.headers["x-latin"].as_bytes(), b"caf\xe9", "{protocol:?}");

        let seen = world.origin.last().headers;
        assert_eq!(seen["host"], "app.example.test");
        assert_eq!(seen["x-forwarded-for"], "192.0.2.1, 192.0.2.2, 127.0.0.1");
        assert_eq!(seen["x-forwarded-proto"], "http");
        assert_eq!(seen["cf-connecting-ip"], "127.0.0.1");
        assert_eq!(seen["cdn-loop"], "cloudflare; loops=1");
        assert_eq!(seen["cf-ray"], whole.headers["cf-ray"]);
        assert_eq!(seen["cookie"], "a=b; c=d");
        assert_eq!(seen["x-latin"].as_bytes(), b"caf\xe9", "{protocol:?}");
        for gone in ["x-hop", "cf-cloudflared-proxy-connection-upgrade", "transfer-encoding", "content-length"] {
            assert!(!seen.contains_key(gone), "{protocol:?} {gone}");
        }
    }
}

#[tokio::test]
async fn a_large_head_passes() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let request = to("GET", "/x").header("x-large", "l".repeat(60_000)).body(no_body()).unwrap();
        assert_eq!(ask(world.clients(), request).await.status, 200, "{protocol:?}");
        assert_eq!(world.origin.last().headers["x-large"].len(), 60_000);
    }
}

#[tokio::test]
async fn ten_mebibytes_each_way() {
    const LEN: usize = 10 << 20;
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let edge = world.clients();
        let down = get(edge, &format!("/bytes/{LEN}")).await;
        assert_eq!((down.body.len(), checksum(&down.body)), (LEN, checksum(&pattern(LEN))), "{protocol:?}");
        let up = format!("{LEN} {}", checksum(&pattern(LEN)));
        let sized = ask(edge, to("POST", "/upload").body(full(pattern(LEN))).unwrap()).await;
        assert_eq!(sized.text(), up, "{protocol:?}");
        assert_eq!(world.origin.last().headers["content-length"], LEN.to_string());
        // Of unknown length: chunked, from end to end.
        let pieces: Vec<_> = pattern(LEN).chunks(70_000).map(|c| Ok(Frame::data(Bytes::copy_from_slice(c)))).collect();
        let body = StreamBody::new(futures_util::stream::iter(pieces)).boxed_unsync();
        let chunked = ask(edge, to("POST", "/upload").body(body).unwrap()).await;
        assert_eq!(chunked.text(), up, "{protocol:?}");
        assert!(!world.origin.last().headers.contains_key("content-length"));
        let down = get(edge, &format!("/chunked/{LEN}")).await;
        assert_eq!(checksum(&down.body), checksum(&pattern(LEN)), "{protocol:?}");
        assert!(!down.headers.contains_key("content-length"));
    }
}

#[tokio::test]
async fn empty_bodies_stay_empty() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let whole = ask(world.clients(), to("POST", "/upload").body(full("")).unwrap()).await;
        assert_eq!(whole.text(), format!("0 {}", checksum(b"")), "{protocol:?}");
        assert!(get(world.clients(), "/bytes/0").await.body.is_empty());
        assert!(get(world.clients(), "/chunked/0").await.body.is_empty());
    }
}

#[tokio::test]
async fn a_client_of_http2() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let request = http::Request::builder().uri("http://app.example.test/bytes/100000").body(no_body()).unwrap();
        let whole = read(send_h2c(world.clients(), request).await.unwrap()).await.unwrap();
        assert_eq!((whole.status, checksum(&whole.body)), (200, checksum(&pattern(100_000))), "{protocol:?}");
        assert_eq!(world.origin.last().headers["host"], "app.example.test");
    }
}

#[tokio::test]
async fn many_at_once() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let edge = world.clients();
        let tasks: Vec<_> = (0..200)
            .map(|i| tokio::spawn(async move { get(edge, &format!("/bytes/{}", i * 100)).await.body.len() == i * 100 }))
            .collect();
        for task in tasks {
            assert!(task.await.unwrap(), "{protocol:?}");
        }
        let used: Vec<_> = world.sessions().iter().map(|s| s.inflight).collect();
        assert_eq!(used, [0; 4], "nothing is left under way");
    }
}

#[tokio::test]
async fn grpc_over_http2() {
    let world = Setup { grpc: true, ..Setup::new(Protocol::Http2) }.start().await;
    for (method, status) in [("Say", "0"), ("Fail", "5")] {
        let request = http::Request::builder()
            .method("POST")
            .uri(format!("http://grpc.example.test/test.Echo/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(full(&b"\0\0\0\0\x05hello"[..]))
            .unwrap();
        let whole = client::within(crate::support::SOON, async {
            read(send_h2c(world.clients(), request).await.unwrap()).await.unwrap()
        })
        .await;
        assert_eq!((whole.status, &whole.body[5..]), (200, &b"hello"[..]));
        assert_eq!(whole.trailers.expect("trailers")["grpc-status"], status);
        assert_eq!(world.origin.last().headers["te"], "trailers");
    }
}

#[tokio::test]
async fn failures_are_told_by_their_cause() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let dead = http::Request::builder().uri("/").header("host", "dead.example.test").body(no_body()).unwrap();
        assert_eq!(ask(world.clients(), dead).await.status, 502, "{protocol:?}");
        let management =
            http::Request::builder().uri("/ping").header("host", "management.argotunnel.com").body(no_body()).unwrap();
        assert_eq!(ask(world.clients(), management).await.status, 404, "{protocol:?}");
        let bad = http::Request::builder().uri("/").header("host", "a b").body(no_body()).unwrap();
        assert_eq!(send(world.clients(), bad).await.unwrap().status(), 400, "{protocol:?}");
    }
    let edge = Setup::edge().await;
    let whole = get(edge.client_addr(), "/").await;
    assert_eq!((whole.status, whole.text()), (530, "error code: 1033\n"));
}
