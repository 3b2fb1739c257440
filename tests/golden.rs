//! Golden pairs: `tests/golden/<area>-<behaviour>.in.yaml` holds objects, `.out.yaml` all that `translate` says of them. A first
//! document of kind `Options` sets options. `UPDATE_GOLDEN=1 cargo test --test golden` rewrites the outputs; the review reads the diff.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use cftunnel::gateway::finding::Code;
use cftunnel::gateway::id::ObjectRef;
use cftunnel::gateway::ir;
use cftunnel::gateway::translate::{Translation, translate};
use serde_json::Value;

use self::support::{cases, snapshot};

#[path = "golden/support.rs"]
mod support;

/// A translation as it is reviewed: by way of JSON, which plane and command line speak, with names and conditions on one line.
fn shown(translation: &Translation) -> String {
    let mut value = serde_json::to_value(translation).expect("a translation is JSON");
    compact(&mut value);
    serde_saphyr::to_string(&value).expect("JSON is YAML")
}

fn compact(value: &mut Value) {
    if let Value::Object(map) = value {
        // Remedies belong to their codes, and default options say nothing.
        map.remove("remedy");
        if map.get("options") == Some(&serde_json::to_value(ir::Options::default()).expect("options are JSON")) {
            map.remove("options");
        }
    }
    if let Ok(object) = serde_json::from_value::<ObjectRef>(value.clone())
        && value.as_object().is_some_and(|map| map.keys().all(|key| ["kind", "name", "namespace"].contains(&key.as_str())))
    {
        *value = Value::String(object.to_string());
    } else if let (Some(kind), Some(status), Some(reason)) = (text(value, "type"), text(value, "status"), text(value, "reason")) {
        let message = text(value, "message").map(|m| format!(": {m}")).unwrap_or_default();
        let generation = value.get("observedGeneration").map(|g| format!(" (generation {g})")).unwrap_or_default();
        *value = Value::String(format!("{kind}={status} {reason}{generation}{message}"));
    }
    if let (Some(group), Some(kind), Some(2)) = (text(value, "group"), text(value, "kind"), value.as_object().map(|m| m.len())) {
        *value = Value::String(format!("{kind}.{group}"));
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(compact),
        Value::Object(map) => map.values_mut().for_each(compact),
        _ => {}
    }
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

#[test]
fn every_case_translates_as_reviewed() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut differing = Vec::new();
    for path in cases() {
        let actual = shown(&translate(&snapshot(&path)));
        let out = PathBuf::from(path.to_string_lossy().replace(".in.yaml", ".out.yaml"));
        if update {
            fs::write(&out, &actual).expect("writing a golden output");
        } else if fs::read_to_string(&out).unwrap_or_default() != actual {
            differing.push(format!("{}\n{actual}", out.display()));
        }
    }
    assert!(differing.is_empty(), "{} cases differ; the first is now\n{}", differing.len(), differing[0]);
}

#[test]
fn every_code_is_produced_by_some_case() {
    let findings = cases().iter().flat_map(|path| translate(&snapshot(path)).findings).map(|f| f.code).collect::<BTreeSet<_>>();
    let missing: Vec<_> = Code::ALL.iter().filter(|code| !findings.contains(code)).collect();
    assert!(missing.is_empty(), "no case produces {missing:?}");
}

#[test]
fn no_output_holds_a_secret() {
    // The secret inside the token of the fixtures, and the token itself.
    let secrets = ["golden-secret", "Z29sZGVuLXNlY3JldC", "eyJhIjogIjAxMjM0"];
    for path in cases() {
        let snapshot = snapshot(&path);
        let text = format!("{snapshot:?}{:?}{}", translate(&snapshot), shown(&translate(&snapshot)));
        assert!(secrets.iter().all(|secret| !text.contains(secret)), "{}", path.display());
    }
}
