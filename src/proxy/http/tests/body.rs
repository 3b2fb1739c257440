//! Bodies: streamed both ways, exactly as long as they say or visibly broken.

use bytes::Bytes;

use super::backend::{echo, echoed, saying, saying_once, scripted, scripted_h2};
use super::*;

#[tokio::test]
async fn a_body_of_unknown_length_is_chunked() {
    for method in ["POST", "GET", "DELETE"] {
        let f = plane(&h1(echo("b").await.address));
        let (mut sender, body) = streamed().await;
        sender.send_data(Bytes::from_static(b"hel"), false).unwrap();
        sender.send_data(Bytes::from_static(b"lo"), true).unwrap();
        let answer = f.send(Request::builder().method(method).uri("/").body(body).unwrap()).await;
        let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(echo["body"], "hello", "{method}");
        assert_eq!(echoed(&echo, "transfer-encoding"), Some("chunked"), "{method}");
        assert_eq!(echoed(&echo, "content-length"), None, "{method}");
    }
}

#[tokio::test]
async fn a_stream_that_closes_empty_is_no_body() {
    let f = plane(&h1(echo("b").await.address));
    let (mut sender, body) = streamed().await;
    sender.send_data(Bytes::new(), true).unwrap();
    let answer = f.send(Request::get("/").body(body).unwrap()).await;
    let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(echoed(&echo, "transfer-encoding"), None);
    assert_eq!(echoed(&echo, "content-length"), None);
    let answer = f.send(Request::post("/").body(Body::Empty).unwrap()).await;
    let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(echoed(&echo, "content-length"), Some("0"));
}

#[tokio::test]
async fn trailers_of_a_request_are_not_forwarded() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let f = plane(&all_to(protocol, &[echo("b").await.address]));
        let (mut sender, body) = streamed().await;
        sender.send_data(Bytes::from_static(b"hello"), false).unwrap();
        sender.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())])).unwrap();
        let answer = f.send(Request::post("/").header("trailer", "x-sum").body(body).unwrap()).await;
        let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(echo["body"], "hello");
        assert_eq!(echo["trailers"], serde_json::Value::Null, "{protocol:?}");
        assert_eq!(echoed(&echo, "trailer"), None);
    }
}

/// What a backend read of a request whose body has another length than declared.
async fn broken_upload(sent: &'static str, declared: &str) -> (StatusCode, String) {
    let (seen, read) = tokio::sync::oneshot::channel();
    let seen = std::sync::Mutex::new(Some(seen));
    let backend = scripted(move |_, mut wire| {
        let seen = seen.lock().unwrap().take();
        async move {
            let body = match wire.head().await {
                Some(_) => wire.drain().await,
                None => String::new(),
            };
            if let Some(seen) = seen {
                let _ = seen.send(body);
            }
        }
    })
    .await;
    let f = plane(&h1(backend.address));
    let (mut sender, body) = streamed().await;
    sender.send_data(Bytes::from_static(sent.as_bytes()), true).unwrap();
    let answer = f.send(Request::post("/").header("content-length", declared).body(body).unwrap()).await;
    (answer.status, tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap())
}

#[tokio::test]
async fn a_body_of_another_length_never_looks_complete() {
    let (status, read) = broken_upload("hello", "9").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(read.len() < 9, "{read:?}");
    let (status, read) = broken_upload("hello", "4").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(read.len() < 4, "{read:?}");
}

#[tokio::test]
async fn bytes_after_the_declared_end_break_the_request_although_they_come_late() {
    let (seen, read) = tokio::sync::oneshot::channel();
    let seen = std::sync::Mutex::new(Some(seen));
    let backend = scripted(move |_, mut wire| {
        let seen = seen.lock().unwrap().take();
        async move {
            wire.head().await;
            let _ = seen.unwrap().send(wire.drain().await);
        }
    })
    .await;
    let f = plane(&h1(backend.address));
    let (mut sender, body) = streamed().await;
    sender.send_data(Bytes::from_static(b"hello"), false).unwrap();
    let late = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        sender.send_data(Bytes::from_static(b"GET /smuggled"), true).unwrap();
    };
    let request = Request::post("/").header("content-length", "5").body(body).unwrap();
    let (answer, ()) = tokio::join!(f.send(request), late);
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(read.await.unwrap(), "", "the last bytes were held back");
}

