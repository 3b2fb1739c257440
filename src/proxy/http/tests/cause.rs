//! Every cause of failure and what the client is told.

use super::backend::{nobody, saying, saying_once, scripted};
use super::*;

const GRPC: &str = "application/grpc+proto";

#[tokio::test]
async fn without_configuration_every_request_is_unavailable() {
    let f = unconfigured();
    let answer = f.send(get("/")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(f.metric("cftunnel_proxy_request_failures_total{reason=\"no_config\"}"), 1);
}

/// One rule a cause, by the first path element.
async fn causes() -> (Fixture, Vec<(&'static str, StatusCode, &'static str)>) {
    let silent = scripted(|_, mut wire| async move {
        wire.drain().await;
    })
    .await;
    let backends = vec![
        ("empty", at(BackendProtocol::Http1, &[])),
        ("nobody", at(BackendProtocol::Http1, &[nobody().await])),
        ("nobody-h2", at(BackendProtocol::H2c, &[nobody().await])),
        ("garbage", at(BackendProtocol::Http1, &[saying_once("220 mail.example ESMTP\r\n").await.address])),
        ("closing", at(BackendProtocol::Http1, &[saying_once("").await.address])),
        ("half", at(BackendProtocol::Http1, &[saying_once("HTTP/1.1 200 OK\r\nx: ").await.address])),
        (
            "lengths",
            at(
                BackendProtocol::Http1,
                &[saying("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab").await.address],
            ),
        ),
        (
            "gzip",
            at(
                BackendProtocol::Http1,
                &[saying("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n").await.address],
            ),
        ),
        (
            "switching",
            at(
                BackendProtocol::Http1,
                &[saying("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n").await.address],
            ),
        ),
        ("not-h2", at(BackendProtocol::H2c, &[saying_once("HTTP/1.1 400 Bad Request\r\n\r\n").await.address])),
        ("silent", at(BackendProtocol::Http1, &[silent.address])),
    ];
    let mut rules: Vec<_> = backends.iter().enumerate().map(|(i, (key, _))| rule(i, &format!("/{key}"), &[(key, 1)])).collect();
    rules[10].response_timeout_ms = Some(50);
    let mut refused = rule(11, "/refused", &[]);
    refused.refusal = Some("a filter of type ExtensionRef".into());
    let mut invalid = rule(12, "/invalid", &[]);
    invalid.backends = vec![ir::WeightedBackend {
        index: 0,
        weight: 1,
        target: ir::Target::Invalid("service shop/gone does not exist".into()),
        filters: Vec::new(),
    }];
    rules.extend([refused, invalid, rule(13, "/weightless", &[("nobody", 0)])]);
    let expected = vec![
        ("/elsewhere", StatusCode::NOT_FOUND, "no_rule"),
        ("/refused", StatusCode::INTERNAL_SERVER_ERROR, "refused"),
        ("/invalid", StatusCode::INTERNAL_SERVER_ERROR, "refused"),
        ("/weightless", StatusCode::INTERNAL_SERVER_ERROR, "refused"),
        ("/empty", StatusCode::SERVICE_UNAVAILABLE, "no_endpoints"),
        ("/nobody", StatusCode::BAD_GATEWAY, "connect"),
        ("/nobody-h2", StatusCode::BAD_GATEWAY, "connect"),
        ("/garbage", StatusCode::BAD_GATEWAY, "bad_response"),
        ("/closing", StatusCode::BAD_GATEWAY, "closed"),
        ("/half", StatusCode::BAD_GATEWAY, "closed"),
        ("/lengths", StatusCode::BAD_GATEWAY, "bad_response"),
        ("/gzip", StatusCode::BAD_GATEWAY, "bad_response"),
        ("/switching", StatusCode::BAD_GATEWAY, "switched"),
        ("/not-h2", StatusCode::BAD_GATEWAY, "closed"),
        ("/silent", StatusCode::GATEWAY_TIMEOUT, "head_timeout"),
    ];
    (plane(&config(rules, backends)), expected)
}

#[tokio::test]
async fn each_cause_has_its_status() {
    let (f, expected) = causes().await;
    for (path, status, reason) in expected {
        let name = format!("cftunnel_proxy_request_failures_total{{reason=\"{reason}\"}}");
        let before = f.metric(&name);
        let answer = f.send(get(path)).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert_eq!(f.metric(&name), before + 1, "{path}");
        assert!(answer.header("content-length").is_some_and(|l| l == answer.body.len().to_string()), "{path}");
    }
    f.idle().await;
    assert_eq!(f.metric("cftunnel_proxy_requests_in_flight"), 0);
}

#[tokio::test]
async fn a_grpc_client_gets_a_grpc_status_in_the_head_and_it_counts_as_what_it_stands_for() {
    let (f, expected) = causes().await;
    let mut errors = 0;
    for (path, status, _) in expected {
        let request = Request::post(path).header("content-type", GRPC).body(Body::Empty).unwrap();
        let answer = f.send(request).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/grpc"), "{path}");
        let code = if status == StatusCode::NOT_FOUND { "12" } else { "14" };
        assert_eq!(answer.header("grpc-status"), Some(code), "{path}");
        assert!(answer.header("grpc-message").is_some() && answer.body.is_empty() && answer.trailers.is_none());
        errors += u64::from(status.is_server_error());
    }
    assert_eq!(f.metric("cftunnel_proxy_requests_total{code_class=\"5xx\"}"), errors);
    assert_eq!(f.metric("cftunnel_proxy_requests_total{code_class=\"2xx\"}"), 0);
}

#[tokio::test]
async fn what_is_malformed_never_reaches_a_backend() {
    let backend = saying("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let f = plane(&h1(backend.address));
    let with = |name: &str, value: &str| Request::get("/").header(name, value).body(Body::Empty).unwrap();
    let twice = Request::post("/").header("content-length", "1").header("content-length", "2");
    let both = Request::post("/").header("content-length", "1").header("transfer-encoding", "chunked");
    let mut many = Request::get("/");
    for i in 0..300 {
        many = many.header(format!("x-{i}"), "1");
    }
    for (request, status) in [
        (with("host", "b.example"), 400),
        (twice.body(Body::full("a")).unwrap(), 400),
        (both.body(Body::full("a")).unwrap(), 400),
        (with("content-length", "many"), 400),
        (with("content-length", "5"), 400),
        (Request::post("/").header("content-length", "4").body(Body::full("hello")).unwrap(), 400),
        (Request::get("*").body(Body::Empty).unwrap(), 400),
        (Request::connect("/").body(Body::Empty).unwrap(), 400),
        (with("x", &"y".repeat(200_000)), 431),
        (many.body(Body::Empty).unwrap(), 431),
    ] {
        let shown = format!("{} {:?}", request.method(), request.headers().keys().next());
        assert_eq!(f.send(request).await.status.as_u16(), status, "{shown}");
    }
    for authority in ["", "a b", "a.example:x", "user@a.example", "a..example", "ä.example", "a.example\r\nx: y", "[::1"] {
        assert_eq!(f.send_to(authority, get("/")).await.status, StatusCode::BAD_REQUEST, "{authority:?}");
    }
    assert_eq!(backend.accepted(), 0);
    let large = with("x", &"y".repeat(60_000));
    assert_eq!(f.send(large).await.status, StatusCode::OK, "60 kB are no bomb");
}
