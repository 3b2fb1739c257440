//! What a backend sees, which endpoint it is, and what becomes of its connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::backend::{echo, echoed, nobody, saying, scripted, scripted_h2};
use super::*;

async fn echo_of(f: &Fixture, request: Request<Body>) -> Value {
    let answer = f.send(request).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

#[tokio::test]
async fn the_request_arrives_as_it_was_sent() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let f = plane(&all_to(protocol, &[echo("b").await.address]));
        let request = Request::put("/a//b/../%2e%2E/;x=%C3%A4?q=%20&&r")
            .header("x-forwarded-for", "1.2.3.4")
            .header("x-multi", "1")
            .header("connection", "x-hop, close")
            .header("x-hop", "1")
            .header("te", "trailers")
            .header("upgrade", "h2c")
            .header("keep-alive", "timeout=5")
            .header("content-length", "5")
            .body(Body::full("hello"))
            .unwrap();
        let inbound = Inbound { authority: "A.Example:8443".into(), websocket: false, via: TUNNEL };
        let answer = read(f.serve(inbound, request).await).await;
        let echo: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(echo["method"], "PUT");
        assert_eq!(echo["path"], "/a//b/../%2e%2E/;x=%C3%A4?q=%20&&r");
        assert_eq!(echo["body"], "hello");
        assert_eq!(echoed(&echo, "content-length"), Some("5"));
        assert_eq!(echoed(&echo, "x-forwarded-for"), Some("1.2.3.4"));
        assert_eq!(echoed(&echo, "te"), Some("trailers"));
        for absent in ["connection", "x-hop", "upgrade", "keep-alive", "transfer-encoding", "accept-encoding", "user-agent"] {
            assert_eq!(echoed(&echo, absent), None, "{absent}");
        }
        if protocol == BackendProtocol::Http1 {
            assert_eq!(echoed(&echo, "host"), Some("A.Example:8443"));
            assert_eq!(echo["version"], "HTTP/1.1");
        } else {
            assert_eq!(echo["authority"], "A.Example:8443");
            assert_eq!(echo["version"], "HTTP/2.0");
        }
    }
}

#[tokio::test]
async fn the_original_host_counts_only_when_the_plane_says_so() {
    let backend = echo("b").await;
    let mut config = h1(backend.address);
    config.routes[0].hostnames = vec!["b.example".parse().unwrap()];
    let request = || Request::get("/").header("x-original-host", "b.example").body(Body::Empty).unwrap();
    let f = plane(&config);
    assert_eq!(f.send(request()).await.status, StatusCode::NOT_FOUND);
    config.options.allow_x_original_host = true;
    let f = plane(&config);
    let echo = echo_of(&f, request()).await;
    assert_eq!(echoed(&echo, "host"), Some("b.example"));
    assert_eq!(echoed(&echo, "x-original-host"), None);
    let bad = Request::get("/").header("x-original-host", "b..example").body(Body::Empty).unwrap();
    assert_eq!(f.send(bad).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_direct_client_is_named_and_its_claims_are_dropped() {
    let f = plane(&h1(echo("b").await.address));
    let via = Via::Direct { peer: "10.0.0.9:1".parse().unwrap(), tls: true };
    let inbound = Inbound { authority: "a.example".into(), websocket: false, via };
    let request = Request::get("/").header("x-forwarded-for", "6.6.6.6").header("cf-ray", "1").body(Body::Empty).unwrap();
    let answer = read(f.serve(inbound, request).await).await;
    let echo: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(echoed(&echo, "x-forwarded-for"), Some("10.0.0.9"));
    assert_eq!(echoed(&echo, "x-forwarded-proto"), Some("https"));
    assert_eq!(echoed(&echo, "cf-ray"), None);
}

#[tokio::test]
async fn a_connection_is_kept_and_used_again() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let backend = echo("b").await;
        let f = plane(&all_to(protocol, &[backend.address]));
        for _ in 0..20 {
            echo_of(&f, get("/")).await;
            // The connection's own task may still be finishing on another thread of a real runtime; here it needs a turn.
            tokio::task::yield_now().await;
        }
        assert_eq!(backend.accepted(), 1, "{protocol:?}");
    }
}

