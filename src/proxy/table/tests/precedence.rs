//! Gateway API precedence, S3 "Route Conflict Resolution", X25, X26: one test per tier. In each, the route that must win is the
//! later one in the document, so that order alone would choose wrongly, and the loser is better on every later tier.

use http::Method;

use super::*;

#[test]
fn an_exact_hostname_comes_before_any_wildcard_whatever_the_match() {
    let document = Document::open().http("wild", &["*.example.com"], vec![vec![exact("/a").header("x", "1")]]).http(
        "host",
        &["www.example.com"],
        vec![vec![prefix("/")]],
    );
    document.expect(&Request::get("www.example.com/a").header("x", "1"), "host/0");
    document.expect(&Request::get("b.example.com/a").header("x", "1"), "wild/0");
}

#[test]
fn a_longer_wildcard_comes_before_a_shorter_one_and_that_before_none() {
    let document = Document::open()
        .http("none", &[], vec![vec![exact("/a")]])
        .http("short", &["*.com"], vec![vec![exact("/a")]])
        .http("long", &["*.example.com"], vec![vec![prefix("/")]]);
    document.expect(&Request::get("x.example.com/a"), "long/0");
    document.expect(&Request::get("x.other.com/a"), "short/0");
    document.expect(&Request::get("x.org/a"), "none/0");
}

#[test]
fn what_a_specific_hostname_does_not_match_falls_through_to_the_next() {
    let document = Document::open()
        .http("none", &[], vec![vec![prefix("/")]])
        .http("wild", &["*.example.com"], vec![vec![prefix("/w")]])
        .http("host", &["www.example.com"], vec![vec![prefix("/h")]]);
    document.expect(&Request::get("www.example.com/h"), "host/0");
    document.expect(&Request::get("www.example.com/w"), "wild/0");
    document.expect(&Request::get("www.example.com/other"), "none/0");
}

#[test]
fn hostnames_rank_as_written_not_as_narrowed_by_the_listener() {
    let document = Document::with(&[("gw", Some("www.example.com"))]).http("none", &[], vec![vec![exact("/a")]]).http(
        "wild",
        &["*.example.com"],
        vec![vec![prefix("/")]],
    );
    document.expect(&Request::get("www.example.com/a"), "wild/0");
}

#[test]
fn exact_paths_come_first_then_expressions_then_prefixes() {
    let document = Document::open().http(
        "r",
        &[],
        vec![
            vec![with_method(prefix("/aaa/bbb"), "GET").header("x", "1")],
            vec![regex("/aaa/bb?b?b?b?b?b?b?b?b?b?.?.?.?.?")],
            vec![regex("/aaa/.*")],
            vec![exact("/aaa/bbb")],
        ],
    );
    document.expect(&Request::get("h.com/aaa/bbb").header("x", "1"), "r/3");
    document.expect(&Request::get("h.com/aaa/bbb/c").header("x", "1"), "r/1");
    document.expect(&Request::get("h.com/aaa/c").header("x", "1"), "r/2");
    document.expect_none(&Request::get("h.com/aaa"));
}

#[test]
fn the_longer_path_comes_first() {
    let document = Document::open().http("short", &[], vec![vec![with_method(prefix("/api"), "GET").header("x", "1")]]).http(
        "long",
        &[],
        vec![vec![prefix("/api/v2")]],
    );
    document.expect(&Request::get("h.com/api/v2/x").header("x", "1"), "long/0");
    document.expect(&Request::get("h.com/api/v1").header("x", "1"), "short/0");
}

#[test]
fn the_length_of_a_path_is_counted_in_characters() {
    let document = Document::open().http("bytes", &[], vec![vec![regex("/(ä|ö|ü|é).*")]]).http(
        "characters",
        &[],
        vec![vec![regex("/[^a-y]{1,}.*")]],
    );
    document.expect(&Request::get("h.com/äz"), "characters/0");
}

#[test]
fn a_match_with_a_method_comes_before_headers() {
    let document = Document::open().http("headers", &[], vec![vec![prefix("/").header("x", "1").header("y", "1")]]).http(
        "method",
        &[],
        vec![vec![with_method(prefix("/"), "POST")]],
    );
    let request = Request::get("h.com/").header("x", "1").header("y", "1");
    document.expect(&request.clone().method(Method::POST), "method/0");
    document.expect(&request, "headers/0");
}

#[test]
fn more_headers_come_before_more_query_parameters() {
    let document = Document::open()
        .http("query", &[], vec![vec![with_query(with_query(prefix("/").header("x", "1"), "a", is("1")), "b", is("2"))]])
        .http("headers", &[], vec![vec![prefix("/").header("x", "1").header("y", "1")]]);
    document.expect(&Request::get("h.com/?a=1&b=2").header("x", "1").header("y", "1"), "headers/0");
    document.expect(&Request::get("h.com/?a=1&b=2").header("x", "1"), "query/0");
}

#[test]
fn more_query_parameters_come_before_age() {
    let document = Document::open().http("old", &[], vec![vec![with_query(prefix("/"), "a", is("1"))]]).http(
        "new",
        &[],
        vec![vec![with_query(with_query(prefix("/"), "a", is("1")), "b", is("2"))]],
    );
    document.expect(&Request::get("h.com/?a=1&b=2"), "new/0");
    document.expect(&Request::get("h.com/?a=1"), "old/0");
}

