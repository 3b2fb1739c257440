//! What holds of every input, however broken: `translate` never panics, does not depend on the order of objects, and gives documents
//! that a plane can read and of which it refuses nothing (X18). Inputs are the documents of the golden cases, mixed, with values replaced at random.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use cftunnel::gateway::ir::{FORMAT, RouteConfig, Target};
use cftunnel::gateway::snapshot::{Object, Options, Snapshot, SnapshotBuilder};
use cftunnel::gateway::translate::{Plane, Translation, translate};
use cftunnel::proxy::table::compile::compile;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use self::support::{cases, documents, snapshot};

#[path = "golden/support.rs"]
mod support;

static CASES: LazyLock<Vec<Vec<Value>>> = LazyLock::new(|| cases().iter().map(|path| documents(path)).collect());
static DOCUMENTS: LazyLock<Vec<Value>> = LazyLock::new(|| CASES.concat());

/// Values that take the place of others.
static JUNK: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let long = "a".repeat(3000);
    vec![
        json!(null),
        json!(0),
        json!(-1),
        json!(65536),
        json!(i64::MAX),
        json!(1.5),
        json!(true),
        json!([]),
        json!({}),
        json!(""),
        json!("*"),
        json!("*.*"),
        json!("/"),
        json!("//"),
        json!("\u{0}"),
        json!("\u{7f}\r\n"),
        json!("("),
        json!("a{1000}{1000}"),
        json!(r"\w{1,100}"),
        json!("/a?b#c"),
        json!("/a\"<>`{}^"),
        json!("/a//b/"),
        json!("ä"),
        json!("RegularExpression"),
        json!("RequestRedirect"),
        json!("١"),
        json!("edge"),
        json!("shop"),
        json!("web"),
        json!("Gateway"),
        json!("HTTPS"),
        json!("0s"),
        json!("99999h"),
        json!(long),
    ]
});

/// Replaces the value at a random place.
fn replace(value: &mut Value, at: Index, junk: Index) {
    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(count).sum(),
            Value::Object(map) => map.values().map(count).sum::<usize>(),
            _ => 0,
        }
    }
    fn visit(value: &mut Value, left: &mut usize, junk: &Value) {
        if *left == 0 {
            *value = junk.clone();
        }
        *left = left.wrapping_sub(1);
        match value {
            Value::Array(items) => items.iter_mut().for_each(|v| visit(v, left, junk)),
            Value::Object(map) => map.values_mut().for_each(|v| visit(v, left, junk)),
            _ => {}
        }
    }
    let mut left = at.index(count(value));
    visit(value, &mut left, junk.get(&JUNK));
}

fn built(objects: &[Object], single_plane: bool) -> Snapshot {
    let options = Options { single_plane, ..Options::default() };
    let mut builder = SnapshotBuilder::new("2026-06-01T00:00:00Z".parse().expect("a time"), options);
    objects.iter().for_each(|object| builder.insert(object.clone()).expect("objects are told apart before"));
    builder.finish()
}

