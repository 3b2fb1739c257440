//! The edge's side is `h2`'s client on the other end of a pipe.

use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::proxy::connector::tests::{App, OnDrop, app, body};
use crate::proxy::connector::wire::headers as tunnel;
use crate::proxy::http::{Body, Inbound, Upgraded, Via};

struct Edge {
    requests: SendRequest<Bytes>,
    link: Link,
    connection: JoinHandle<Result<(), h2::Error>>,
}

/// Connects an edge with large windows to a service.
async fn connect(streams: Streams<App>) -> Edge {
    let (near, far) = duplex(1 << 20);
    let mut client = h2::client::Builder::new();
    client.initial_window_size(1 << 20).initial_connection_window_size(16 << 20).max_header_list_size(1 << 20);
    let (client, link) = tokio::join!(client.handshake(near), serve(far, None, streams));
    let (requests, connection) = client.expect("an edge");
    Edge { requests, link: link.expect("a link"), connection: tokio::spawn(connection) }
}

impl Edge {
    fn send(&mut self, request: http::request::Builder, end: bool) -> (ResponseFuture, SendStream<Bytes>) {
        self.requests.send_request(request.body(()).expect("a request"), end).expect("sent")
    }

    async fn get(&mut self, request: http::request::Builder) -> Response<RecvStream> {
        self.send(request, true).0.await.expect("a response")
    }
}

fn get(path: &str) -> http::request::Builder {
    Request::get(format!("https://app.example.test{path}"))
}

fn special(upgrade: &str) -> http::request::Builder {
    get("/").header(tunnel::UPGRADE, upgrade)
}

fn hello() -> Streams<App> {
    app(|_, _| async { Response::new(Body::full("hello")) })
}

async fn read(response: Response<RecvStream>) -> Result<(Bytes, Option<HeaderMap>), h2::Error> {
    let mut body = response.into_body();
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        all.extend_from_slice(&piece);
    }
    Ok((all.into(), body.trailers().await?))
}

fn meta<T>(response: &Response<T>) -> &str {
    response.headers()[tunnel::RESPONSE_META].to_str().expect("text")
}

#[test]
fn kinds_are_decided_in_the_order_of_the_protocol() {
    use request::{Kind, kind};
    for (upgrade, src, expected) in [
        (Some("update-configuration"), Some("1.2.3.4"), Kind::Push),
        (Some("websocket"), Some("1.2.3.4"), Kind::Websocket),
        (Some("control-stream"), Some("1.2.3.4"), Kind::Tcp),
        (None, Some("1.2.3.4"), Kind::Tcp),
        (Some("control-stream"), Some(""), Kind::Control),
        (Some("control-stream"), None, Kind::Control),
        (Some("Control-Stream"), None, Kind::Plain),
        (Some("h2c"), None, Kind::Plain),
        (None, None, Kind::Plain),
    ] {
        let mut headers = HeaderMap::new();
        if let Some(value) = upgrade {
            headers.insert(tunnel::UPGRADE, HeaderValue::from_static(value));
        }
        if let Some(value) = src {
            headers.insert(tunnel::PROXY_SRC, HeaderValue::from_static(value));
        }
        assert_eq!(kind(&headers), expected, "{upgrade:?} {src:?}");
    }
}

