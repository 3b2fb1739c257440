//! How many instructions the thinking parts take, counted by valgrind: the same on a busy machine as on an idle one.
//! `benches/check` compares the counts with those in `instructions.tsv`. Needs valgrind and gungraun-runner.

#![expect(
    missing_docs,
    unused_qualifications,
    clippy::disallowed_methods,
    reason = "the macros of gungraun write undocumented items with full paths, and exit"
)]

mod fixture;

use std::hint::black_box;
use std::sync::Arc;

use cftunnel::gateway::ir::RouteConfig;
use cftunnel::gateway::snapshot::Snapshot;
use cftunnel::gateway::token::TunnelToken;
use cftunnel::gateway::translate::{Translation, translate};
use cftunnel::proxy::connector::wire::headers;
use cftunnel::proxy::connector::wire::registration::{ConnectionResponse, Registration};
use cftunnel::proxy::connector::wire::rpc::{RegistrationClient, RegistrationClientEvent, RegistrationEvent, RegistrationServer};
use cftunnel::proxy::http::plane::{Options, Plane};
use cftunnel::proxy::metrics::Metrics;
use cftunnel::proxy::table::compile::{Compiled, compile};
use fixture::{EXACT, Family, Lookups, PREFIXES, SERVICES, WILDCARD};
use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use http::HeaderMap;
use prometheus_client::registry::Registry;
use uuid::Uuid;

/// Lookups that are counted together: enough to visit what the hash spreads.
const LOOKUPS: usize = 1_000;

fn lookups(family: Family, routes: usize) -> Lookups {
    Lookups::new(family, routes, LOOKUPS)
}

#[library_benchmark]
#[bench::exact_10(lookups(EXACT, 10))]
#[bench::exact_1000(lookups(EXACT, 1_000))]
#[bench::exact_100000(lookups(EXACT, 100_000))]
#[bench::wildcard_10(lookups(WILDCARD, 10))]
#[bench::wildcard_1000(lookups(WILDCARD, 1_000))]
#[bench::wildcard_100000(lookups(WILDCARD, 100_000))]
#[bench::prefixes_10(lookups(PREFIXES, 10))]
#[bench::prefixes_1000(lookups(PREFIXES, 1_000))]
#[bench::prefixes_100000(lookups(PREFIXES, 100_000))]
#[bench::services_1000(lookups(SERVICES, 1_000))]
fn find(lookups: Lookups) -> Lookups {
    for key in lookups.keys(LOOKUPS) {
        assert!(black_box(lookups.table.find(&key)).is_some());
    }
    lookups
}

#[library_benchmark]
#[bench::of_500(fixture::objects(500))]
#[bench::of_5000(fixture::objects(5_000))]
fn translate_routes(snapshot: Snapshot) -> (Snapshot, Translation) {
    let translation = translate(&snapshot);
    (snapshot, translation)
}

#[library_benchmark]
#[bench::of_500(fixture::document(500))]
#[bench::of_5000(fixture::document(5_000))]
fn compile_document(config: RouteConfig) -> (RouteConfig, Compiled) {
    let compiled = compile(&config).expect("a document of this format");
    (config, compiled)
}

/// A plane that serves so many routes, and the JSON of a document with one more.
struct Push {
    plane: Arc<Plane>,
    json: Vec<u8>,
    runtime: tokio::runtime::Runtime,
}

fn push(routes: usize) -> Push {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = runtime.enter();
    let plane = Plane::new(Options::new(Metrics::register(&mut Registry::default())));
    drop(guard);
    plane.apply(&fixture::document(routes)).expect("a document of this format");
    let json = serde_json::to_vec(&fixture::document(routes + 1)).expect("a document is JSON");
    Push { plane, json, runtime }
}

// From the bytes of a push to serving by it: parse, hash, compile, swap, and give the former table back.
#[library_benchmark]
#[bench::on_500(push(500))]
#[bench::on_5000(push(5_000))]
fn one_route_more(push: Push) -> Push {
    let inside = push.runtime.enter();
    let config: RouteConfig = serde_json::from_slice(&push.json).expect("a document");
    push.plane.apply(&config).expect("a document of this format");
    drop(inside);
    push
}

#[library_benchmark]
#[bench::of_a_page(fixture::response_headers())]
fn serialise_headers(headers: HeaderMap) -> (HeaderMap, Vec<u8>) {
    let mut out = Vec::with_capacity(1024);
    headers::append_all(&mut out, black_box(&headers));
    (headers, out)
}

fn serialised() -> Vec<u8> {
    let mut out = Vec::new();
    headers::append_all(&mut out, &fixture::response_headers());
    out
}

#[library_benchmark]
#[bench::of_a_page(serialised())]
fn parse_headers(text: Vec<u8>) -> HeaderMap {
    headers::parse(black_box(&text)).expect("serialised headers")
}

// Both ends of a registration, from the first byte to the connection's details.
#[library_benchmark]
#[bench::of_a_connection(fixture::registration())]
fn register(registration: Registration) -> Vec<RegistrationClientEvent> {
    let (mut client, mut server) = (RegistrationClient::new(), RegistrationServer::new());
    let asked = client.start(&registration).expect("small enough");
    let events = server.receive(&asked).expect("what a connector says");
    let Some(RegistrationEvent::Register { call, .. }) = events.into_iter().next() else { panic!("no registration") };
    let (uuid, location) = (Uuid::from_u128(9), "ams01".to_owned());
    let details = ConnectionResponse::Details { uuid, location, remotely_managed: true };
    let answer = server.answer_registration(call, &details).expect("a call that waits");
    client.receive(&answer).expect("what an edge says")
}

#[library_benchmark]
#[bench::of_a_tunnel(fixture::token())]
fn parse_token(text: String) -> TunnelToken {
    text.parse().expect("a token")
}

library_benchmark_group!(
    name = thinking,
    benchmarks =
        [find, translate_routes, compile_document, one_route_more, serialise_headers, parse_headers, register, parse_token]
);
// Counts of instructions do not need the caches simulated, which takes most of the time.
main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no"])),
    library_benchmark_groups = thinking
);