#[tokio::test]
async fn an_http2_backend_sees_a_reset_when_the_body_breaks() {
    let (seen, mut read) = tokio::sync::mpsc::unbounded_channel();
    let backend = scripted_h2(move |request, respond| {
        let seen = seen.clone();
        async move {
            let _respond = respond;
            let mut body = request.into_body();
            while let Some(chunk) = body.data().await {
                match chunk {
                    Ok(chunk) => {
                        let _ = body.flow_control().release_capacity(chunk.len());
                    }
                    Err(error) => {
                        seen.send(error.is_reset()).unwrap();
                        return;
                    }
                }
            }
            seen.send(false).unwrap();
        }
    })
    .await;
    let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
    let (mut sender, body) = streamed().await;
    sender.send_data(Bytes::from_static(b"hello"), true).unwrap();
    let answer = f.send(Request::post("/").header("content-length", "9").body(body).unwrap()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(tokio::time::timeout(PATIENCE, read.recv()).await.unwrap(), Some(true));
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_an_answer() {
    let backend = scripted(|_, mut wire| async move {
        wire.head().await;
        wire.write("HTTP/1.1 413 Payload Too Large\r\ncontent-length: 4\r\n\r\nlate").await;
        wire.drain().await;
    })
    .await;
    let f = plane(&h1(backend.address));
    let (mut sender, body) = streamed().await;
    sender.send_data(Bytes::from_static(b"begun"), false).unwrap();
    let answer = f.send(Request::post("/").body(body).unwrap()).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.text(), "late");
    // The connection is still busy with the upload: the next request does not wait for it.
    assert_eq!(f.send(get("/")).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(backend.accepted(), 2);
    drop(sender);
}

#[tokio::test]
async fn the_deadline_does_not_count_the_upload_nor_cut_the_download() {
    let backend = scripted(|_, mut wire| async move {
        wire.head().await;
        wire.until(b"0\r\n\r\n").await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow").await;
        wire.until(b"\r\n\r\n").await;
    })
    .await;
    let mut config = h1(backend.address);
    config.routes[0].rules[0].response_timeout_ms = Some(300);
    let f = plane(&config);
    let (mut sender, body) = streamed().await;
    let upload = async {
        for _ in 0..5 {
            sender.send_data(Bytes::from_static(b"x"), false).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        sender.send_data(Bytes::new(), true).unwrap();
    };
    let (answer, ()) = tokio::join!(f.send(Request::post("/").body(body).unwrap()), upload);
    assert_eq!(answer.text(), "slow");
}

#[tokio::test]
async fn a_response_is_streamed_as_it_comes() {
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let wait = std::sync::Mutex::new(Some(wait));
    let backend = scripted(move |_, mut wire| {
        let wait = wait.lock().unwrap().take();
        async move {
            wire.head().await;
            wire.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                .await;
            let _ = wait.unwrap().await;
            wire.write("6\r\nsecond\r\n0\r\n\r\n").await;
        }
    })
    .await;
    let f = plane(&h1(backend.address));
    let inbound = Inbound { authority: "a.example".into(), websocket: false, via: TUNNEL };
    let mut body = f.serve(inbound, get("/")).await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "first");
    go.send(()).unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "second");
    assert!(body.frame().await.is_none());
    f.idle().await;
}

#[tokio::test]
async fn a_response_that_is_shorter_than_it_says_is_cut() {
    for response in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n",
    ] {
        let f = plane(&h1(saying_once(response).await.address));
        let answer = f.send(get("/")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(answer.cut.is_some(), "{response:?} looks complete");
        assert!(answer.text().starts_with("hello") || answer.body.is_empty());
        f.idle().await;
    }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_response_is_a_cut() {
    let backend = scripted(|_, mut wire| async move {
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\n\r\nhello").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        wire.reset();
    })
    .await;
    let f = plane(&h1(backend.address));
    let answer = f.send(get("/")).await;
    assert!(answer.cut.is_some(), "a body that ends with its connection must not hide a reset");
}

#[tokio::test]
async fn an_http2_response_of_another_length_is_cut() {
    for sent in ["hello", "hello and more"] {
        let backend = scripted_h2(move |_, mut respond| async move {
            let head = Response::builder().header("content-length", "10").body(()).unwrap();
            let mut stream = respond.send_response(head, false).unwrap();
            let _ = stream.send_data(Bytes::from_static(sent.as_bytes()), true);
            std::future::poll_fn(|cx| stream.poll_reset(cx)).await.ok();
        })
        .await;
        let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
        let inbound = Inbound { authority: "a.example".into(), websocket: false, via: TUNNEL };
        let response = f.serve(inbound, get("/")).await;
        let cut = response.status() == StatusCode::BAD_GATEWAY || read(response).await.cut.is_some();
        assert!(cut, "{sent:?} looks complete");
    }
}

#[tokio::test]
async fn responses_have_one_length_and_no_hop_by_hop_fields() {
    let f = plane(&h1(saying(
        "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
             HTTP/1.1 200 OK\r\nconnection: x-hop, keep-alive\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\nproxy-connection: x\r\n\
             content-length: 2, 2\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\nok",
    )
    .await
    .address));
    let answer = f.send(get("/")).await;
    assert_eq!(answer.status, StatusCode::OK, "1xx are dropped");
    assert_eq!(answer.text(), "ok");
    assert_eq!(answer.header("content-length"), Some("2"));
    assert_eq!(answer.headers.get_all("set-cookie").iter().count(), 2);
    for absent in ["connection", "x-hop", "keep-alive", "proxy-connection", "transfer-encoding", "link"] {
        assert_eq!(answer.header(absent), None, "{absent}");
    }
    let both = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let answer = plane(&h1(saying(both).await.address)).send(get("/")).await;
    assert_eq!((answer.text(), answer.header("content-length")), ("ok", None));
}

#[tokio::test]
async fn trailers_of_a_response_pass() {
    let chunked = "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\
                   x-sum: 7\r\nconnection: x-hop\r\nx-hop: 1\r\ntransfer-encoding: gzip\r\nhost: evil\r\n\r\n";
    let answer = plane(&h1(saying(chunked).await.address)).send(get("/")).await;
    assert_eq!(answer.text(), "ok");
    let trailers = answer.trailers.unwrap();
    assert_eq!((&trailers["x-sum"], trailers.len()), (&http::HeaderValue::from_static("7"), 1), "{trailers:?}");

    let backend = scripted_h2(|_, mut respond| async move {
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        stream.send_data(Bytes::from_static(b"ok"), false).unwrap();
        stream.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), "5".parse().unwrap())])).unwrap();
    })
    .await;
    let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
    let answer = f.send(Request::post("/").header("content-type", "application/grpc").body(Body::Empty).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.trailers.unwrap()["grpc-status"], "5", "a backend's own status is left alone");
    assert_eq!(f.metric("cftunnel_proxy_requests_total{code_class=\"2xx\"}"), 1);
}

