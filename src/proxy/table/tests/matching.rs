//! Whether a match covers a request.

use http::Method;

use super::*;

fn single(m: ir::HttpMatch) -> Document {
    Document::open().http("r", &[], vec![vec![m]])
}

#[track_caller]
fn check(document: &Document, cases: &[(&str, bool)]) {
    for (path, covered) in cases {
        assert_eq!(document.finds(&Request::get(&format!("h.com{path}"))).is_some(), *covered, "{path}");
    }
}

#[test]
fn a_prefix_covers_whole_path_elements() {
    for written in ["/api", "/api/"] {
        check(
            &single(prefix(written)),
            &[
                ("/api", true),
                ("/api/", true),
                ("/api/x", true),
                ("/api//", true),
                ("/apix", false),
                ("/", false),
                ("/API", false),
            ],
        );
    }
    check(&single(prefix("/")), &[("/", true), ("//", true), ("/x", true)]);
    assert!(single(prefix("/")).finds(&Request { path: "*".into(), ..Request::get("h.com/") }).is_some());
}

#[test]
fn paths_are_compared_as_sent() {
    check(&single(exact("/a b")), &[("/a b", true), ("/a%20b", false)]);
    check(&single(exact("/a/")), &[("/a/", true), ("/a", false)]);
    check(&single(prefix("/a")), &[("/%61", false), ("/b/../a", false)]);
}

#[test]
fn an_expression_covers_the_whole_path() {
    check(&single(regex("/v[0-9]+")), &[("/v12", true), ("/v12/", false), ("/x/v1", false)]);
}

#[test]
fn the_covered_prefix_comes_with_the_hit() {
    for (m, want) in [(prefix("/api/"), "/api"), (prefix("/"), "/"), (exact("/api/x"), "/"), (regex("/api.*"), "/")] {
        let table = single(m).table();
        assert_eq!(table.find(&Request::get("h.com/api/x").key()).expect("a hit").prefix, want);
    }
}

#[test]
fn a_method_is_case_sensitive() {
    let document = single(with_method(prefix("/"), "PATCH"));
    document.expect(&Request::get("h.com/").method(Method::PATCH), "r/0");
    document.expect_none(&Request::get("h.com/"));
    document.expect_none(&Request::get("h.com/").method(Method::from_bytes(b"patch").expect("a method")));
}

#[test]
fn header_names_ignore_case_and_values_do_not() {
    let document = single(prefix("/").header("X-Color", "Blue"));
    document.expect(&Request::get("h.com/").header("x-COLOR", "Blue"), "r/0");
    document.expect_none(&Request::get("h.com/").header("x-color", "blue"));
    document.expect_none(&Request::get("h.com/"));
}

#[test]
fn of_a_repeated_header_any_value_or_the_whole_list_counts() {
    let request = || Request::get("h.com/").header("x", "a").header("x", "b").header("x", "c");
    for value in ["a", "b", "c", "a, b, c", "a,b,c"] {
        single(prefix("/").header("x", value)).expect(&request(), "r/0");
    }
    for value in ["a, b", "b, c", "a,b, c", "", "abc", "c, b, a"] {
        single(prefix("/").header("x", value)).expect_none(&request());
    }
    let expression = ir::HttpMatch { headers: vec![named("x", like("[b-z]"))], ..prefix("/") };
    single(expression).expect(&request(), "r/0");
}

#[test]
fn names_that_differ_only_in_case_are_both_required() {
    // S3 "Case-variant header match names": over-strict, never misrouted.
    single(prefix("/").header("Foo", "1").header("foo", "2")).expect_none(&Request::get("h.com/").header("foo", "1"));
}

#[test]
fn a_header_need_not_be_text() {
    let expression = ir::HttpMatch { headers: vec![named("x", like("a.b"))], ..prefix("/") };
    let mut request = Request::get("h.com/");
    request.headers.append("x", HeaderValue::from_bytes(b"a\xffb").expect("a value"));
    single(expression).expect(&request, "r/0");
}

#[test]
fn the_first_query_parameter_of_a_name_counts() {
    let document = single(with_query(prefix("/"), "a", is("1")));
    check(
        &document,
        &[
            ("/?a=1", true),
            ("/?b=2&a=1", true),
            ("/?a=1&a=2", true),
            ("/?a=2&a=1", false),
            ("/?A=1", false),
            ("/?a", false),
            ("/", false),
            ("/?", false),
            ("/?&&a=1", true),
            ("/?a=1=1", false),
            ("/?aa=1", false),
        ],
    );
    check(&single(with_query(prefix("/"), "a", is(""))), &[("/?a", true), ("/?a=", true), ("/?b", false)]);
}

#[test]
fn query_parameters_are_decoded_as_forms_are() {
    let cases = [
        ("/?n%61me=x+y", true),
        ("/?name=x%20y", true),
        ("/?name=%78%20%79", true),
        ("/?name=x%2By", false),
        ("/?name=x%2", false),
        ("/?name=x%zz&name=x+y", true),
        ("/?name=1;2&name=x+y", true),
        ("/?name=%", false),
    ];
    check(&single(with_query(prefix("/"), "name", is("x y"))), &cases);
    check(&single(with_query(prefix("/"), "name", like("x y"))), &cases);
    check(&single(with_query(prefix("/"), "n", like("ä"))), &[("/?n=%C3%A4", true), ("/?n=ä", true), ("/?n=%C3", false)]);
}

#[test]
fn a_grpc_match_needs_a_grpc_request() {
    let document = Document::open().grpc("r", &[], vec![vec![call(None, None)]]);
    document.expect_none(&Request::get("h.com/p.S/Do").method(Method::POST));
    document.expect(&Request::grpc("h.com/p.S/Do"), "r/0");
}

#[test]
fn a_grpc_path_has_exactly_two_elements() {
    let named = Document::open().grpc("r", &[], vec![vec![call(Some(like(".*")), Some(like(".*")))]]);
    let any = Document::open().grpc("r", &[], vec![vec![call(None, None)]]);
    for path in ["/", "/p.S", "/p.S/", "//Do", "/p.S/Do/", "/p.S/Do/x", "//p.S/Do"] {
        let request = Request::grpc(&format!("h.com{path}"));
        named.expect_none(&request);
        any.expect(&request, "r/0");
    }
    named.expect(&Request::grpc("h.com/p.S/Do"), "r/0");
}

#[test]
fn an_http_route_matches_grpc_requests_too() {
    single(prefix("/p.S")).expect(&Request::grpc("h.com/p.S/Do"), "r/0");
}
