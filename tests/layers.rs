//! Guards the dependency direction of ARCHITECTURE.md: who may name whom, and what the pure parts may not touch.

use std::fs;
use std::path::{Path, PathBuf};

/// Directory or file under `src/`, and what it may name besides itself. A trailing `::` covers everything below.
const MAY_USE: &[(&str, &[&str])] = &[
    ("gateway", &[]),
    ("proxy/table", &["gateway::id", "gateway::ir", "gateway::hostname", "gateway::pattern"]),
    ("proxy/connector/wire", &["gateway::token"]),
    ("proxy/workers.rs", &[]),
    ("proxy/direct", &["proxy::http", "proxy::error", "proxy::config"]),
    ("proxy/connector", &["gateway::token", "proxy::http", "proxy::workers"]),
    ("proxy", &["gateway::id", "gateway::ir", "gateway::hostname", "gateway::token"]),
    ("edge", &["gateway::token", "proxy::connector::wire", "proxy::http::Body", "proxy::http::body"]),
    ("cluster", &["gateway"]),
    ("telemetry", &[]),
    ("commands", &["gateway", "cluster", "edge", "proxy", "telemetry"]),
];

/// The parts without I/O and without a clock.
const PURE: &[&str] = &[
    "gateway",
    "proxy/table",
    "proxy/connector/wire",
    "proxy/connector/state.rs",
    "proxy/connector/state",
    "proxy/connector/backoff.rs",
];

/// What a pure part may not mention, and why.
const IMPURE: &[(&str, &str)] = &[
    ("tokio::", "async belongs to the drivers"),
    ("hyper::", "I/O belongs to the drivers"),
    ("reqwest::", "I/O belongs to the drivers"),
    ("rustls::", "I/O belongs to the drivers"),
    ("quinn::", "I/O belongs to the drivers"),
    ("std::fs", "files belong to the drivers"),
    ("std::env", "the environment belongs to commands/"),
    ("TcpStream", "sockets belong to the drivers"),
    ("UdpSocket", "sockets belong to the drivers"),
    ("::now()", "`now` is an argument"),
    ("tracing::info!", "only trace! in a pure part"),
    ("tracing::warn!", "only trace! in a pure part"),
    ("tracing::error!", "only trace! in a pure part"),
];

#[test]
fn dependencies_point_one_way() {
    let mut wrong = Vec::new();
    for (file, source) in sources() {
        let Some((owner, allowed)) = MAY_USE.iter().find(|(owner, _)| belongs(&file, owner)) else { continue };
        let own = owner.replace('/', "::");
        for path in crate_paths(&source) {
            let inside = |prefix: &str| path == prefix || path.starts_with(&format!("{prefix}::"));
            if !inside(&own) && !allowed.iter().any(|a| inside(a)) {
                wrong.push(format!("src/{file}: crate::{path} (it may use: {allowed:?})"));
            }
        }
    }
    assert!(wrong.is_empty(), "dependencies against the direction of ARCHITECTURE.md:\n{}", wrong.join("\n"));
}

#[test]
fn every_directory_has_a_rule() {
    for entry in fs::read_dir(root()).expect("src/ is there") {
        let name = entry.expect("readable").file_name().into_string().expect("utf-8");
        assert!(
            ["lib.rs", "bin"].contains(&name.as_str()) || MAY_USE.iter().any(|(owner, _)| *owner == name),
            "src/{name} has no rule in tests/layers.rs"
        );
    }
}

#[test]
fn the_pure_parts_have_no_io_and_no_clock() {
    let mut wrong = Vec::new();
    for (file, source) in sources().into_iter().filter(|(file, _)| PURE.iter().any(|p| belongs(file, p))) {
        for (banned, why) in IMPURE {
            if source.contains(banned) {
                wrong.push(format!("src/{file}: {banned} ({why})"));
            }
        }
        // The route table looks up by hash and never iterates; elsewhere the order of a HashMap would reach the output.
        if source.contains("HashMap") && !belongs(&file, "proxy/table") && file != "gateway/lookup.rs" {
            wrong.push(format!("src/{file}: HashMap (its order differs from run to run; BTreeMap, or gateway::lookup)"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_output_prints_and_only_two_files_know_yaml() {
    for (file, source) in sources() {
        if !["commands/output.rs", "commands/output/mod.rs"].contains(&file.as_str()) {
            for banned in ["println!", "eprintln!", "print!(", "comfy_table", "owo_colors"] {
                assert!(!source.contains(banned), "src/{file} prints with {banned}; commands/output is the one place");
            }
        }
        if !["cluster/manifest.rs", "cluster/manifest/mod.rs", "commands/output.rs", "commands/output/mod.rs"]
            .contains(&file.as_str())
            && !file.starts_with("cluster/manifest/")
        {
            assert!(!source.contains("serde_saphyr"), "src/{file} names the YAML library");
        }
        if !file.starts_with("commands") && !file.starts_with("bin") {
            assert!(!source.contains("anyhow"), "src/{file} uses anyhow; it has typed errors");
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn belongs(file: &str, owner: &str) -> bool {
    file == owner || file.strip_prefix(owner).is_some_and(|rest| rest.starts_with('/'))
}

/// Every source file but tests and generated types, relative to `src/`, without comments and without its test module.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![root()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("readable").path();
            let file = path.strip_prefix(root()).expect("below src/").to_str().expect("utf-8").to_owned();
            if path.is_dir() {
                open.push(path);
            } else if file.ends_with(".rs")
                && !file.ends_with("tests.rs")
                && !file.contains("/tests/")
                && !file.contains("gateway_api/")
            {
                let text = fs::read_to_string(&path).expect("utf-8");
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
                let code: Vec<&str> = code.lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
                found.push((file, code.join("\n")));
            }
        }
    }
    found.sort();
    assert!(found.len() > 12, "the walk found {} files", found.len());
    found
}

/// The paths a source names below `crate::`, groups expanded to their first level: `crate::{a::b, c}` gives `a::b` and `c`.
fn crate_paths(source: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in source.match_indices("crate::") {
        if source[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        expand(&source[at + "crate::".len()..], "", &mut paths);
    }
    paths
}

/// Reads one use tree at the start of `text`; returns how many bytes it took.
fn expand(text: &str, prefix: &str, paths: &mut Vec<String>) -> usize {
    let mut path = prefix.to_owned();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        if let Some(group) = trimmed.strip_prefix('{') {
            let mut inside = 1;
            loop {
                let left = &group[inside - 1..];
                let skipped = left.len() - left.trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
                inside += skipped;
                if group[inside - 1..].is_empty() || group[inside - 1..].starts_with('}') {
                    return at + inside + 1;
                }
                inside += expand(&group[inside - 1..], &path, paths).max(1);
            }
        }
        let word = trimmed.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(trimmed.len());
        if word > 0 {
            if !path.is_empty() {
                path.push_str("::");
            }
            path.push_str(&trimmed[..word]);
        }
        at += word;
        if text[at..].starts_with("::") {
            at += 2;
        } else {
            paths.push(path);
            // ` as name` belongs to the tree.
            return at + text[at..].find([',', '}', ';', '(', '<', ' ', '\n']).unwrap_or(0);
        }
    }
}

#[test]
fn use_trees_are_read() {
    assert_eq!(crate_paths("use crate::gateway::id::Kind;"), ["gateway::id::Kind"]);
    assert_eq!(crate_paths("use crate::{a::{b, c::d}, e};"), ["a::b", "a::c::d", "e"]);
    assert_eq!(crate_paths("fn f() -> crate::a::B<u8> { crate::c() }"), ["a::B", "c"]);
}