#[tokio::test]
async fn a_request_arrives_as_sent_and_its_response_in_the_edges_form() {
    let mut edge = connect(app(|inbound: Inbound, request: Request<Body>| async move {
        assert_eq!(inbound.authority, "app.example.test");
        assert!(!inbound.websocket && matches!(inbound.via, Via::Tunnel { connection: 1, trailers: true }));
        assert_eq!(request.uri().to_string(), "/A%2fb//c/../d?q=%20&r=http://y/");
        assert_eq!(request.headers()["x-a"], "1");
        assert!(!request.headers().contains_key(tunnel::PROXY_SRC));
        let mut response = Response::new(Body::full("hello"));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        for (name, value) in [
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("connection", "close"),
            ("keep-alive", "timeout=1"),
            ("cf-int-secret", "x"),
            ("cf-cloudflared-response-meta", "{}"),
        ] {
            response.headers_mut().append(name, HeaderValue::from_static(value));
        }
        response
    }))
    .await;
    let request = get("/A%2fb//c/../d?q=%20&r=http://y/").header("x-a", "1").header(tunnel::PROXY_SRC, "");
    let response = edge.get(request).await;
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(meta(&response), tunnel::META_ORIGIN);
    assert_eq!(response.headers()[header::CONTENT_LENGTH], "5");
    assert_eq!(response.headers().get_all(tunnel::RESPONSE_META).iter().count(), 1);
    let headers = tunnel::parse(response.headers()[tunnel::RESPONSE_HEADERS].as_bytes()).expect("serialised");
    let names: Vec<_> = headers.iter().map(|(n, v)| format!("{n}={}", v.to_str().expect("text"))).collect();
    assert_eq!(names, ["set-cookie=a=1", "set-cookie=b=2", "content-length=5"]);
    assert_eq!(read(response).await.expect("a body").0, "hello");
}

#[tokio::test]
async fn heads_without_bodies_promise_nothing_they_do_not_keep() {
    let mut edge = connect(app(|_, request: Request<Body>| async move {
        let mut response = Response::new(Body::full("hello"));
        if request.uri().path() == "/204" {
            *response.status_mut() = StatusCode::NO_CONTENT;
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("5"));
        }
        response
    }))
    .await;
    let response = edge.get(Request::head("https://app.example.test/")).await;
    assert!(response.body().is_end_stream() && !response.headers().contains_key(header::CONTENT_LENGTH));
    let response = edge.get(get("/204")).await;
    assert!(response.body().is_end_stream() && !response.headers().contains_key(header::CONTENT_LENGTH));
}

#[tokio::test]
async fn bodies_stream_both_ways_and_trailers_follow() {
    // An echo that answers before the request has ended, larger than every window.
    let mut edge = connect(app(|_, request: Request<Body>| async move { Response::new(request.into_body()) })).await;
    let (response, mut upload) = edge.send(Request::post("https://app.example.test/"), false);
    upload.send_data(Bytes::from_static(b"first"), false).expect("sent");
    let response = response.await.expect("the head comes before the end of the request");
    let total = 12 << 20;
    let sending = tokio::spawn(async move {
        let mut left = total;
        while left > 0 {
            let n = poll_fn(|cx| io::poll_room(&mut upload, left.min(60_000), cx)).await.expect("room");
            upload.send_data(vec![7; n].into(), false).expect("sent");
            left -= n;
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        upload.send_trailers(trailers).expect("sent");
    });
    let (body, trailers) = read(response).await.expect("a body");
    sending.await.expect("no panic");
    assert_eq!(body.len(), total + 5);
    assert_eq!(trailers.expect("trailers")["grpc-status"], "0");
}

#[tokio::test]
async fn each_piece_is_sent_as_it_comes() {
    let (writer, slow) = body().await;
    let (writer, slow) = (Mutex::new(Some(writer)), Mutex::new(Some(slow)));
    let mut edge = connect(app(move |_, _| {
        let body = slow.lock().expect("not poisoned").take().expect("one request");
        async move { Response::new(body) }
    }))
    .await;
    let mut response = edge.get(get("/events")).await;
    assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
    let mut writer = writer.lock().expect("not poisoned").take().expect("a writer");
    for piece in ["data: 1\n\n", "data: 2\n\n"] {
        writer.send_data(piece.into(), false).expect("sent");
        assert_eq!(response.body_mut().data().await.expect("a piece").expect("read"), piece);
    }
    writer.send_reset(Reason::INTERNAL_ERROR);
    let error = response.body_mut().data().await.expect("an end").expect_err("a body that fails is no complete body");
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn a_stalled_client_holds_no_more_than_its_window_and_the_others_go_on() {
    let sent = Arc::new(AtomicUsize::new(0));
    let (mut writer, big) = body().await;
    let big = Mutex::new(Some(big));
    let counter = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok(n) = poll_fn(|cx| io::poll_room(&mut writer, 16_384, cx)).await {
            writer.send_data(vec![0; n].into(), false).expect("sent");
            counter.fetch_add(n, Ordering::Relaxed);
        }
    });
    let mut edge = connect(app(move |_, _| {
        let body = big.lock().expect("not poisoned").take().unwrap_or_else(|| Body::full("quick"));
        async move { Response::new(body) }
    }))
    .await;
    let stalled = edge.get(get("/big")).await;
    for _ in 0..50 {
        let response = edge.get(get("/quick")).await;
        assert_eq!(read(response).await.expect("a body").0, "quick");
    }
    let held = sent.load(Ordering::Relaxed);
    assert!(held < 2 << 20, "{held} bytes were taken from the backend for a client that reads none");
    drop(stalled);
}