#[tokio::test]
async fn many_requests_share_one_http2_connection_up_to_its_limit() {
    let backend = echo("b").await;
    let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
    let requests = (0..90).map(|_| f.send(get("/")));
    for answer in futures_util::future::join_all(requests).await {
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(backend.accepted(), 1);
}

#[tokio::test]
async fn a_connection_that_says_more_than_asked_is_not_used_again() {
    for response in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison",
    ] {
        let backend = saying(response).await;
        let f = plane(&h1(backend.address));
        for n in 1..=3 {
            let answer = f.send(get("/")).await;
            assert_eq!(answer.text(), "ok", "{response:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(backend.accepted(), n, "{response:?}");
        }
    }
}

#[tokio::test]
async fn a_dead_endpoint_costs_no_request() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let live = echo("b").await;
        let f = plane(&all_to(protocol, &[nobody().await, live.address, nobody().await]));
        for _ in 0..9 {
            let answer = f.send(post("/", "not idempotent")).await;
            assert_eq!(answer.status, StatusCode::OK, "{protocol:?}");
            assert!(answer.text().contains("not idempotent"));
        }
        assert!(f.metric("cftunnel_proxy_backend_retries_total") > 0);
        assert!(f.metric("cftunnel_proxy_upstream_connect_failures_total{reason=\"refused\"}") > 0);
    }
}

