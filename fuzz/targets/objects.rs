//! Objects as users write them: nothing panics, an object is never taken for another one, translation says the same twice, and
//! a plane runs what it makes.

use std::sync::Arc;

use cftunnel::cluster::manifest;
use cftunnel::gateway::snapshot::{Object, Options, SnapshotBuilder};
use cftunnel::gateway::translate::{Plane, translate};
use cftunnel::proxy::table::compile::compile;
use serde_json::Value;

pub(crate) fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parsed = manifest::parse(&Arc::from("fuzz.yaml"), text);
    let options = Options { single_plane: true, allow_loopback_endpoints: true, ..Options::default() };
    let mut builder = SnapshotBuilder::new("2026-06-01T00:00:00Z".parse().expect("a time"), options);
    let mut objects = 0;
    for document in parsed.documents {
        let value = document.value.clone();
        let Ok(object) = Object::from_json(document.value) else { continue };
        let named = object.object_ref().clone();
        assert_eq!(value.pointer("/metadata/name").and_then(Value::as_str), Some(named.name()), "another name");
        match value.pointer("/metadata/namespace") {
            None | Some(Value::Null) => {}
            Some(namespace) => {
                let namespace = namespace.as_str().expect("a namespace that is no text is refused");
                assert!(namespace.is_empty() || named.namespace().is_empty() || namespace == named.namespace(), "another namespace");
            }
        }
        objects += usize::from(builder.insert(object).is_ok());
    }
    if objects == 0 {
        return;
    }
    let snapshot = builder.finish();
    let translation = translate(&snapshot);
    let said = serde_json::to_string(&translation).expect("a translation is JSON");
    assert!(said == serde_json::to_string(&translate(&snapshot)).expect("a translation is JSON"), "it says something else now");
    for plane in translation.planes.values() {
        let Plane::Ready(config) = plane else { continue };
        let compiled = compile(config).expect("a plane takes what the translation makes");
        assert!(compiled.refusals.is_empty(), "a plane refuses a rule that the translation accepted: {:?}", compiled.refusals);
    }
}
