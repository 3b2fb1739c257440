//! What the compiler makes of rules, good and bad.

use std::time::Duration;

use super::*;
use crate::proxy::table::compile::CompileError;
use crate::proxy::table::{Action, Filter, Target};

fn backend(name: &str) -> (ir::BackendKey, ir::Backend) {
    let backend = ir::Backend {
        object: ObjectRef::new(Kind::Service, "ns", name),
        port: 80,
        protocol: ir::BackendProtocol::Http1,
        websocket: false,
        endpoints: vec!["10.0.0.1:80".parse().expect("an address")],
    };
    (ir::BackendKey(format!("ns/{name}:80/http1").into()), backend)
}

fn share(index: usize, weight: u32, name: &str) -> ir::WeightedBackend {
    ir::WeightedBackend { index, weight, target: ir::Target::Backend(backend(name).0), filters: vec![] }
}

/// A document with one rule for `/r` beside one for `/`, changed by `change`.
fn with_rule(change: impl FnOnce(&mut ir::Rule)) -> Document {
    let mut document = Document::open().http("r", &[], vec![vec![prefix("/r")], vec![prefix("/")]]);
    document.0.backends = [backend("a"), backend("b")].into();
    change(&mut document.0.routes[0].rules[0]);
    document
}

/// What a request for `/r` meets: the index of the rule, and the reason when it is refused.
fn outcome(document: &Document) -> (usize, Option<String>) {
    let table = document.compiled().table;
    let request = Request::get("h.com/r");
    let hit = table.find(&request.key()).expect("a hit");
    let reason = if let Action::Refuse(reason) = &hit.rule.action { Some(reason.to_string()) } else { None };
    (hit.rule.index, reason)
}

#[track_caller]
fn expect_dropped(document: &Document, says: &str) {
    let refusals = document.compiled().refusals;
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert_eq!((refusals[0].route.name(), refusals[0].rule), ("r", 0));
    assert!(refusals[0].reason.contains(says) && refusals[0].reason.ends_with("left out"), "{}", refusals[0].reason);
    assert_eq!(outcome(document), (1, None), "the other rule serves");
}

#[track_caller]
fn expect_refused(document: &Document, says: &str) {
    let refusals = document.compiled().refusals;
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(refusals[0].reason.contains(says) && refusals[0].reason.ends_with("get 500"), "{}", refusals[0].reason);
    let (index, reason) = outcome(document);
    assert!(index == 0 && reason.as_ref().is_some_and(|r| r.contains(says)), "{reason:?}");
}

#[test]
fn a_document_of_another_format_is_an_error() {
    let config = ir::RouteConfig { format: 2, ..ir::RouteConfig::empty() };
    let Err(error) = compile(&config) else { panic!("format 2 was read") };
    assert_eq!(error, CompileError::Format { found: 2 });
    assert!(error.to_string().contains("format 2"));
}

#[test]
fn a_rule_whose_match_cannot_be_used_is_left_out_alone() {
    let of = |m: ir::HttpMatch| with_rule(|r| r.matches = vec![ir::Match::Http(prefix("/r")), ir::Match::Http(m)]);
    expect_dropped(&of(regex("/r(")), "does not parse");
    expect_dropped(&of(regex("((a{0,100}){0,100}){0,100}")), "too large");
    expect_dropped(&of(with_method(prefix("/r"), "G T")), "method");
    expect_dropped(&of(with_method(prefix("/r"), "")), "method");
    expect_dropped(&of(prefix("/r").header("a b", "1")), "header name");
    expect_dropped(&of(with_query(prefix("/r"), "q", like("["))), "does not parse");
    expect_dropped(&of(prefix("r")), "start with '/'");
    expect_dropped(&of(exact("")), "start with '/'");
    expect_dropped(&of(prefix("/r//x")), "empty element");
    expect_dropped(&with_rule(|r| r.matches = vec![]), "no match");
    expect_dropped(&with_rule(|r| r.matches = vec![ir::Match::Grpc(ir::GrpcMatch::default())]), "another kind");
}