#[test]
fn of_equal_matches_the_first_route_of_the_document_wins_then_the_first_rule() {
    let document = Document::open().http("z", &[], vec![vec![prefix("/x")], vec![prefix("/a")], vec![prefix("/a")]]).http(
        "a",
        &[],
        vec![vec![prefix("/a")]],
    );
    document.expect(&Request::get("h.com/a"), "z/1");
}

#[test]
fn every_match_ranks_on_its_own() {
    let document =
        Document::open().http("both", &[], vec![vec![exact("/rare"), prefix("/")]]).http("api", &[], vec![vec![prefix("/api")]]);
    document.expect(&Request::get("h.com/api"), "api/0");
    document.expect(&Request::get("h.com/rare"), "both/0");
}

#[test]
fn a_grpc_match_comes_before_every_http_match_of_the_same_hostname() {
    let document = Document::open().http("web", &["h.com"], vec![vec![exact("/pkg.Svc/Do").header("x", "1")]]).grpc(
        "rpc",
        &["h.com"],
        vec![vec![call(None, None)]],
    );
    document.expect(&Request::grpc("h.com/pkg.Svc/Do").header("x", "1"), "rpc/0");
    document.expect(&Request::get("h.com/pkg.Svc/Do").header("x", "1"), "web/0");
}

#[test]
fn a_hostname_decides_before_the_kind_of_the_route() {
    let document = Document::open().grpc("rpc", &["*.h.com"], vec![vec![call(Some(is("pkg.Svc")), None)]]).http(
        "web",
        &["a.h.com"],
        vec![vec![prefix("/pkg.Svc/Do")]],
    );
    document.expect(&Request::grpc("a.h.com/pkg.Svc/Do"), "web/0");
    document.expect(&Request::grpc("a.h.com/pkg.Svc/Other"), "rpc/0");
}

#[test]
fn a_longer_grpc_service_comes_before_the_method_and_that_before_headers() {
    let document = Document::open()
        .grpc("any", &[], vec![vec![call(None, None).header("x", "1").header("y", "1")]])
        .grpc("method", &[], vec![vec![call(None, Some(is("Do"))).header("x", "1")]])
        .grpc("service", &[], vec![vec![call(Some(is("p.S")), None).header("x", "1")]])
        .grpc("both", &[], vec![vec![call(Some(is("p.S")), Some(is("Do")))]]);
    let with = |url: &str| Request::grpc(url).header("x", "1").header("y", "1");
    document.expect(&with("h.com/p.S/Do"), "both/0");
    document.expect(&with("h.com/p.S/No"), "service/0");
    document.expect(&with("h.com/p.T/Do"), "method/0");
    document.expect(&with("h.com/p.T/No"), "any/0");
}

#[test]
fn whether_a_grpc_name_is_literal_does_not_count() {
    let many = |document: Document| {
        // Enough to be looked up rather than asked one by one.
        (0..20).fold(document, |d, i| d.grpc(&format!("x{i}"), &[], vec![vec![call(Some(is(&format!("x{i}"))), None)]]))
    };
    for document in [Document::open(), many(Document::open())] {
        let document = document
            .grpc("literal", &[], vec![vec![call(Some(is("p.S")), Some(is("Do")))]])
            .grpc("expression", &[], vec![vec![call(Some(like("p[.]S")), Some(like("Do")))]])
            .grpc("short", &[], vec![vec![call(Some(like(".*")), Some(like("Do+")))]]);
        document.expect(&Request::grpc("h.com/p.S/Do"), "expression/0");
        document.expect(&Request::grpc("h.com/p.S/Doo"), "short/0");
    }
}

#[test]
fn more_grpc_headers_come_before_age() {
    let document = Document::open().grpc("old", &[], vec![vec![call(Some(is("p.S")), None)]]).grpc(
        "new",
        &[],
        vec![vec![call(Some(is("p.S")), None).header("x", "1")]],
    );
    document.expect(&Request::grpc("h.com/p.S/Do").header("x", "1"), "new/0");
    document.expect(&Request::grpc("h.com/p.S/Do"), "old/0");
}

#[test]
fn the_order_holds_when_matches_are_looked_up() {
    let filler = |i: usize| vec![prefix(&format!("/filler/{i}"))];
    let mut rules: Vec<_> = (0..50).map(filler).collect();
    rules.extend([vec![prefix("/")], vec![prefix("/a")], vec![prefix("/a/b")], vec![regex("/a/b/c.*")], vec![exact("/a/b/c")]]);
    rules.push(vec![prefix("/a/b/c").header("x", "1")]);
    let document = Document::open().http("r", &[], rules);
    document.expect(&Request::get("h.com/zzz"), "r/50");
    document.expect(&Request::get("h.com/"), "r/50");
    document.expect(&Request::get("h.com/ab"), "r/50");
    document.expect(&Request::get("h.com/a"), "r/51");
    document.expect(&Request::get("h.com/a/"), "r/51");
    document.expect(&Request::get("h.com/a/b/"), "r/52");
    document.expect(&Request::get("h.com/a/b/cd"), "r/53");
    document.expect(&Request::get("h.com/a/b/c"), "r/54");
    document.expect(&Request::get("h.com/a/b/c/d").header("x", "1"), "r/53");
    document.expect(&Request::get("h.com/filler/7/x"), "r/7");
    document.expect(&Request::get("h.com/filler/77"), "r/50");
}
