//! How long a lookup takes as tables grow, and how long they take to build. Prints wall times; run with
//! `cargo bench --bench table`. Requests go to every host or path of a table in mixed order, so that caches do not flatter
//! the large ones.

#![expect(clippy::print_stdout, reason = "the printed table is what a benchmark is for")]

use std::hint::black_box;
use std::time::Duration;

use cftunnel::gateway::id::{Kind, ObjectRef};
use cftunnel::gateway::ir;
use cftunnel::proxy::table::compile::compile;
use cftunnel::proxy::table::{RequestKey, RouteTable};
use http::{HeaderMap, Method};
use tokio::time::Instant;

/// Lookups per measurement; the fastest of [`ROUNDS`] counts.
const LOOKUPS: usize = 200_000;
const ROUNDS: usize = 5;
const SIZES: [usize; 5] = [10, 1_000, 5_000, 10_000, 100_000];

/// A family of tables: a name, how to write route number `i`, and where its request goes.
struct Family {
    name: &'static str,
    sizes: &'static [usize],
    config: fn(usize) -> ir::RouteConfig,
    request: fn(usize) -> (String, String),
}

const FAMILIES: [Family; 5] = [
    Family {
        name: "exact hosts",
        sizes: &SIZES,
        config: exact_hosts,
        request: |i| (format!("h{i}.example.com"), "/api/v1".into()),
    },
    Family {
        name: "wildcard hosts",
        sizes: &SIZES,
        config: wildcard_hosts,
        request: |i| (format!("a.w{i}.example.com"), "/api/v1".into()),
    },
    Family {
        name: "prefixes of one host",
        sizes: &SIZES,
        config: prefixes,
        request: |i| ("one.example.com".into(), format!("/team{}/app{i}/x", i % 97)),
    },
    Family {
        name: "gRPC services of one host",
        sizes: &SIZES,
        config: services,
        request: |i| ("one.example.com".into(), format!("/pkg.Service{i}/Do")),
    },
    Family {
        name: "hosts of listeners",
        sizes: &SIZES,
        config: listeners,
        request: |i| (format!("h{i}.example.com"), "/api/v1".into()),
    },
];

fn main() {
    println!("{:<26} {:>7} {:>10}  {:>16} {:>16}", "table", "routes", "compile", "find, 1000 busy", "all busy");
    for family in &FAMILIES {
        let mut smallest = None;
        for &size in family.sizes {
            let config = (family.config)(size);
            let (table, built) = timed(|| compile(&config).expect("a document of this format").table);
            let mut column = |busy| {
                let found = lookup_time(&table, size, busy, family);
                format!("{found:>6.0} ns {:>5.1} x", found / *smallest.get_or_insert(found))
            };
            let (busy, all) = (column(1_000), column(50_000));
            println!("{:<26} {size:>7} {:>10}  {busy:>16} {all:>16}", family.name, format!("{built:.1?}"));
        }
    }
    hostile_expression();
}

/// Nanoseconds per lookup when `busy` of the table's hosts or paths, spread over all of it, get all requests.
fn lookup_time(table: &RouteTable, size: usize, busy: usize, family: &Family) -> f64 {
    // A stride that shares no factor with the sizes visits all, far apart.
    let requests: Vec<(String, String)> = (0..size.min(busy)).map(|i| (family.request)(i * 7919 % size)).collect();
    let headers = HeaderMap::new();
    let grpc = family.name.starts_with("gRPC");
    let per_lookup = |find: bool| {
        let round = || {
            for (host, path) in requests.iter().cycle().take(LOOKUPS) {
                // A real request has been read just before it is routed; reading it is part of both measurements.
                black_box(host.bytes().chain(path.bytes()).fold(0, u8::wrapping_add));
                let key = RequestKey { host, path, query: None, method: &Method::GET, headers: &headers, grpc };
                assert!(!find || black_box(table.find(black_box(&key))).is_some(), "{host}{path} is served");
            }
        };
        let best = (0..ROUNDS).map(|_| timed(round).1).min().unwrap_or_default();
        best.as_secs_f64() * 1e9 / LOOKUPS as f64
    };
    per_lookup(true) - per_lookup(false)
}