fn header_edit(name: &str, value: &str) -> ir::HeaderEdit {
    ir::HeaderEdit { set: vec![(name.into(), value.into())], ..ir::HeaderEdit::default() }
}

fn redirect() -> ir::Redirect {
    ir::Redirect { scheme: None, hostname: None, port: ir::RedirectPort::None, path: None, status: 302 }
}

fn rewrite(hostname: Option<&str>, path: Option<ir::PathRewrite>) -> ir::Filter {
    ir::Filter::Rewrite(ir::Rewrite { hostname: hostname.map(Into::into), path })
}

#[test]
fn a_rule_whose_filter_cannot_be_used_answers_500() {
    let of = |filter: ir::Filter| with_rule(|r| r.filters = vec![filter]);
    expect_refused(&of(ir::Filter::RequestHeaders(header_edit("a b", "1"))), "header name");
    expect_refused(&of(ir::Filter::ResponseHeaders(header_edit("a", "1\n2"))), "header \"a\"");
    expect_refused(&of(ir::Filter::Redirect(ir::Redirect { status: 304, ..redirect() })), "status 304");
    expect_refused(&of(ir::Filter::Redirect(ir::Redirect { scheme: Some("ftp".into()), ..redirect() })), "ftp");
    for bad in ["a b", "user@a.com", "a.com:80", "a.com/x", ""] {
        expect_refused(&of(ir::Filter::Redirect(ir::Redirect { hostname: Some(bad.into()), ..redirect() })), "no host name");
        expect_refused(&of(rewrite(Some(bad), None)), "no host name");
    }
    for bad in ["/a b", "/a?b", "/a#b", "/a\r\nb"] {
        expect_refused(&of(rewrite(None, Some(ir::PathRewrite::Full(bad.into())))), "no path");
        expect_refused(&of(rewrite(None, Some(ir::PathRewrite::Prefix(bad.into())))), "no path");
    }
    let both = vec![ir::Filter::Redirect(redirect()), rewrite(Some("a.com"), None)];
    expect_refused(&with_rule(|r| r.filters = both), "combined");
    expect_refused(&with_rule(|r| r.filters = vec![ir::Filter::Redirect(redirect()); 2]), "combined");
}

#[test]
fn a_secret_in_a_header_is_not_repeated_in_the_refusal() {
    let document = with_rule(|r| r.filters = vec![ir::Filter::RequestHeaders(header_edit("authorization", "s3cr3t\n"))]);
    assert!(!format!("{:?}", document.compiled().refusals).contains("s3cr3t"));
}

#[test]
fn a_route_that_names_an_unknown_listener_answers_500_on_the_others() {
    let mut document = with_rule(|_| {});
    document.0.routes[0].listeners = vec![0, 7];
    let compiled = document.compiled();
    assert_eq!(compiled.refusals.iter().map(|r| r.rule).collect::<Vec<_>>(), [0, 1]);
    assert!(outcome(&document).1.is_some_and(|reason| reason.contains("listener 7")));
}

#[test]
fn a_refusal_of_the_controller_is_kept_and_not_reported_again() {
    let document = with_rule(|r| {
        r.refusal = Some("filter ExtensionRef is not supported".into());
        r.filters = vec![ir::Filter::RequestHeaders(header_edit("a b", "1"))];
    });
    assert_eq!(document.compiled().refusals, []);
    assert_eq!(outcome(&document), (0, Some("filter ExtensionRef is not supported".into())));
}

