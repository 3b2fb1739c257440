//! Backends that break the rules on purpose: what they gain, and what everybody else keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::backend::{black_hole, echo, scripted};
use super::*;

/// Most bytes that a backend gets rid of before it is given up: its head's limit, and what the sockets of both ends hold.
const GIVEN_UP_AFTER: usize = 16 << 20;

#[tokio::test]
async fn bytes_behind_an_answer_are_never_anothers_answer() {
    const BEHIND: &str = "HTTP/1.1 200 OK\r\nx-evil: 1\r\ncontent-length: 4\r\n\r\nevil";
    for (method, answer) in [
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"),
        ("POST", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let backend = scripted(move |_, mut wire| async move {
            while wire.head().await.is_some() {
                wire.write(&format!("{answer}{BEHIND}")).await;
            }
        })
        .await;
        let f = plane(&h1(backend.address));
        for n in 0..40 {
            let request = Request::builder().method(method).uri(format!("/{n}")).body(Body::Empty).unwrap();
            let answer = f.send(request).await;
            assert_eq!(answer.header("x-evil"), None, "{method} {answer:?}");
            assert!(answer.text() != "evil", "{method} {answer:?}");
        }
        f.idle().await;
    }
}

/// A backend that writes `start`, then `again` for ever; and how many bytes it got rid of.
async fn endless(start: &'static str, again: &'static str) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (written, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, over) = (Arc::clone(&written), Arc::clone(&ended));
    let backend = scripted(move |_, mut wire| {
        let (count, over) = (Arc::clone(&count), Arc::clone(&over));
        async move {
            wire.head().await;
            wire.write(start).await;
            let piece = again.repeat(4096 / again.len());
            while wire.try_write(&piece).await {
                count.fetch_add(piece.len(), Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            over.fetch_add(1, Ordering::Relaxed);
        }
    })
    .await;
    (backend.address, written, ended)
}

#[tokio::test]
async fn heads_and_trailers_without_an_end_are_given_up_and_the_others_go_on() {
    let good = echo("good").await;
    for (start, again, has_head) in [
        ("HTTP/1.1 200 OK\r\n", "x-a: b\r\n", false),
        ("HTTP/1.1 200 OK\r\nx-long: ", "x", false),
        ("HTTP/1.1 200 ", "O", false),
        ("", "\r\n", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n", "x-a: b\r\n", true),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;", "x", true),
    ] {
        let (bad, written, ended) = endless(start, again).await;
        let rules = vec![rule(0, "/good", &[("good", 1)]), rule(1, "/", &[("bad", 1)])];
        let backends = vec![("good", at(BackendProtocol::Http1, &[good.address])), ("bad", at(BackendProtocol::Http1, &[bad]))];
        let f = plane(&config(rules, backends));
        let (answer, other) = tokio::join!(f.send(get("/bad")), f.send(get("/good")));
        assert_eq!(other.status, StatusCode::OK, "{start:?} {again:?}");
        match has_head {
            false => assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{start:?} {again:?}"),
            true => assert!(answer.cut.is_some(), "{start:?} {again:?} looks complete"),
        }
        let over = async {
            while ended.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, over).await.expect("the backend is hung up on");
        let written = written.load(Ordering::Relaxed);
        assert!(written < GIVEN_UP_AFTER, "{start:?} {again:?}: {written} bytes were taken");
        f.idle().await;
    }
}

#[tokio::test]
async fn interim_answers_without_an_end_are_given_up() {
    let (bad, _, ended) = endless("", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n").await;
    let f = plane(&h1(bad));
    assert_eq!(f.send(get("/")).await.status, StatusCode::BAD_GATEWAY);
    let over = async {
        while ended.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, over).await.expect("the backend is hung up on");
    f.idle().await;
}

#[tokio::test]
async fn an_answer_before_the_end_of_an_upload_arrives_whole_and_ends_the_upload() {
    for last in ["", "connection: close\r\n"] {
        let answer = format!("HTTP/1.1 413 Content Too Large\r\n{last}content-length: 5\r\n\r\nlarge");
        let backend = scripted(move |_, mut wire| {
            let answer = answer.clone();
            async move {
                wire.head().await;
                wire.write(&answer).await;
                if last.is_empty() {
                    // Reads nothing more, and stays.
                    std::future::pending::<()>().await;
                }
            }
        })
        .await;
        let f = plane(&h1(backend.address));
        for _ in 0..3 {
            let (mut upload, body) = streamed().await;
            let (held, freed) = tokio::sync::oneshot::channel::<()>();
            let request = Request::post("/").body(body.guarded(Box::new(held))).unwrap();
            let feed = tokio::spawn(async move {
                let mut taken = 0;
                upload.reserve_capacity(16 * 1024);
                while let Some(Ok(room)) = std::future::poll_fn(|cx| upload.poll_capacity(cx)).await {
                    taken += room;
                    assert!(taken < GIVEN_UP_AFTER, "{last:?}: {taken} bytes were taken");
                    upload.send_data(Bytes::from(vec![b'x'; room]), false).unwrap();
                    upload.reserve_capacity(16 * 1024);
                }
            });
            let answer = f.send(request).await;
            assert_eq!((answer.status, answer.text()), (StatusCode::PAYLOAD_TOO_LARGE, "large"), "{last:?}");
            let freed = tokio::time::timeout(PATIENCE, freed).await.expect("the upload is let go");
            assert!(freed.is_err(), "by its drop");
            assert!(!feed.is_finished(), "and not because it was too large");
            feed.abort();
        }
        f.idle().await;
    }
}

#[tokio::test]
async fn endpoints_that_say_nothing_are_waited_for_twice_and_no_more() {
    let holes = [black_hole().await, black_hole().await, black_hole().await, black_hole().await];
    let addresses = holes.each_ref().map(|hole| hole.address);
    let f = plane(&all_to(BackendProtocol::Http1, &addresses));
    assert_eq!(f.send(get("/")).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(f.metric("cftunnel_proxy_upstream_connect_failures_total{reason=\"timeout\"}"), 2);
    f.idle().await;
}