/// The slowest expression that is small enough to be accepted, on a long path that it nearly matches.
fn hostile_expression() {
    let noise = (0..8_000_u32).map(|i| if i.wrapping_mul(i).wrapping_mul(2_654_435_761) >> 31 == 0 { 'a' } else { 'x' });
    let path: String = std::iter::once('/').chain(noise).collect();
    let headers = HeaderMap::new();
    for expression in
        ["/(.*a)*(.*a)*b", "/([ax]?){200}[ax]{200}b", "/(.*a){40}b", "/.*a.{300}b", "/(.*a.{40}){5}b", "/.*a.{600}b"]
    {
        let mut config = base();
        config.routes.push(route(0, ir::RouteKind::Http, None, vec![http(ir::PathMatch::Regex(expression.into()))]));
        let compiled = compile(&config).expect("a document of this format");
        let key = RequestKey { host: "h", path: &path, query: None, method: &Method::GET, headers: &headers, grpc: false };
        let (_, first) = timed(|| black_box(compiled.table.find(&key)).is_some());
        let (_, again) = timed(|| black_box(compiled.table.find(&key)).is_some());
        let accepted = if compiled.refusals.is_empty() { "accepted" } else { "refused" };
        println!(
            "expression {expression:<24} {accepted:>9} {:>12} first, {:>10} again",
            format!("{first:.1?}"),
            format!("{again:.1?}")
        );
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn base() -> ir::RouteConfig {
    let gateway = ObjectRef::new(Kind::Gateway, "infra", "gw");
    let listener = ir::Listener {
        gateway: gateway.clone(),
        source: gateway,
        name: "http".into(),
        port: 80,
        protocol: ir::ListenerProtocol::Http,
        hostname: None,
    };
    ir::RouteConfig { listeners: vec![listener], ..ir::RouteConfig::empty() }
}

fn http(path: ir::PathMatch) -> ir::Match {
    ir::Match::Http(ir::HttpMatch { path, method: None, headers: vec![], query: vec![] })
}

fn route(i: usize, kind: ir::RouteKind, hostname: Option<String>, matches: Vec<ir::Match>) -> ir::Route {
    let rule =
        ir::Rule { index: 0, name: None, matches, filters: vec![], backends: vec![], response_timeout_ms: None, refusal: None };
    ir::Route {
        object: ObjectRef::new(Kind::HttpRoute, "bench", format!("r{i}")),
        kind,
        hostnames: hostname.into_iter().map(|h| h.parse().expect("a hostname")).collect(),
        listeners: vec![0],
        rules: vec![rule],
    }
}

fn exact_hosts(size: usize) -> ir::RouteConfig {
    let one = |i| route(i, ir::RouteKind::Http, Some(format!("h{i}.example.com")), vec![http(ir::PathMatch::Prefix("/".into()))]);
    ir::RouteConfig { routes: (0..size).map(one).collect(), ..base() }
}

fn wildcard_hosts(size: usize) -> ir::RouteConfig {
    let one =
        |i| route(i, ir::RouteKind::Http, Some(format!("*.w{i}.example.com")), vec![http(ir::PathMatch::Prefix("/api".into()))]);
    ir::RouteConfig { routes: (0..size).map(one).collect(), ..base() }
}

fn prefixes(size: usize) -> ir::RouteConfig {
    let path = |i| http(ir::PathMatch::Prefix(format!("/team{}/app{i}", i % 97)));
    let one = |i| route(i, ir::RouteKind::Http, Some("one.example.com".into()), vec![path(i)]);
    ir::RouteConfig { routes: (0..size).map(one).collect(), ..base() }
}

fn services(size: usize) -> ir::RouteConfig {
    let call = |i| ir::GrpcMatch { service: Some(ir::Text::Exact(format!("pkg.Service{i}"))), ..ir::GrpcMatch::default() };
    let one = |i| route(i, ir::RouteKind::Grpc, Some("one.example.com".into()), vec![ir::Match::Grpc(call(i))]);
    ir::RouteConfig { routes: (0..size).map(one).collect(), ..base() }
}

/// Routes that name no host, each on its own listener of one Gateway, beside a second Gateway that gets everything.
fn listeners(size: usize) -> ir::RouteConfig {
    let mut config = base();
    config.listeners[0].gateway.name = "other".into();
    for i in 0..size {
        let hostname = Some(format!("h{i}.example.com").parse().expect("a hostname"));
        config.listeners.push(ir::Listener { name: format!("h{i}"), hostname, ..base().listeners.remove(0) });
        let any = route(i, ir::RouteKind::Http, None, vec![http(ir::PathMatch::Prefix("/".into()))]);
        config.routes.push(ir::Route { listeners: vec![i + 1], ..any });
    }
    config.routes.push(route(size, ir::RouteKind::Http, None, vec![http(ir::PathMatch::Exact("/other".into()))]));
    config
}