#[test]
fn a_backend_that_cannot_be_used_fails_its_share_alone() {
    let document = with_rule(|r| {
        let filters = vec![ir::Filter::RequestHeaders(header_edit("a b", "1"))];
        r.backends = vec![
            share(0, 1, "a"),
            share(1, 2, "missing"),
            ir::WeightedBackend { filters, ..share(2, 3, "b") },
            ir::WeightedBackend { target: ir::Target::Invalid("no such Service".into()), ..share(3, 4, "a") },
            share(4, 0, "missing"),
        ];
    });
    let Compiled { table, refusals } = document.compiled();
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    assert!(refusals[0].reason.contains("ns/missing:80/http1") && refusals[0].reason.contains("share"), "{refusals:?}");
    let request = Request::get("h.com/r");
    let Action::Forward(backends) = &table.find(&request.key()).expect("a hit").rule.action else { panic!("no backends") };
    assert_eq!(backends.total, 10);
    let picked: Vec<usize> = (0..10).map(|draw| backends.pick(draw).expect("an entry").index).collect();
    assert_eq!(picked, [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]);
    let usable = |draw| matches!(backends.pick(draw).expect("an entry").target, Target::Backend(_));
    assert!(usable(0) && (1..10).all(|draw| !usable(draw)) && usable(10), "draws wrap around");
}

#[test]
fn without_weights_there_is_nothing_to_pick() {
    for backends in [vec![], vec![share(0, 0, "a")]] {
        let table = with_rule(|r| r.backends = backends).table();
        let request = Request::get("h.com/r");
        let Action::Forward(backends) = &table.find(&request.key()).expect("a hit").rule.action else { panic!("no backends") };
        assert!(backends.total == 0 && (0..3).all(|draw| backends.pick(draw).is_none()));
    }
}

#[test]
fn the_largest_weights_do_not_overflow() {
    let table = with_rule(|r| r.backends = vec![share(0, u32::MAX, "a"); 3]).table();
    let request = Request::get("h.com/r");
    let Action::Forward(backends) = &table.find(&request.key()).expect("a hit").rule.action else { panic!("no backends") };
    assert_eq!(backends.total, 3 * u64::from(u32::MAX));
    assert!([0, u64::MAX, backends.total - 1].into_iter().all(|draw| backends.pick(draw).is_some()));
}

#[test]
fn filters_are_parsed_and_a_redirect_becomes_the_action() {
    let table = with_rule(|r| {
        let to = ir::Redirect { hostname: Some("b.com".into()), path: Some(ir::PathRewrite::Full("new".into())), ..redirect() };
        r.filters = vec![ir::Filter::ResponseHeaders(header_edit("X-A", "1")), ir::Filter::Redirect(to)];
        r.response_timeout_ms = Some(1500);
    })
    .table();
    let request = Request::get("h.com/r");
    let rule = table.find(&request.key()).expect("a hit").rule;
    let Action::Redirect(redirect) = &rule.action else { panic!("no redirect") };
    assert_eq!(redirect.hostname.as_deref(), Some("b.com"));
    assert_eq!(redirect.path, Some(ir::PathRewrite::Full("/new".into())));
    assert_eq!(rule.response_timeout, Some(Duration::from_millis(1500)));
    let [Filter::ResponseHeaders(edit)] = &*rule.filters else { panic!("other filters: {:?}", rule.filters) };
    assert_eq!(edit.set[0].0, "x-a");
}

#[test]
fn a_timeout_of_zero_is_none() {
    let table = with_rule(|r| r.response_timeout_ms = Some(0)).table();
    assert_eq!(table.find(&Request::get("h.com/r").key()).expect("a hit").rule.response_timeout, None);
}

#[test]
fn a_table_knows_its_document() {
    let mut document = with_rule(|_| {}).grpc("rpc", &[], vec![vec![call(None, None)]]);
    document.0.options.allow_x_original_host = true;
    let table = document.table();
    assert!(table.needs_trailers() && table.options().allow_x_original_host);
    assert_eq!(table.backends().map(|b| &*b.key.0).collect::<Vec<_>>(), ["ns/a:80/http1", "ns/b:80/http1"]);
    document.0.routes.pop();
    document.0.backends = no_backends();
    assert!(!document.table().needs_trailers() && document.table().backends().next().is_none());
}
