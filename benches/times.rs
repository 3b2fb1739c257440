//! How long the thinking parts take on this machine: lookups as tables grow, and what comes before a table serves. Prints wall
//! times; run with `cargo bench --bench times`. Requests go to every host or path of a table in mixed order, so that caches do
//! not flatter the large ones. What must not grow is checked by instruction counts, in `instructions.rs`.

#![expect(clippy::print_stdout, reason = "the printed table is what a benchmark is for")]

mod fixture;

use std::hint::black_box;
use std::time::Duration;

use cftunnel::gateway::ir::RouteConfig;
use cftunnel::gateway::translate::translate;
use cftunnel::proxy::http::plane::{Options, Plane};
use cftunnel::proxy::metrics::Metrics;
use cftunnel::proxy::table::RequestKey;
use cftunnel::proxy::table::compile::compile;
use fixture::{EXACT, Family, LISTENERS, Lookups, PREFIXES, SERVICES, WILDCARD};
use http::{HeaderMap, Method};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// Lookups per measurement; the fastest of [`ROUNDS`] counts.
const LOOKUPS: usize = 200_000;
const ROUNDS: usize = 7;
const SIZES: [usize; 5] = [10, 1_000, 5_000, 10_000, 100_000];

fn main() {
    println!("{:<26} {:>7} {:>10}  {:>16} {:>16}", "table", "routes", "compile", "find, 1000 busy", "all busy");
    for family in [EXACT, WILDCARD, PREFIXES, SERVICES, LISTENERS] {
        let mut smallest = None;
        for routes in SIZES {
            let config = (family.config)(routes);
            let built = best(3, || compile(&config).expect("a document of this format"));
            let mut column = |busy| {
                let found = lookup_time(family, routes, busy);
                format!("{found:>6.1} ns {:>5.1} x", found / *smallest.get_or_insert(found))
            };
            let (busy, all) = (column(1_000), column(100_000));
            println!("{:<26} {routes:>7} {:>10}  {busy:>16} {all:>16}", family.name, format!("{built:.1?}"));
        }
    }
    for routes in [500, 5_000] {
        changes(routes);
    }
    hostile_expressions();
}

/// Nanoseconds per lookup when `busy` of the table's hosts or paths, spread over all of it, get all requests.
fn lookup_time(family: Family, routes: usize, busy: usize) -> f64 {
    let lookups = Lookups::new(family, routes, busy);
    let per_lookup = |find: bool| {
        let round = || {
            for key in lookups.keys(LOOKUPS) {
                // A real request has been read just before it is routed; reading it is part of both measurements.
                black_box(key.host.bytes().chain(key.path.bytes()).fold(0, u8::wrapping_add));
                assert!(!find || black_box(lookups.table.find(black_box(&key))).is_some(), "{key:?} is served");
            }
        };
        best(ROUNDS, round).as_secs_f64() * 1e9 / LOOKUPS as f64
    };
    per_lookup(true) - per_lookup(false)
}

/// The way of a change, from objects to serving by it.
fn changes(routes: usize) {
    let snapshot = fixture::objects(routes);
    let config = fixture::document(routes);
    let json = serde_json::to_vec(&config).expect("a document is JSON");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _inside = runtime.enter();
    let plane = Plane::new(Options::new(Metrics::register(&mut Registry::default())));
    let grown = serde_json::to_vec(&fixture::document(routes + 1)).expect("a document is JSON");
    let parse = |json: &[u8]| serde_json::from_slice::<RouteConfig>(json).expect("a document");
    let show = |what: &str, time: Duration| println!("{what:<26} {routes:>7} {:>10}", format!("{time:.2?}"));
    show("translate", best(ROUNDS, || translate(&snapshot)));
    show("parse a document", best(ROUNDS, || parse(&json)));
    show("compile", best(ROUNDS, || compile(&config).expect("a document of this format")));
    show("compile and swap", best(ROUNDS, || plane.apply(&config).expect("a document of this format")));
    show("one route more, from JSON", best(ROUNDS, || plane.apply(&parse(&grown)).expect("a document of this format")));
}

/// The slowest expressions that are small enough to be accepted, on a long path that they nearly match.
fn hostile_expressions() {
    let noise = (0..8_000_u32).map(|i| if i.wrapping_mul(i).wrapping_mul(2_654_435_761) >> 31 == 0 { 'a' } else { 'x' });
    let path: String = std::iter::once('/').chain(noise).collect();
    let headers = HeaderMap::new();
    for expression in
        ["/(.*a)*(.*a)*b", "/([ax]?){200}[ax]{200}b", "/(.*a){40}b", "/.*a.{300}b", "/(.*a.{40}){5}b", "/.*a.{600}b"]
    {
        let compiled = compile(&fixture::expression(expression)).expect("a document of this format");
        let key = RequestKey { host: "h", path: &path, query: None, method: &Method::GET, headers: &headers, grpc: false };
        let (first, again) = (best(1, || compiled.table.find(&key)), best(1, || compiled.table.find(&key)));
        let accepted = if compiled.refusals.is_empty() { "accepted" } else { "refused" };
        println!(
            "expression {expression:<24} {accepted:>9} {:>12} first, {:>10} again",
            format!("{first:.1?}"),
            format!("{again:.1?}")
        );
    }
}

/// The fastest of some rounds. What the work returns is given back outside of the measurement.
fn best<T>(rounds: usize, mut work: impl FnMut() -> T) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        let result = black_box(work());
        let took = start.elapsed();
        drop(result);
        took
    };
    (0..rounds).map(timed).min().unwrap_or_default()
}
