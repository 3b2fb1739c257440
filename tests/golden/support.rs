//! Cases of `tests/golden`, read: for the golden pairs and for the properties that hold of every input.

use std::fs;
use std::path::{Path, PathBuf};

use cftunnel::gateway::id::{Kind, NamespacedName};
use cftunnel::gateway::snapshot::{Coverage, Object, Options, ServicePort, Snapshot, SnapshotBuilder};
use serde::Deserialize;
use serde_json::Value;

/// What a case may set.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Case {
    kind: String,
    per_gateway_planes: bool,
    allow_loopback_endpoints: bool,
    quic_pinned: bool,
    /// `NAMESPACE/NAME:PORT=ADDRESS`.
    backends: Vec<String>,
    unreadable: Vec<Kind>,
    complete: Vec<Kind>,
}

/// The documents of a case.
pub(crate) fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a case");
    let parts = text.split("\n---\n").filter(|part| part.lines().any(|l| !l.trim().is_empty() && !l.starts_with('#')));
    parts.map(|part| serde_saphyr::from_str(part).unwrap_or_else(|e| panic!("{}: {e}\n{part}", path.display()))).collect()
}

/// What a case asks to translate.
pub(crate) fn snapshot(path: &Path) -> Snapshot {
    let mut documents = documents(path);
    let mut case = Case::default();
    if documents.first().is_some_and(|d| d["kind"] == "Options") {
        case = serde_json::from_value(documents.remove(0)).expect("options");
    }
    assert!(case.kind.is_empty() || case.kind == "Options");
    let backends = case.backends.iter().map(|text| {
        let (service, address) = text.split_once('=').expect("SERVICE=ADDRESS");
        let (name, port) = service.rsplit_once(':').expect("NAME:PORT");
        let NamespacedName { namespace, name } = name.parse().expect("NAMESPACE/NAME");
        (ServicePort { namespace, name, port: port.parse().expect("a port") }, vec![address.parse().expect("an address")])
    });
    let options = Options {
        single_plane: !case.per_gateway_planes,
        allow_loopback_endpoints: case.allow_loopback_endpoints,
        quic_pinned: case.quic_pinned,
        backends: backends.collect(),
        ..Options::default()
    };
    let mut builder = SnapshotBuilder::new("2026-06-01T00:00:00Z".parse().expect("a time"), options);
    for kind in case.unreadable {
        builder.set_coverage(kind, Coverage::Unreadable("the API server answers 500".to_owned()));
    }
    for kind in case.complete {
        builder.set_coverage(kind, Coverage::Complete);
    }
    for document in documents {
        let object = Object::from_json(document).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        builder.insert(object).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    builder.finish()
}

/// Every case.
pub(crate) fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = fs::read_dir(folder).expect("tests/golden");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut cases: Vec<PathBuf> = paths.filter(|p| p.to_string_lossy().ends_with(".in.yaml")).collect();
    cases.sort();
    cases
}
