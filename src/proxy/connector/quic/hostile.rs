//! An edge that leans on the rules: streams opened, cut, filled and left alone by the thousand. Whatever it does on some streams,
//! the connection is bounded in what it holds, and a request on another stream is answered.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;

use super::tests::{Edge, connect, head, metadata, response};
use super::*;
use crate::proxy::connector::tests::{app, beside, body, counted};
use crate::proxy::connector::wire::stream::ConnectKind;
use crate::proxy::http::Body;

const CHUNKED: [(&str, &str); 1] = [("HttpHeader:Transfer-Encoding", "chunked")];
const PATIENCE: Duration = Duration::from_secs(60);

/// Requires that a request is answered.
async fn answered(edge: &Edge, path: &str, body: &[u8]) {
    let call = edge.call(ConnectKind::Http, path, &CHUNKED, body);
    let (response, _) = timeout(PATIENCE, call).await.expect("an answer");
    assert_eq!(metadata(&response, "HttpStatus"), [b"200"]);
}

#[tokio::test]
async fn streams_that_stop_at_their_first_byte_reach_nobody() {
    let (streams, seen) = counted();
    let edge = connect(streams).await;
    let first = &head(ConnectKind::Http, "/hold", &[])[..1];
    let mut open = Vec::new();
    for _ in 0..3000 {
        open.push(edge.open(first).await);
    }
    answered(&edge, "/", b"").await;
    assert_eq!(seen.all(), 1);
    drop(open);
    timeout(PATIENCE, edge.link.idle()).await.expect("the streams are over");
    assert_eq!(seen.all(), 1);
}

#[tokio::test]
async fn streams_are_opened_up_to_the_limit_and_again_when_some_end() {
    let (streams, seen) = counted();
    let edge = connect(streams).await;
    let most = usize::try_from(MAX_STREAMS.into_inner()).expect("fits");
    let hold = head(ConnectKind::Http, "/hold", &[]);
    let mut open = Vec::new();
    for _ in 0..most {
        open.push(edge.open(&hold).await);
    }
    seen.reach(most).await;
    let more = timeout(Duration::from_millis(200), edge.connection.open_bi()).await;
    assert!(more.is_err(), "the edge has to wait");
    for (mut send, recv) in open.drain(..most / 2) {
        send.reset(VarInt::from_u32(0)).expect("open");
        drop(recv);
    }
    answered(&edge, "/", b"").await;
    seen.reach(most - most / 2).await;
}

#[tokio::test]
async fn a_flood_of_streams_and_resets_leaves_nothing_behind() {
    let (streams, seen) = counted();
    let other = beside(&streams);
    let edge = connect(streams).await;
    let hold = head(ConnectKind::Http, "/hold", &[]);
    for _ in 0..10_000 {
        let (mut send, mut recv) = timeout(PATIENCE, edge.open(&hold)).await.expect("places come free");
        send.reset(VarInt::from_u32(0)).expect("open");
        recv.stop(VarInt::from_u32(0)).expect("open");
    }
    seen.gone().await;
    assert!(seen.most() <= 4096, "{} at once", seen.most());
    answered(&edge, "/", b"").await;
    answered(&connect(other).await, "/", b"").await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_cut_off() {
    let (streams, seen) = counted();
    let edge = connect(streams).await;
    // One segment of 8 MiB, and 65536 segments.
    for (segments, words) in [(0_u32, 1_u32 << 20), (65_535, 1)] {
        let table = [segments.to_le_bytes(), words.to_le_bytes()].concat();
        let start = [&b"\x0a\x36\xcd\x12\xa1\x3e01"[..], &table].concat();
        let (mut send, mut recv) = edge.open(&start).await;
        let mut sent = 0;
        // Until the edge is told to stop.
        while send.write_all(&[1; 4096]).await.is_ok() {
            sent += 4096;
            assert!(sent < 8 << 20, "all of it was taken");
            tokio::task::yield_now().await;
        }
        assert!(recv.read_to_end(64).await.is_err(), "reset");
    }
    assert_eq!(seen.all(), 0);
    answered(&edge, "/", b"").await;
}

#[tokio::test]
async fn responses_that_nobody_reads_stop_nobody_else() {
    let taken = Arc::new(AtomicUsize::new(0));
    let (mut writer, endless) = body().await;
    let (counter, endless) = (Arc::clone(&taken), Mutex::new(Some(endless)));
    tokio::spawn(async move {
        writer.reserve_capacity(16_384);
        while let Some(Ok(room)) = std::future::poll_fn(|cx| writer.poll_capacity(cx)).await {
            writer.send_data(vec![0; room].into(), false).expect("sent");
            counter.fetch_add(room, Ordering::Relaxed);
            writer.reserve_capacity(16_384);
        }
    });
    let big = Bytes::from(vec![0; 4 << 20]);
    let edge = connect(app(move |_, request| {
        let big = Body::Full(big.clone());
        let body = match request.uri().path() {
            "/endless" => endless.lock().expect("not poisoned").take().expect("one request"),
            "/big" => big,
            _ => Body::Empty,
        };
        async move { Response::new(body) }
    }))
    .await;
    let mut unread = vec![edge.open(&head(ConnectKind::Http, "/endless", &[])).await];
    for _ in 0..20 {
        unread.push(edge.open(&head(ConnectKind::Http, "/big", &[])).await);
    }
    for (_, recv) in &mut unread {
        // Answered, and then left alone.
        let (head, _) = timeout(PATIENCE, response(recv)).await.expect("a head");
        assert_eq!(metadata(&head, "HttpStatus"), [b"200"]);
    }
    for _ in 0..50 {
        answered(&edge, "/", b"").await;
    }
    let taken = taken.load(Ordering::Relaxed);
    assert!(taken < 4 << 20, "{taken} bytes were taken for an edge that reads none");
}

#[tokio::test]
async fn uploads_that_nobody_takes_are_given_up_when_others_need_the_room() {
    let (streams, seen) = counted();
    let edge = connect(streams).await;
    // Quinn does not tell what has arrived: a body without a declared length counts as a whole window.
    let small = ("HttpHeader:Content-Length", "2");
    let mut stalled = Vec::new();
    let most = CONNECTION_WINDOW.into_inner() / STREAM_WINDOW.into_inner() / 2;
    for n in 0..=most {
        let length = if n == 0 { small } else { CHUNKED[0] };
        let (mut send, recv) = edge.open(&head(ConnectKind::Http, "/hold", &[length])).await;
        send.write_all(b"x").await.expect("sent");
        stalled.push((send, recv));
        if n == 1 {
            // The next ones are younger.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let second = &mut stalled[1].1;
    let (answer, _) = timeout(PATIENCE, response(second)).await.expect("given up");
    assert_eq!(metadata(&answer, "HttpStatus"), [b"504"]);
    assert_eq!(seen.live(), stalled.len() - 1);
    answered(&edge, "/read", b"x").await;
}

#[tokio::test]
async fn uploads_that_stall_leave_room_for_others() {
    let (streams, seen) = counted();
    let edge = connect(streams).await;
    // The heads have their part of the windows.
    let window = vec![0; usize::try_from(STREAM_WINDOW.into_inner()).expect("fits") - 65_536];
    let mut stalled = Vec::new();
    for _ in 0..6 {
        let (mut send, recv) = edge.open(&head(ConnectKind::Http, "/hold", &CHUNKED)).await;
        timeout(PATIENCE, send.write_all(&window)).await.expect("a window").expect("sent");
        stalled.push((send, recv));
    }
    answered(&edge, "/read", &window).await;
    assert_eq!(seen.live(), 6);
    drop(stalled);
}
