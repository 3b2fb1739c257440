//! The configuration document: nothing panics, an accepted one survives being written, and its table answers any request.

use cftunnel::gateway::ir::RouteConfig;
use cftunnel::proxy::table::RequestKey;
use cftunnel::proxy::table::compile::compile;
use http::{HeaderMap, Method};

pub(crate) fn target(data: &[u8]) {
    let Ok(config) = serde_json::from_slice::<RouteConfig>(data) else { return };
    let text = serde_json::to_vec(&config).expect("a document is JSON");
    let again: RouteConfig = serde_json::from_slice(&text).expect("a document can be read back");
    assert!(config == again, "a document changes when it is written and read");
    let Ok(compiled) = compile(&config) else { return };
    let headers = HeaderMap::new();
    let hosts = config.routes.iter().flat_map(|route| &route.hostnames).map(|h| h.as_str().trim_start_matches("*.")).take(8);
    for host in hosts.chain(["", "a.example.com"]) {
        for path in ["/", "*", "/a/b", "//", "/%2f?"] {
            for grpc in [false, true] {
                let key = RequestKey { host, path, query: Some("a=b&c"), method: &Method::GET, headers: &headers, grpc };
                if let Some(hit) = compiled.table.find(&key) {
                    assert!(config.routes.iter().any(|route| route.object == hit.rule.route), "a rule of no route");
                }
            }
        }
    }
}
