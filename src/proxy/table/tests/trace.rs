//! What `explain` says.

use super::*;
use crate::proxy::table::Tier;
use crate::proxy::table::explain::{Candidate, ListenerOutcome, Missed, Outcome};

fn outcomes(document: &Document, request: &Request) -> Vec<(String, Outcome)> {
    let name = |c: &Candidate| format!("{}/{}/{}", c.route.name(), c.rule, c.match_index);
    document.table().explain(&request.key()).candidates.into_iter().map(|c| (name(&c), c.outcome)).collect()
}

#[track_caller]
fn expect(document: &Document, request: &Request, want: &[(&str, Outcome)]) {
    let want: Vec<_> = want.iter().map(|(name, outcome)| ((*name).to_owned(), outcome.clone())).collect();
    assert_eq!(outcomes(document, request), want);
}

#[test]
fn each_loser_knows_the_tier_it_lost_on() {
    let best = || with_query(with_method(prefix("/a"), "GET").header("x", "1"), "q", is("1"));
    let document = Document::with(&[("gw", None)])
        .http("m", &["h.com"], vec![vec![best(), best()], vec![best()]])
        .http("n", &["h.com"], vec![vec![best()]])
        .http("b", &["h.com"], vec![vec![with_method(prefix("/a"), "GET").header("x", "1")]])
        .http("c", &["h.com"], vec![vec![with_method(prefix("/a"), "GET")], vec![prefix("/a")], vec![prefix("/")]])
        .http("k", &[], vec![vec![best()]])
        .http("a", &["h.com"], vec![vec![best()]]);
    let lost = Outcome::Lost;
    expect(
        &document,
        &Request::get("h.com/a?q=1").header("x", "1"),
        &[
            ("m/0/0", Outcome::Chosen),
            ("m/0/1", lost(Tier::MatchOrder)),
            ("m/1/0", lost(Tier::RuleOrder)),
            ("n/0/0", lost(Tier::AgeOrName)),
            ("a/0/0", lost(Tier::Age)),
            ("b/0/0", lost(Tier::Query)),
            ("c/0/0", lost(Tier::Headers)),
            ("c/1/0", lost(Tier::Method)),
            ("c/2/0", lost(Tier::PathLength)),
            ("k/0/0", lost(Tier::Hostname)),
        ],
    );
    let document = Document::open()
        .http("web", &[], vec![vec![exact("/p.S/Do"), regex("/p.*"), prefix("/")]])
        .grpc(
            "rpc",
            &[],
            vec![vec![call(Some(is("p.S")), Some(is("Do"))).header("x", "1"), call(Some(is("p.S")), Some(is("Do")))]],
        )
        .grpc("other", &[], vec![vec![call(Some(is("p.S")), None), call(None, Some(is("Do")))]]);
    expect(
        &document,
        &Request::grpc("h.com/p.S/Do").header("x", "1"),
        &[
            ("rpc/0/0", Outcome::Chosen),
            ("rpc/0/1", lost(Tier::Headers)),
            ("other/0/0", lost(Tier::GrpcMethod)),
            ("other/0/1", lost(Tier::GrpcService)),
            ("web/0/0", lost(Tier::Kind)),
            ("web/0/1", lost(Tier::Kind)),
            ("web/0/2", lost(Tier::Kind)),
        ],
    );
    expect(
        &document,
        &Request::get("h.com/p.S/Do"),
        &[
            ("rpc/0/0", Outcome::Missed(Missed::NotGrpc)),
            ("rpc/0/1", Outcome::Missed(Missed::NotGrpc)),
            ("other/0/0", Outcome::Missed(Missed::NotGrpc)),
            ("other/0/1", Outcome::Missed(Missed::NotGrpc)),
            ("web/0/0", Outcome::Chosen),
            ("web/0/1", lost(Tier::PathType)),
            ("web/0/2", lost(Tier::PathType)),
        ],
    );
}

#[test]
fn what_does_not_match_says_on_what() {
    let document = Document::open().http(
        "r",
        &[],
        vec![
            vec![exact("/x")],
            vec![with_query(prefix("/").header("X-One", "1"), "q", is("1"))],
            vec![with_query(prefix("/"), "q", is("1"))],
            vec![with_method(prefix("/"), "PUT")],
        ],
    );
    expect(
        &document,
        &Request::get("h.com/").header("x-one", "2"),
        &[
            ("r/0/0", Outcome::Missed(Missed::Path)),
            ("r/3/0", Outcome::Missed(Missed::Method)),
            ("r/1/0", Outcome::Missed(Missed::Header("x-one".into()))),
            ("r/2/0", Outcome::Missed(Missed::Query("q".into()))),
        ],
    );
}

#[test]
fn listeners_that_lost_are_named_with_the_routes_they_would_have_served() {
    let document = Document::with(&[("gw", Some("*.com")), ("gw", Some("a.com")), ("two", None), ("gw", Some("b.com"))])
        .http("wide", &[], vec![vec![prefix("/")]])
        .on(&[0, 3])
        .http("host", &["a.com"], vec![vec![prefix("/x")]])
        .on(&[1])
        .http("elsewhere", &["b.com"], vec![vec![prefix("/")]]);
    let explanation = document.table().explain(&Request::get("a.com/").key());
    let listeners: Vec<_> = explanation.listeners.iter().map(|l| (l.name.as_str(), l.outcome.clone())).collect();
    assert_eq!(
        listeners,
        [("l0", ListenerOutcome::LostTo(host("a.com"))), ("l1", ListenerOutcome::Owns), ("l2", ListenerOutcome::Owns)]
    );
    let isolated: Vec<_> = explanation.isolated.iter().map(|r| (r.route.name(), r.listeners.clone())).collect();
    assert_eq!(isolated, [("wide", vec![0])]);
    assert_eq!(explanation.candidates.len(), 1);
    assert_eq!(explanation.chosen(), None);
}

#[test]
fn an_explanation_can_be_printed_as_json() {
    let document = Document::open().http("r", &["*.h.com"], vec![vec![prefix("/").header("x", "1")], vec![prefix("/")]]);
    let json = serde_json::to_value(document.table().explain(&Request::get("a.h.com/").key())).expect("JSON");
    assert_eq!(json["host"], "a.h.com");
    assert_eq!(json["listeners"][0]["outcome"], "owns");
    assert_eq!(json["candidates"][0]["outcome"]["missed"]["header"], "x");
    assert_eq!(json["candidates"][1]["outcome"], "chosen");
    assert_eq!(json["candidates"][1]["hostname"], "*.h.com");
}
