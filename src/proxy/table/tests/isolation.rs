//! S3 "Listener isolation".

use super::*;

/// The example of S3: two listeners of one Gateway, a route on each, both listing the same host.
fn two_listeners() -> Document {
    Document::with(&[("gw", Some("*.example.com")), ("gw", Some("foo.example.com"))])
        .http("wild", &["foo.example.com", "bar.example.com"], vec![vec![prefix("/")]])
        .on(&[0])
        .http("foo", &["foo.example.com"], vec![vec![prefix("/only")]])
        .on(&[1])
}

#[test]
fn only_routes_of_the_most_specific_listener_answer() {
    let document = two_listeners();
    document.expect(&Request::get("foo.example.com/only"), "foo/0");
    document.expect(&Request::get("bar.example.com/only"), "wild/0");
}

#[test]
fn there_is_no_fall_through_to_another_listener() {
    two_listeners().expect_none(&Request::get("foo.example.com/other"));
}

#[test]
fn a_listener_without_routes_owns_its_hosts() {
    let document = Document::with(&[("gw", None), ("gw", Some("foo.example.com")), ("gw", Some("*.empty.com"))])
        .http("any", &[], vec![vec![prefix("/")]])
        .on(&[0]);
    document.expect_none(&Request::get("foo.example.com/"));
    document.expect_none(&Request::get("x.empty.com/"));
    document.expect(&Request::get("bar.example.com/"), "any/0");
    document.expect(&Request::get("empty.com/"), "any/0");
}

#[test]
fn a_listener_without_hostname_gets_what_no_other_matches() {
    let document = Document::with(&[("gw", Some("*.example.com")), ("gw", None)])
        .http("wild", &[], vec![vec![prefix("/")]])
        .on(&[0])
        .http("rest", &[], vec![vec![prefix("/")]])
        .on(&[1]);
    document.expect(&Request::get("a.example.com/"), "wild/0");
    document.expect(&Request::get("example.com/"), "rest/0");
    document.expect(&Request::get("a.b.org/"), "rest/0");
}

#[test]
fn a_wildcard_with_more_labels_owns_before_one_with_fewer() {
    let document = Document::with(&[("gw", Some("*.com")), ("gw", Some("*.example.com"))])
        .http("short", &[], vec![vec![prefix("/")]])
        .on(&[0])
        .http("long", &[], vec![vec![prefix("/")]])
        .on(&[1]);
    document.expect(&Request::get("a.b.example.com/"), "long/0");
    document.expect(&Request::get("example.com/"), "short/0");
}

#[test]
fn listeners_with_the_same_hostname_own_it_together_whatever_their_ports() {
    let document = Document::with(&[("gw", Some("a.com")), ("gw", Some("a.com"))])
        .http("first", &[], vec![vec![prefix("/1")]])
        .on(&[0])
        .http("second", &[], vec![vec![prefix("/2")]])
        .on(&[1]);
    document.expect(&Request::get("a.com/1"), "first/0");
    document.expect(&Request::get("a.com/2"), "second/0");
}

#[test]
fn isolation_is_per_gateway_and_any_gateway_will_do() {
    let document = Document::with(&[("one", None), ("one", Some("a.com")), ("two", None)])
        .http("shared", &[], vec![vec![prefix("/shared")]])
        .on(&[0, 2])
        .http("first", &[], vec![vec![prefix("/first")]])
        .on(&[0])
        .http("host", &["a.com"], vec![vec![prefix("/host")]])
        .on(&[1]);
    document.expect(&Request::get("a.com/shared"), "shared/0");
    document.expect(&Request::get("a.com/host"), "host/0");
    document.expect_none(&Request::get("a.com/first"));
    document.expect(&Request::get("b.com/first"), "first/0");
}

#[test]
fn routes_of_two_gateways_on_one_hostname_rank_together() {
    let document = Document::with(&[("one", None), ("two", Some("*.com"))])
        .http("short", &["a.com"], vec![vec![prefix("/")]])
        .on(&[0])
        .http("long", &["a.com"], vec![vec![prefix("/x")]])
        .on(&[1])
        .grpc("rpc", &["a.com"], vec![vec![call(None, None)]])
        .on(&[1]);
    document.expect(&Request::get("a.com/x/y"), "long/0");
    document.expect(&Request::get("a.com/y"), "short/0");
    document.expect(&Request::grpc("a.com/x/y"), "rpc/0");
}

#[test]
fn a_route_answers_only_where_its_hostnames_meet_the_listener() {
    let document = Document::with(&[("gw", Some("*.example.com"))]).http(
        "r",
        &["a.example.com", "b.other.com", "*.com"],
        vec![vec![prefix("/")]],
    );
    document.expect(&Request::get("a.example.com/"), "r/0");
    document.expect(&Request::get("z.example.com/"), "r/0");
    document.expect_none(&Request::get("b.other.com/"));
    document.expect_none(&Request::get("example.com/"));
}

#[test]
fn a_route_without_listeners_answers_nothing() {
    let document = Document::open().http("r", &["a.com"], vec![vec![prefix("/")]]).on(&[]);
    document.expect_none(&Request::get("a.com/"));
}

#[test]
fn a_listener_between_a_route_and_its_listener_takes_only_its_own_hosts() {
    // The route's wildcard is wider than the inner listener: hosts of that listener are lost, the others are not.
    let document = Document::with(&[("gw", Some("*.com")), ("gw", Some("*.in.example.com"))])
        .http("wide", &["*.example.com"], vec![vec![prefix("/")]])
        .on(&[0])
        .http("inner", &["*.example.com"], vec![vec![prefix("/inner")]])
        .on(&[1]);
    document.expect(&Request::get("a.example.com/"), "wide/0");
    document.expect_none(&Request::get("a.in.example.com/"));
    document.expect(&Request::get("a.in.example.com/inner"), "inner/0");
    document.expect(&Request::get("in.example.com/"), "wide/0");
}

#[test]
fn an_empty_table_answers_nothing() {
    assert!(RouteTable::default().find(&Request::get("a.com/").key()).is_none());
    Document::with(&[]).expect_none(&Request::get("a.com/"));
}

#[test]
fn odd_hosts_lead_nowhere_unexpected() {
    let document = Document::with(&[("gw", Some("*.example.com"))]).http("r", &[], vec![vec![prefix("/")]]);
    for host in ["", ".", ".example.com", "example.com", "..", "xexample.com", "*.example.org"] {
        document.expect_none(&Request { host: host.into(), ..Request::get("x/") });
    }
    document.expect(&Request::get(&format!("{}example.com/", "a.".repeat(500))), "r/0");
}