#[tokio::test]
async fn a_reset_by_the_edge_cancels_the_request() {
    let (dropped, seen) = oneshot::channel();
    let guard = Mutex::new(Some(OnDrop(Some(dropped))));
    let mut edge = connect(app(move |_, _| {
        let guard = guard.lock().expect("not poisoned").take();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    }))
    .await;
    let (response, mut stream) = edge.send(get("/slow"), true);
    tokio::task::yield_now().await;
    stream.send_reset(Reason::CANCEL);
    timeout(Duration::from_secs(5), seen).await.expect("cancelled at once").expect("dropped");
    drop(response);
    edge.link.idle().await;
}

#[tokio::test]
async fn bursts_of_cancelled_requests_do_not_cost_the_connection() {
    let mut edge = connect(app(|_, _| std::future::pending())).await;
    for _ in 0..3000 {
        edge.requests = edge.requests.ready().await.expect("still connected");
        let (_, mut stream) = edge.send(get("/"), true);
        stream.send_reset(Reason::CANCEL);
        tokio::task::yield_now().await;
    }
    assert!(!edge.connection.is_finished());
    edge.link.idle().await;
}

#[tokio::test]
async fn the_connectors_own_answers_say_so() {
    let mut edge = connect(app(|_, request: Request<Body>| async move {
        assert_ne!(request.uri().path(), "/panic", "on purpose");
        Response::builder().status(103).body(Body::Empty).expect("a response")
    }))
    .await;
    let management = || Request::get("https://management.argotunnel.com/logs");
    for (request, status) in [
        (get("/").header(tunnel::PROXY_SRC, "10.0.0.1"), 502),
        (management(), 404),
        (get("/panic"), 502),
        (get("/informational"), 502),
        (Request::connect("app.example.test:443"), 400),
    ] {
        let request_text = format!("{request:?}");
        let response = edge.get(request).await;
        assert_eq!(response.status().as_u16(), status, "{request_text}");
        assert_eq!(meta(&response), tunnel::META_CONNECTOR);
        assert!(!response.headers().contains_key(tunnel::RESPONSE_HEADERS) && response.body().is_end_stream());
    }
}

#[tokio::test]
async fn a_websocket_is_a_200_and_then_bytes_both_ways() {
    let mut edge = connect(app(|inbound: Inbound, request: Request<Body>| async move {
        assert!(inbound.websocket && !request.headers().contains_key(tunnel::UPGRADE));
        let (near, mut far) = duplex(64);
        tokio::spawn(async move {
            let mut buffer = [0; 5];
            far.read_exact(&mut buffer).await.expect("read");
            far.write_all(&buffer).await.expect("written");
            far.shutdown().await.expect("ended");
        });
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        response.extensions_mut().insert(Upgraded::new(near));
        response
    }))
    .await;
    let (response, mut up) = edge.send(special("websocket"), false);
    let response = response.await.expect("a response");
    assert_eq!(response.status(), StatusCode::OK);
    let headers = tunnel::parse(response.headers()[tunnel::RESPONSE_HEADERS].as_bytes()).expect("serialised");
    assert_eq!(headers[header::UPGRADE], "websocket");
    up.send_data(Bytes::from_static(b"hello"), false).expect("sent");
    // The backend ends after its answer; that ends the stream although the client never does.
    assert_eq!(read(response).await.expect("bytes").0, "hello");
    timeout(Duration::from_secs(5), edge.link.idle()).await.expect("the stream is over");
}