#[tokio::test]
async fn at_most_two_endpoints_more_are_tried() {
    let live = echo("b").await;
    let dead = [nobody().await, nobody().await, nobody().await, nobody().await, nobody().await];
    let f = plane(&all_to(BackendProtocol::Http1, &dead));
    assert_eq!(f.send(get("/")).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(f.metric("cftunnel_proxy_upstream_connect_failures_total{reason=\"refused\"}"), 3);
    assert_eq!(live.accepted(), 0);
}

#[tokio::test]
async fn endpoints_take_turns() {
    let (a, b) = (echo("a").await, echo("b").await);
    let f = plane(&all_to(BackendProtocol::Http1, &[a.address, b.address]));
    let mut names = Vec::new();
    for _ in 0..10 {
        names.push(echo_of(&f, get("/")).await["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.iter().filter(|n| *n == "a").count(), 5, "{names:?}");
    assert!(names.windows(2).all(|w| w[0] != w[1]), "{names:?}");
}

/// Answers the first request of a connection and closes it when the second comes, without a word.
async fn stale() -> backend::Backend {
    scripted(|_, mut wire| async move {
        wire.head().await;
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        wire.head().await;
    })
    .await
}

#[tokio::test]
async fn a_reused_connection_that_closes_costs_no_idempotent_request() {
    let backend = stale().await;
    let f = plane(&h1(backend.address));
    for _ in 0..5 {
        assert_eq!(f.send(get("/")).await.text(), "ok");
        tokio::task::yield_now().await;
    }
    assert_eq!(f.metric("cftunnel_proxy_backend_retries_total"), 4, "all but the first met the connection of the one before");
}

#[tokio::test]
async fn a_connection_that_closes_and_an_endpoint_that_is_dead_cost_no_request_together() {
    // The first turn is by chance.
    for _ in 0..8 {
        let backend = stale().await;
        let f = plane(&all_to(BackendProtocol::Http1, &[backend.address, nobody().await]));
        for _ in 0..4 {
            assert_eq!(f.send(get("/")).await.text(), "ok");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_request_that_is_not_idempotent_is_not_sent_twice() {
    let backend = stale().await;
    let f = plane(&h1(backend.address));
    assert_eq!(f.send(get("/")).await.text(), "ok");
    tokio::task::yield_now().await;
    let answer = f.send(post("/", "order")).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert_eq!(backend.accepted(), 1);
}

#[tokio::test]
async fn a_first_request_on_a_connection_is_not_sent_twice_either() {
    let backend = backend::saying_once("").await;
    let f = plane(&h1(backend.address));
    assert_eq!(f.send(get("/")).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(backend.accepted(), 1);
}

#[tokio::test]
async fn an_http2_stream_that_the_backend_refused_goes_out_again() {
    let refused = Arc::new(AtomicUsize::new(0));
    let backend = {
        let refused = Arc::clone(&refused);
        scripted_h2(move |_, mut respond| {
            let refused = Arc::clone(&refused);
            async move {
                if refused.fetch_add(1, Ordering::SeqCst) == 1 {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                } else {
                    let _ = respond.send_response(Response::new(()), true);
                }
            }
        })
        .await
    };
    let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
    for _ in 0..3 {
        assert_eq!(f.send(get("/")).await.status, StatusCode::OK);
    }
    assert_eq!(refused.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_canceled_request_is_canceled_at_the_backend() {
    let (seen, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let backend = scripted(move |_, mut wire| {
        let seen = seen.clone();
        async move {
            wire.head().await;
            seen.send("begun").unwrap();
            wire.drain().await;
            seen.send("canceled").unwrap();
        }
    })
    .await;
    let f = plane(&h1(backend.address));
    let inbound = Inbound { authority: "a.example".into(), websocket: false, via: TUNNEL };
    let mut request = Box::pin(f.plane.serve(inbound, get("/")));
    tokio::select! {
        _ = &mut request => panic!("nothing answers"),
        begun = ended.recv() => assert_eq!(begun, Some("begun")),
    }
    assert_eq!(f.plane.in_flight(), 1);
    drop(request);
    assert_eq!(tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap(), Some("canceled"));
    assert_eq!(f.plane.in_flight(), 0);
    assert_eq!(f.metric("cftunnel_proxy_requests_total{code_class=\"canceled\"}"), 1);
}

#[tokio::test]
async fn a_canceled_http2_request_is_reset_at_the_backend() {
    let (seen, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let backend = scripted_h2(move |_, mut respond| {
        let seen = seen.clone();
        async move {
            seen.send(None).unwrap();
            let reason = std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap();
            seen.send(Some(reason)).unwrap();
        }
    })
    .await;
    let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
    let inbound = Inbound { authority: "a.example".into(), websocket: false, via: TUNNEL };
    let mut request = Box::pin(f.plane.serve(inbound, get("/")));
    tokio::select! {
        _ = &mut request => panic!("nothing answers"),
        _ = ended.recv() => {}
    }
    drop(request);
    let reason = tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    assert_eq!(reason, Some(h2::Reason::CANCEL));
}

#[tokio::test]
async fn a_response_that_nobody_reads_any_more_ends_at_the_backend() {
    let (seen, ended) = tokio::sync::oneshot::channel();
    let seen = std::sync::Mutex::new(Some(seen));
    let backend = scripted(move |_, mut wire| {
        let seen = seen.lock().unwrap().take();
        async move {
            wire.head().await;
            wire.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
            wire.drain().await;
            let _ = seen.unwrap().send(());
        }
    })
    .await;
    let f = plane(&h1(backend.address));
    let inbound = Inbound { authority: "a.example".into(), websocket: false, via: TUNNEL };
    let response = f.serve(inbound, get("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(f.plane.in_flight(), 1, "the body has not ended");
    drop(response);
    tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
    f.idle().await;
}

#[tokio::test]
async fn weights_are_kept_within_tolerance() {
    let (a, b) = (
        saying("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na").await,
        saying("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb").await,
    );
    let backends = vec![
        ("a", at(BackendProtocol::Http1, &[a.address])),
        ("b", at(BackendProtocol::Http1, &[b.address])),
        ("empty", at(BackendProtocol::Http1, &[])),
    ];
    let f = plane(&config(vec![rule(0, "/", &[("a", 70), ("b", 20), ("empty", 10)])], backends));
    let mut counts = [0_usize; 3];
    for _ in 0..2000 {
        let answer = f.send(get("/")).await;
        let which = match answer.status {
            StatusCode::OK => usize::from(answer.text() == "b"),
            StatusCode::SERVICE_UNAVAILABLE => 2,
            other => panic!("{other}"),
        };
        counts[which] += 1;
    }
    // Six standard deviations of the binomial distribution: a false alarm once in 500 million runs.
    for (count, share) in counts.into_iter().zip([0.7_f64, 0.2, 0.1]) {
        let deviation = (2000.0 * share * (1.0 - share)).sqrt();
        let off = (count as f64 - 2000.0 * share).abs();
        assert!(off < 6.0 * deviation, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_one_after_the_other_need_no_more_than_a_connection_or_two() {
    let backend = echo("b").await;
    let f = plane(&h1(backend.address));
    for _ in 0..300 {
        assert_eq!(f.send(post("/", "hello")).await.status, StatusCode::OK);
    }
    assert!(backend.accepted() <= 3, "{}", backend.accepted());
}

#[tokio::test]
async fn a_dead_endpoint_is_passed_over_for_a_while() {
    let live = echo("b").await;
    let f = plane(&all_to(BackendProtocol::Http1, &[nobody().await, live.address]));
    for _ in 0..10 {
        assert_eq!(f.send(get("/")).await.status, StatusCode::OK);
    }
    assert_eq!(f.metric("cftunnel_proxy_upstream_connect_failures_total{reason=\"refused\"}"), 1);
}

#[tokio::test]
async fn a_burst_to_an_http2_endpoint_that_swallows_connections_fails_together() {
    // Accepts, and never speaks HTTP/2; the listen queue of a socket that nobody accepts from would do the same.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = socket2::SockRef::from(&listener);
    socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(Ok(filler)) = tokio::time::timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address)).await {
        queue.push(filler);
    }
    let f = plane(&all_to(BackendProtocol::H2c, &[address]));
    let start = tokio::time::Instant::now();
    let answers = futures_util::future::join_all((0..20).map(|_| f.send(get("/")))).await;
    assert!(answers.iter().all(|a| a.status == StatusCode::BAD_GATEWAY));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(f.metric("cftunnel_proxy_upstream_connect_failures_total{reason=\"timeout\"}"), 1);
}

#[tokio::test]
async fn an_options_request_may_ask_for_the_server_itself() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let f = plane(&all_to(protocol, &[echo("b").await.address]));
        let mut answer = echo_of(&f, Request::options("*").body(Body::Empty).unwrap()).await;
        assert_eq!(answer["path"].take(), "*", "{protocol:?}");
    }
}

/// Sends POST requests from several clients at once and fails on the first that is lost.
async fn post_from_many(f: &Fixture) {
    let clients = (0..6).map(|_| async {
        for _ in 0..60 {
            let answer = f.send(post("/", "order")).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        }
    });
    futures_util::future::join_all(clients).await;
}

#[tokio::test]
async fn a_backend_that_announces_the_end_of_its_connections_costs_no_request() {
    let backend = scripted(|_, mut wire| async move {
        for _ in 0..3 {
            if wire.until(b"order").await.is_none() {
                return;
            }
            wire.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
        wire.until(b"order").await;
        wire.write("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
    })
    .await;
    let f = plane(&h1(backend.address));
    post_from_many(&f).await;
    assert!(backend.accepted() >= 90, "{}", backend.accepted());
}

#[tokio::test]
async fn an_http2_backend_that_goes_away_in_peace_costs_no_request() {
    let backend = backend::leaving_h2(10).await;
    let f = plane(&all_to(BackendProtocol::H2c, &[backend.address]));
    post_from_many(&f).await;
    assert!(backend.accepted() >= 10, "{}", backend.accepted());
}
