//! Filters of rules and of backendRefs, end to end.

use super::backend::{echo, echoed, saying};
use super::*;
use crate::gateway::ir::{Filter, HeaderEdit, PathRewrite, Redirect, RedirectPort, Rewrite};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
}

#[tokio::test]
async fn request_filters_of_the_rule_come_before_those_of_the_backend() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let mut config = all_to(protocol, &[echo("b").await.address]);
        let rule = &mut config.routes[0].rules[0];
        rule.matches = super::rule(0, "/old", &[]).matches;
        rule.filters = vec![
            Filter::RequestHeaders(HeaderEdit { set: pairs(&[("x-by", "rule"), ("x-rule", "1")]), ..HeaderEdit::default() }),
            Filter::Rewrite(Rewrite { hostname: Some("new.example".into()), path: Some(PathRewrite::Prefix("/new".into())) }),
        ];
        rule.backends[0].filters = vec![Filter::RequestHeaders(HeaderEdit {
            set: pairs(&[("x-by", "backend")]),
            add: pairs(&[("x-rule", "2")]),
            remove: vec!["x-secret".into()],
        })];
        let f = plane(&config);
        let request = Request::get("/old/%20x?q=/old").header("x-secret", "1").body(Body::Empty).unwrap();
        let answer = f.send(request).await;
        let echo: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(echo["path"], "/new/%20x?q=/old");
        assert_eq!(echoed(&echo, "x-by"), Some("backend"));
        assert_eq!(echoed(&echo, "x-secret"), None);
        let rule: Vec<_> = echo["headers"].as_array().unwrap().iter().filter(|h| h[0] == "x-rule").collect();
        assert_eq!(rule.len(), 2, "{echo}");
        let host = echoed(&echo, "host").or_else(|| echo["authority"].as_str());
        assert_eq!(host, Some("new.example"));
    }
}

#[tokio::test]
async fn response_filters_apply_and_cannot_change_the_framing() {
    let backend = saying("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nserver: secret\r\n\r\nok").await;
    let mut config = h1(backend.address);
    config.routes[0].rules[0].filters = vec![Filter::ResponseHeaders(HeaderEdit {
        set: pairs(&[("x-by", "rule")]),
        add: pairs(&[("vary", "a"), ("vary", "b")]),
        remove: vec!["server".into()],
    })];
    let f = plane(&config);
    let answer = f.send(get("/")).await;
    assert_eq!(answer.header("x-by"), Some("rule"));
    assert_eq!(answer.header("server"), None);
    assert_eq!(answer.headers.get_all("vary").iter().count(), 2);
    assert_eq!((answer.header("content-length"), answer.text()), (Some("2"), "ok"));
}

#[tokio::test]
async fn a_redirect_is_answered_without_a_backend() {
    let mut config = config(vec![rule(0, "/", &[])], Vec::new());
    config.routes[0].rules[0].filters = vec![Filter::Redirect(Redirect {
        scheme: Some("https".into()),
        hostname: None,
        port: RedirectPort::None,
        path: None,
        status: 308,
    })];
    let f = plane(&config);
    let answer = f.send_to("Shop.Example:8080", get("/a%20b?c=d")).await;
    assert_eq!(answer.status.as_u16(), 308);
    assert_eq!(answer.header("location"), Some("https://shop.example/a%20b?c=d"));
    assert_eq!(answer.header("content-length"), Some("0"));
    assert_eq!(f.metric("cftunnel_proxy_requests_total{code_class=\"3xx\"}"), 1);
}

#[tokio::test]
async fn a_redirect_of_a_backend_takes_its_share_and_the_scheme_of_the_client() {
    let mut config = config(vec![rule(0, "/", &[("b", 1)])], vec![("b", at(BackendProtocol::Http1, &[]))]);
    config.routes[0].rules[0].backends[0].filters = vec![Filter::Redirect(Redirect {
        scheme: None,
        hostname: Some("other.example".into()),
        port: RedirectPort::Listener { http: Some(8080), https: Some(443) },
        path: None,
        status: 302,
    })];
    let f = plane(&config);
    for (scheme, want) in [("http", "http://other.example:8080/x"), ("https", "https://other.example/x")] {
        let request = Request::get("/x").header("x-forwarded-proto", scheme).body(Body::Empty).unwrap();
        assert_eq!(f.send(request).await.header("location"), Some(want));
    }
}