#[tokio::test]
async fn a_configuration_push_is_acknowledged() {
    let mut edge = connect(hello()).await;
    for (push, answer) in [
        (&br#"{"version":7,"config":{"ingress":[]}}"#[..], r#"{"err":null,"lastAppliedVersion":7}"#),
        (br#"{"version":3,"config":{}}"#, r#"{"err":null,"lastAppliedVersion":7}"#),
        (b"[]", r#"{"err":"not a configuration push","lastAppliedVersion":7}"#),
    ] {
        let (response, mut body) = edge.send(special("update-configuration"), false);
        body.send_data(Bytes::from_static(push), true).expect("sent");
        let response = response.await.expect("a response");
        assert!(response.status() == StatusCode::OK && !response.headers().contains_key(tunnel::RESPONSE_META));
        assert_eq!(read(response).await.expect("a body").0, answer);
    }
}

#[tokio::test]
async fn the_control_stream_is_answered_at_once_and_there_is_only_one() {
    let mut edge = connect(hello()).await;
    let (response, mut up) = edge.send(special("control-stream"), false);
    let mut response = response.await.expect("a head before any byte");
    let mut control = edge.link.control_stream().await.expect("a control stream");
    control.write_all(b"from the connector").await.expect("written");
    assert_eq!(response.body_mut().data().await.expect("bytes").expect("read"), "from the connector");
    up.send_data(Bytes::from_static(b"from the edge"), false).expect("sent");
    let mut buffer = [0; 13];
    control.read_exact(&mut buffer).await.expect("read");
    assert_eq!(&buffer, b"from the edge");
    let (second, _up) = edge.send(special("control-stream"), false);
    assert_eq!(second.await.expect_err("refused").reason(), Some(Reason::REFUSED_STREAM));
    timeout(Duration::from_secs(5), edge.link.idle()).await.expect("a control stream is no request");
    drop(control);
    edge.link.close(Duration::from_secs(5)).await;
    drop(timeout(Duration::from_secs(5), edge.connection).await.expect("closed"));
}

#[tokio::test]
async fn the_last_piece_waits_for_the_clients_window_until_the_limit() {
    for patient in [true, false] {
        let (near, far) = duplex(1 << 20);
        let mut client = h2::client::Builder::new();
        client.initial_window_size(1000);
        let streams = app(|_, _| async { Response::new(Body::full(vec![7; 16_000])) });
        let (client, link) = tokio::join!(client.handshake::<_, Bytes>(near), serve(far, None, streams));
        let ((mut requests, connection), link) = (client.expect("an edge"), link.expect("a link"));
        tokio::spawn(connection);
        let (response, _) = requests.send_request(get("/").body(()).expect("a request"), true).expect("sent");
        let response = response.await.expect("a response");
        timeout(Duration::from_secs(5), link.idle()).await.expect("idle");
        let limit = Duration::from_millis(if patient { 60_000 } else { 50 });
        let mut closing = tokio::spawn(link.close(limit));
        if !patient {
            timeout(Duration::from_secs(5), &mut closing).await.expect("cut").expect("no panic");
        }
        let whole = timeout(Duration::from_secs(5), read(response)).await.expect("in time");
        assert_eq!(whole.map(|(body, _)| body.len()).ok(), patient.then_some(16_000));
        if patient {
            timeout(Duration::from_secs(5), closing).await.expect("closed").expect("no panic");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_opens_no_control_stream_is_given_up() {
    let mut edge = connect(hello()).await;
    let error = edge.link.control_stream().await.map(drop).expect_err("none came");
    assert_eq!(error.to_string(), "no control stream within 5s");
}

#[tokio::test]
async fn a_goaway_is_noticed() {
    let (mut near, far) = duplex(1 << 16);
    let link = tokio::spawn(serve(far, None, hello()));
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("written");
    let link = link.await.expect("no panic").expect("a link");
    assert!(!link.leaving.is_cancelled());
    near.write_all(b"\0\0\x08\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0").await.expect("written");
    timeout(Duration::from_secs(5), link.leaving.cancelled()).await.expect("noticed");
}

/// A path that takes `delay` each way and has no limit of its own.
fn far_away(near: DuplexStream, far: DuplexStream, delay: Duration) {
    let ((from_near, to_near), (from_far, to_far)) = (tokio::io::split(near), tokio::io::split(far));
    tokio::spawn(delayed(from_near, to_far, delay));
    tokio::spawn(delayed(from_far, to_near, delay));
}

async fn delayed(mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>, delay: Duration) {
    let (sender, mut under_way) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((due, bytes)) = under_way.recv().await {
            tokio::time::sleep_until(due).await;
            let bytes: Vec<u8> = bytes;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        sender.send((Instant::now() + delay, buffer[..n].to_vec())).expect("the writer outlives the reader");
    }
}

#[tokio::test(start_paused = true)]
async fn one_upload_over_a_round_trip_of_100_ms_exceeds_200_mbit_per_second() {
    let ((near, near_end), (far, far_end)) = (duplex(1 << 20), duplex(1 << 20));
    far_away(near_end, far_end, Duration::from_millis(50));
    let streams = app(|_, request: Request<Body>| async move {
        let bytes = request.into_body().collect().await.expect("a body").to_bytes();
        Response::new(Body::full(bytes.len().to_string()))
    });
    let (client, _link) = tokio::join!(h2::client::handshake(near), serve(far, None, streams));
    let (mut requests, connection) = client.expect("an edge");
    tokio::spawn(connection);
    sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    let request = Request::post("https://app.example.test/").body(()).expect("a request");
    let (response, mut up) = requests.send_request(request, false).expect("sent");
    let total = 64_usize << 20;
    let mut left = total;
    while left > 0 {
        let n = poll_fn(|cx| io::poll_room(&mut up, left.min(1 << 16), cx)).await.expect("room");
        up.send_data(vec![0; n].into(), n == left).expect("sent");
        left -= n;
    }
    assert_eq!(read(response.await.expect("a response")).await.expect("a body").0, total.to_string());
    let mbit = total as f64 * 8.0 / 1e6 / started.elapsed().as_secs_f64();
    assert!(mbit > 200.0, "{mbit} Mbit/s");
}

/// Speaks just enough HTTP/2 to be connected, and then nothing.
async fn mute() -> (DuplexStream, Link) {
    let (mut near, far) = duplex(1 << 16);
    let link = tokio::spawn(serve(far, None, hello()));
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("written");
    (near, link.await.expect("no panic").expect("a link"))
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_found_within_ten_seconds_and_a_busy_one_is_not_silent() {
    let (_near, mut link) = mute().await;
    let started = Instant::now();
    assert!(matches!(link.ended().await, LinkError::Silent));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());

    let (mut near, mut link) = mute().await;
    let chatter = async {
        for _ in 0..60 {
            sleep(Duration::from_secs(1)).await;
            // A window update: life, but no answer to a PING.
            near.write_all(b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01").await.expect("written");
        }
    };
    tokio::select! {
        error = link.ended() => panic!("{error}"),
        () = chatter => {}
    }
}

#[tokio::test]
async fn garbage_ends_the_connection_and_nothing_else() {
    let (mut near, far) = duplex(1 << 16);
    near.write_all(&[0xff; 512]).await.expect("written");
    assert!(serve(far, None, hello()).await.is_err());
    let (mut near, mut link) = mute().await;
    near.write_all(&[0xff; 512]).await.expect("written");
    assert!(matches!(link.ended().await, LinkError::Http2(_)));
}

#[tokio::test]
async fn an_upload_body_is_what_was_sent() {
    let mut edge = connect(app(|_, request: Request<Body>| async move {
        let bytes = request.into_body().collect().await.expect("a body").to_bytes();
        Response::new(Body::full(bytes.len().to_string()))
    }))
    .await;
    let (response, mut up) = edge.send(Request::post("https://app.example.test/").header(header::CONTENT_LENGTH, "5"), false);
    up.send_data(Bytes::from_static(b"hello"), true).expect("sent");
    assert_eq!(read(response.await.expect("a response")).await.expect("a body").0, "5");
}