fn check(translation: &Translation) {
    for (id, plane) in &translation.planes {
        let Plane::Ready(document) = plane else { continue };
        assert_eq!(document.format, FORMAT);
        for route in &document.routes {
            assert!(!route.listeners.is_empty(), "{id}: {} is attached to nothing", route.object);
            assert!(route.listeners.is_sorted() && route.listeners.iter().all(|at| *at < document.listeners.len()), "{id}");
            for rule in &route.rules {
                assert!(!rule.matches.is_empty(), "{id}: {} rule {}", route.object, rule.index);
                for backend in &rule.backends {
                    if let Target::Backend(key) = &backend.target {
                        assert!(document.backends.contains_key(key), "{id}: no backend {key}");
                    }
                }
            }
        }
        let text = serde_json::to_string(document).expect("a document is JSON");
        let read: RouteConfig = serde_json::from_str(&text).expect("a plane reads what it is sent");
        assert_eq!(read, *document, "{id}");
        let refusals = compile(document).expect("the format of this version").refusals;
        assert!(refusals.is_empty(), "{id}: what the controller accepts, the plane refuses: {refusals:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn any_objects_translate_and_their_order_makes_no_difference(
        case: Index,
        changes in prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>()), 0..6),
        others in prop::collection::vec(any::<Index>(), 0..8),
        single_plane: bool,
        rotation: Index,
    ) {
        let mut picked = case.get(&CASES).clone();
        for (document, at, junk) in changes {
            let index = document.index(picked.len());
            replace(&mut picked[index], at, junk);
        }
        picked.extend(others.iter().map(|other| other.get(&DOCUMENTS).clone()));
        let mut seen = BTreeSet::new();
        let objects = picked.into_iter().filter_map(|document| Object::from_json(document).ok());
        let mut objects: Vec<Object> = objects.filter(|object| seen.insert(object.object_ref().clone())).collect();
        let first = translate(&built(&objects, single_plane));
        check(&first);
        if !objects.is_empty() {
            let middle = rotation.index(objects.len());
            objects.rotate_left(middle);
            objects.reverse();
        }
        let second = translate(&built(&objects, single_plane));
        prop_assert_eq!(serde_json::to_string(&first).expect("JSON"), serde_json::to_string(&second).expect("JSON"));
    }
}

#[test]
fn documents_of_golden_cases_can_be_read_by_a_plane() {
    cases().iter().for_each(|path| check(&translate(&snapshot(path))));
}

/// A route with a rule per number, as `rule` writes it, on a Gateway that takes it.
fn large(rules: usize, rule: fn(usize) -> Value) -> Vec<Object> {
    let object = |value: Value| Object::from_json(value).expect("an object");
    let (api, meta) = ("gateway.networking.k8s.io/v1", |name: &str| json!({"namespace": "shop", "name": name}));
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let rules: Vec<Value> = (0..rules).map(rule).collect();
    vec![
        object(json!({"apiVersion": api, "kind": "Gateway", "metadata": meta("edge"),
            "spec": {"gatewayClassName": "cloudflare-tunnel", "listeners": listeners}})),
        object(json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("web"), "spec": {"ports": [{"port": 80}]}})),
        object(json!({"apiVersion": api, "kind": "HTTPRoute", "metadata": meta("web"),
            "spec": {"parentRefs": [{"name": "edge"}], "rules": rules}})),
    ]
}

#[test]
fn ten_thousand_rules_translate_and_compile() {
    let rule = |i| {
        let matches = json!([{"path": {"value": format!("/{i}")}, "headers": [{"name": "x", "value": format!("ä{i}")}]},
            {"path": {"type": "RegularExpression", "value": format!("/r{}/[a-z]+", i % 50)}}]);
        json!({"matches": matches, "backendRefs": [{"name": "web", "port": 80, "weight": i32::MAX}, {"name": "gone", "port": 80}]})
    };
    let translation = translate(&built(&large(10_000, rule), true));
    check(&translation);
    let Some(Plane::Ready(document)) = translation.planes.values().next() else { panic!("the plane is not ready") };
    assert_eq!(document.routes[0].rules.len(), 10_000);
}

#[test]
fn what_a_hostile_object_says_is_not_repeated_at_length() {
    let rule = |i| {
        let long = "ä(".repeat(5_000);
        let path = json!({"type": (["Exact", "PathPrefix", "RegularExpression"][i % 3]), "value": long});
        let filter = json!({"type": "RequestRedirect", "requestRedirect": {"hostname": long}});
        json!({"matches": [{"path": path, "headers": [{"name": long, "value": long}]}], "filters": [filter]})
    };
    let translation = translate(&built(&large(64, rule), true));
    check(&translation);
    assert!(translation.findings.len() > 64 && translation.findings.iter().all(|f| f.message.len() <= 1024));
    let Some(Plane::Ready(document)) = translation.planes.values().next() else { panic!("the plane is not ready") };
    assert!(document.routes[0].rules.is_empty(), "a match that cannot be used drops its rule");
}
