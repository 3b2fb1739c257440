//! What a client may take, and what it gets when it takes more.

use std::io::ErrorKind;
use std::time::Duration;

use cftunnel::proxy::direct::Limits;
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use super::{Listening, rest, until};
use crate::support::client::{get, no_body, send_h2c, within};
use crate::support::{SOON, eventually};

/// Short enough for a test, long enough for a machine that is slow at times.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

const GET: &str = "GET /x HTTP/1.1\r\nHost: app.example.test\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_a_size() {
    let listening = Listening::start(Limits::default()).await;
    let with = |fields: &str| format!("GET /x HTTP/1.1\r\nHost: app.example.test\r\nConnection: close\r\n{fields}\r\n");
    let large = |n: usize| format!("X-Large: {}\r\n", "a".repeat(n));
    assert!(listening.exchange(with(&large(50_000))).await.starts_with("HTTP/1.1 200"));
    assert!(listening.exchange(with(&"X-A: b\r\n".repeat(90))).await.starts_with("HTTP/1.1 200"));
    let before = listening.requests();
    assert!(listening.exchange(with(&large(70_000))).await.starts_with("HTTP/1.1 431"));
    assert!(listening.exchange(with(&"X-A: b\r\n".repeat(200))).await.starts_with("HTTP/1.1 431"));
    let target = format!("GET /{} HTTP/1.1\r\nHost: app.example.test\r\n\r\n", "a".repeat(70_000));
    let answer = listening.exchange(target).await;
    assert!(answer.starts_with("HTTP/1.1 414") || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let bomb = Request::builder().uri("http://app.example.test/").header("x-large", "a".repeat(70_000)).body(no_body()).unwrap();
    let refused = send_h2c(listening.addr, bomb).await;
    assert!(refused.is_err() || refused.is_ok_and(|r| r.status() == 431));
    assert_eq!(listening.requests(), before);
    assert_eq!(get(listening.addr, "/").await.status, 200, "others are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_is_cut_and_a_slow_answer_is_not() {
    let listening = Listening::start(Limits { head: SHORT, idle: LONG, ..Limits::default() }).await;
    let start = Instant::now();
    let mut silent = listening.connect().await;
    let mut slow = listening.connect().await;
    let mut second = listening.connect().await;
    second.write_all(GET.as_bytes()).await.unwrap();
    until(&mut second, "GET /x").await;
    second.write_all(&GET.as_bytes()[..20]).await.unwrap();
    let mut patient = listening.connect().await;
    patient.write_all(GET.replace("/x", "/sleep/1500").as_bytes()).await.unwrap();
    let drip = async {
        // A byte now and then does not help.
        for byte in GET.as_bytes() {
            if slow.write_all(&[*byte]).await.is_err() || start.elapsed() > SOON {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(rest(&mut slow).await, "", "cut before its head was whole");
    };
    let ((), a, b, c) = tokio::join!(drip, rest(&mut silent), rest(&mut second), until(&mut patient, "slept"));
    assert_eq!((a.as_str(), b.as_str()), ("", ""));
    assert!(c.starts_with("HTTP/1.1 200"));
    assert!(start.elapsed() >= SHORT);
    // Between requests it is the other limit that counts.
    patient.write_all(GET.as_bytes()).await.unwrap();
    until(&mut patient, "GET /x").await;
    sleep(SHORT * 2).await;
    patient.write_all(GET.as_bytes()).await.unwrap();
    until(&mut patient, "GET /x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_end_in_good_order() {
    let listening = Listening::start(Limits { idle: SHORT, ..Limits::default() }).await;
    let mut h1 = listening.connect().await;
    h1.write_all(GET.as_bytes()).await.unwrap();
    let answer = within(SOON, rest(&mut h1)).await;
    assert!(answer.ends_with("GET /x"), "{answer}");
    let response = send_h2c(listening.addr, Request::builder().uri("http://app.example.test/y").body(no_body()).unwrap()).await;
    assert_eq!(response.unwrap().status(), 200);
    eventually("both connections are gone", || listening.direct.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_loses_its_connection_and_one_that_reads_slowly_does_not() {
    let stalled = SHORT * 3;
    let listening = Listening::start(Limits { stalled, ..Limits::default() }).await;
    let mut deaf = listening.connect().await;
    let ask = GET.replace("/x", "/bytes/20000000");
    deaf.write_all(ask.as_bytes()).await.unwrap();
    eventually("the deaf client is cut", || listening.direct.connections() == 0).await;
    let mut got = vec![0; 1 << 20];
    let end = loop {
        match within(SOON, deaf.read(&mut got)).await {
            Ok(0) => break None,
            Ok(_) => (),
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(ErrorKind::ConnectionReset), "the kernel holds nothing more for it");
    let mut slow = listening.connect().await;
    slow.write_all(ask.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut piece = vec![0; 4 << 20];
    let mut read = 0;
    for _ in 0..8 {
        // Within the limit each time; all pauses together are far beyond it.
        sleep(stalled / 4).await;
        read += within(SOON, slow.read(&mut piece)).await.unwrap();
    }
    read += rest(&mut slow).await.chars().count();
    assert!(read > 5_000_000, "{read}");
    assert_eq!(get(listening.addr, "/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_is_closed_at_once_and_places_come_back() {
    let listening = Listening::start(Limits { connections: 2, ..Limits::default() }).await;
    let mut first = listening.connect().await;
    let second = listening.connect().await;
    eventually("both are admitted", || listening.direct.connections() == 2).await;
    let mut third = listening.connect().await;
    assert_eq!(rest(&mut third).await, "");
    first.write_all(GET.as_bytes()).await.unwrap();
    until(&mut first, "GET /x").await;
    drop(second);
    eventually("a place is free", || listening.direct.connections() == 1).await;
    assert_eq!(get(listening.addr, "/").await.status, 200);
}