#[tokio::test]
async fn responses_without_a_body_have_none() {
    let backend = saying("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await;
    let f = plane(&h1(backend.address));
    for _ in 0..2 {
        let answer = f.send(Request::head("/").body(Body::Empty).unwrap()).await;
        assert_eq!(answer.header("content-length"), Some("1000"), "what a GET would have");
        assert!(answer.body.is_empty() && answer.cut.is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(backend.accepted(), 1, "the connection is free again");
    f.idle().await;

    let answer = plane(&h1(saying("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n").await.address)).send(get("/")).await;
    assert_eq!((answer.status, answer.header("content-length")), (StatusCode::NO_CONTENT, None));
    let answer = plane(&h1(saying("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n").await.address)).send(get("/")).await;
    assert_eq!(answer.status, StatusCode::NOT_MODIFIED);
    assert!(answer.body.is_empty() && answer.cut.is_none());
}

#[tokio::test]
async fn a_large_body_passes_whole_in_both_directions() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let f = plane(&all_to(protocol, &[echo("b").await.address]));
        let large = "x".repeat(3 << 20);
        let request = Request::post("/").header("content-length", large.len()).body(Body::full(large.clone())).unwrap();
        let answer = f.send(request).await;
        let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert!(echo["body"] == large, "{protocol:?}");
    }
}

#[tokio::test]
async fn http2_responses_without_a_body_may_name_a_length() {
    for status in [200, 304] {
        let backend = scripted_h2(move |_, mut respond| async move {
            let head = Response::builder().status(status).header("content-length", "1000").body(()).unwrap();
            let _ = respond.send_response(head, true);
        })
        .await;
        let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
        let method = if status == 200 { "HEAD" } else { "GET" };
        let answer = f.send(Request::builder().method(method).uri("/").body(Body::Empty).unwrap()).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-length")), (status, Some("1000")));
        assert!(answer.cut.is_none() && answer.body.is_empty());
    }
}

#[tokio::test]
async fn a_refusal_before_the_upload_has_ended_is_passed_on() {
    let backend = scripted(|_, mut wire| async move {
        wire.head().await;
        wire.write("HTTP/1.1 413 Payload Too Large\r\nconnection: close\r\ncontent-length: 5\r\n\r\nlarge").await;
    })
    .await;
    let f = plane(&h1(backend.address));
    let mut refused = 0;
    for _ in 0..20 {
        let body = Body::full("x".repeat(8 << 20));
        let answer = f.send(Request::post("/").header("content-length", 8 << 20).body(body).unwrap()).await;
        refused += u32::from(answer.status == StatusCode::PAYLOAD_TOO_LARGE);
    }
    assert_eq!(refused, 20);
}
