//! Requests that two servers could read in two ways (RFC 9112 §11.2): refused, and never seen by a backend.

use cftunnel::proxy::direct::Limits;
use http::Request;
use hyper::ext::Protocol;
use tokio::io::AsyncWriteExt as _;

use super::{Listening, rest};
use crate::support::client::{no_body, send_h2c};

/// What must not get through, and the answers that are right. Each is followed by a request that must not be answered.
const REFUSED: &[(&str, &str, &[&str])] = &[
    ("no host", "GET / HTTP/1.1\r\n\r\n", &["400"]),
    ("two hosts", "GET / HTTP/1.1\r\nHost: app.example.test\r\nHost: app.example.test\r\n\r\n", &["400"]),
    ("no host at all in it", "GET / HTTP/1.1\r\nHost:\r\n\r\n", &["400"]),
    ("a host that is none", "GET / HTTP/1.1\r\nHost: app.example.test/x\r\n\r\n", &["400"]),
    ("a user in the host", "GET / HTTP/1.1\r\nHost: me@app.example.test\r\n\r\n", &["400"]),
    ("a target for somebody else", "GET http://b.example.test/ HTTP/1.1\r\nHost: app.example.test\r\n\r\n", &["400"]),
    ("a user in the target", "GET http://me@app.example.test/ HTTP/1.1\r\nHost: app.example.test\r\n\r\n", &["400"]),
    (
        "two lengths",
        "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        &["400"],
    ),
    ("a list of lengths", "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: 5, 6\r\n\r\nhello!", &["400"]),
    ("a signed length", "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: +5\r\n\r\nhello", &["400"]),
    ("a hexadecimal length", "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: 0x5\r\n\r\nhello", &["400"]),
    ("an empty length", "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length:\r\n\r\n", &["400"]),
    ("an endless length", "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: 99999999999999999999\r\n\r\n", &["400"]),
    (
        "a coding below",
        "POST / HTTP/1.1\r\nHost: app.example.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        &["501"],
    ),
    (
        "chunks in chunks",
        "POST / HTTP/1.1\r\nHost: app.example.test\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        &["501"],
    ),
    (
        "two codings",
        "POST / HTTP/1.1\r\nHost: app.example.test\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        &["501"],
    ),
    ("another coding", "POST / HTTP/1.1\r\nHost: app.example.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", &["400"]),
    ("no coding", "POST / HTTP/1.1\r\nHost: app.example.test\r\nTransfer-Encoding: identity\r\n\r\nhello", &["400"]),
    ("chunks in HTTP/1.0", "POST / HTTP/1.0\r\nHost: app.example.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &["400"]),
    ("a blank before the colon", "POST / HTTP/1.1\r\nHost: app.example.test\r\nContent-Length : 5\r\n\r\nhello", &["400"]),
    ("a blank before the name", "POST / HTTP/1.1\r\nHost: app.example.test\r\n Content-Length: 5\r\n\r\nhello", &["400"]),
    ("a folded line", "GET / HTTP/1.1\r\nHost: app.example.test\r\nX-A: b\r\n c\r\n\r\n", &["400"]),
    ("a NUL", "GET / HTTP/1.1\r\nHost: app.example.test\r\nX-A: \0\r\n\r\n", &["400"]),
    ("a bare CR", "GET / HTTP/1.1\r\nHost: app.example.test\r\nX-A: a\rX-B: b\r\n\r\n", &["400"]),
    ("a name with a colon in front", "GET / HTTP/1.1\r\nHost: app.example.test\r\n:path: /x\r\n\r\n", &["400"]),
    ("a tunnel", "CONNECT app.example.test:443 HTTP/1.1\r\nHost: app.example.test:443\r\n\r\n", &["400"]),
    ("a target without a root", "GET index.html HTTP/1.1\r\nHost: app.example.test\r\n\r\n", &["400"]),
    ("a star for the wrong method", "GET * HTTP/1.1\r\nHost: app.example.test\r\n\r\n", &["400"]),
    ("another version", "GET / HTTP/2.0\r\nHost: app.example.test\r\n\r\n", &["400", "505"]),
    ("HTTP/0.9", "GET /\r\n\r\n", &["400"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_read_in_two_ways_reaches_no_backend() {
    let listening = Listening::start(Limits::default()).await;
    for (what, bytes, statuses) in REFUSED {
        let next = "GET /smuggled HTTP/1.1\r\nHost: app.example.test\r\nConnection: close\r\n\r\n";
        let answer = listening.exchange(format!("{bytes}{next}")).await;
        let status = answer.get(9..12).unwrap_or_default();
        assert!(statuses.contains(&status), "{what}: {answer:?}");
        assert_eq!(listening.requests(), 0, "{what}: {answer:?}");
        assert!(!answer.contains("smuggled"), "{what}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_win_over_a_length_and_are_the_last_of_their_connection() {
    let listening = Listening::start(Limits::default()).await;
    for (first, second) in
        [("Content-Length: 4", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", "Content-Length: 4")]
    {
        let before = listening.requests();
        let bytes = format!(
            "POST /upload HTTP/1.1\r\nHost: app.example.test\r\n{first}\r\n{second}\r\n\r\n5\r\nhello\r\n0\r\n\r\n\
             GET /smuggled HTTP/1.1\r\nHost: app.example.test\r\n\r\n"
        );
        let answer = listening.exchange(bytes).await;
        assert_eq!(listening.requests(), before + 1, "RFC 9112 §6.1: the connection ends after the answer: {answer:?}");
        assert!(answer.contains("\r\n\r\n5 ") && !answer.contains("smuggled"), "{answer:?}");
        let seen = listening.origin.last();
        assert!(!seen.headers.contains_key("content-length"), "the backend is told one length: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_chunks_break_the_request_and_nothing_after_them_is_read() {
    let listening = Listening::start(Limits::default()).await;
    for chunks in [
        "zz\r\nhello\r\n",
        "5\r\nhelloX\r\n",
        "-5\r\nhello\r\n",
        "5 5\r\nhello\r\n",
        "fffffffffffffffff\r\nhello\r\n",
        "5\nhello\r\n",
    ] {
        let before = listening.origin.seen.broken_uploads.load(std::sync::atomic::Ordering::SeqCst);
        let bytes = format!(
            "POST /upload HTTP/1.1\r\nHost: app.example.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n{chunks}0\r\n\r\n\
             GET /smuggled HTTP/1.1\r\nHost: app.example.test\r\n\r\n"
        );
        let answer = listening.exchange(bytes).await;
        assert!(!answer.contains("HTTP/1.1 200"), "{chunks:?}: {answer:?}");
        assert!(!answer.contains("smuggled"), "{chunks:?}: {answer:?}");
        crate::support::eventually("the backend sees that the upload is broken", || {
            listening.origin.seen.broken_uploads.load(std::sync::atomic::Ordering::SeqCst) == before + 1
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_is_not_completed() {
    let listening = Listening::start(Limits::default()).await;
    let mut socket = listening.connect().await;
    socket.write_all(b"POST /upload HTTP/1.1\r\nHost: app.example.test\r\nContent-Length: 10\r\n\r\nhello").await.unwrap();
    socket.shutdown().await.unwrap();
    let answer = rest(&mut socket).await;
    assert!(!answer.contains("HTTP/1.1 200"), "{answer:?}");
    crate::support::eventually("the backend sees it", || {
        listening.origin.seen.broken_uploads.load(std::sync::atomic::Ordering::SeqCst) == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_gets_no_tunnel_either() {
    let listening = Listening::start(Limits::default()).await;
    let plain = Request::builder().method("CONNECT").uri("app.example.test:443").body(no_body()).unwrap();
    assert_eq!(send_h2c(listening.addr, plain).await.unwrap().status(), 400);
    let mut foreign = Request::builder().method("CONNECT").uri("http://app.example.test/").body(no_body()).unwrap();
    foreign.extensions_mut().insert(Protocol::from_static("connect-udp"));
    // Refused by us, or by a client that has not seen our settings yet: no backend hears of it.
    if let Ok(response) = send_h2c(listening.addr, foreign).await {
        assert_eq!(response.status(), 400);
    }
    let disagree = Request::builder().uri("http://app.example.test/").header("host", "b.example.test").body(no_body()).unwrap();
    assert_eq!(send_h2c(listening.addr, disagree).await.unwrap().status(), 400);
    assert_eq!(listening.requests(), 0);
}
