//! The life of connections: registration, configuration, loss and recovery, drain, and the move between transports. The
//! deadlines are those of the project's table of limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cftunnel::edge::{EventKind, Refusal, Transport, Which};
use cftunnel::proxy::connector::Protocol;
use tokio::time::Instant;

use crate::support::client::{get, within};
use crate::support::{BOTH, SOON, Setup, World, routes};

#[tokio::test]
async fn four_connections_with_all_that_the_edge_wants_to_know() {
    for protocol in BOTH {
        let edge = Setup::edge().await;
        let start = Instant::now();
        let world = Setup::new(protocol).start_at(edge).await;
        world.wait_for(4, Duration::from_millis(1500)).await;
        println!("{protocol:?}: four up after {:?}", start.elapsed());
        let sessions = world.sessions();
        assert_eq!(sessions.iter().map(|s| s.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        for s in &sessions {
            assert_eq!(s.client_id, sessions[0].client_id, "one connector");
            for feature in ["allow_remote_config", "serialized_headers"] {
                assert!(s.features.iter().any(|f| f == feature), "{:?}", s.features);
            }
            assert!(!s.version.is_empty() && s.arch.contains('_'), "{s:?}");
            let expected = match protocol {
                Protocol::Quic => (Transport::Quic, "quic.cftunnel.com", Some("argotunnel")),
                _ => (Transport::Http2, "h2.cftunnel.com", None),
            };
            assert_eq!((s.transport, s.sni.as_deref().unwrap(), s.alpn.as_deref()), expected);
        }
    }
}

#[tokio::test]
async fn configuration_pushes_are_acknowledged() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        for (sent, applied) in [(7, 7), (3, 7), (8, 8)] {
            world.edge.push_config(sent, r#"{"ingress":[{"service":"http_status:404"}]}"#);
            let acked = world
                .edge
                .wait_until(SOON, |state| {
                    state.live().count() == 4
                        && state.live().all(|s| s.config_ack.as_ref().is_some_and(|a| a.sent == sent && a.applied == Ok(applied)))
                })
                .await;
            assert!(acked, "{protocol:?} {sent}: {:#?}", world.edge.state());
            assert!(world.sessions().iter().all(|s| s.config_ack.as_ref().is_some_and(|a| a.error.is_empty())));
        }
        assert_eq!(get(world.clients(), "/x").await.status, 200, "what is served does not come from there");
    }
}

#[tokio::test]
async fn one_dropped_is_back_soon() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let start = Instant::now();
        assert_eq!(world.edge.drop_connections(Which::Index(2)), 1);
        world.wait_for(3, SOON).await;
        world.wait_for(4, Duration::from_secs(2)).await;
        println!("{protocol:?}: one back after {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn all_dropped_are_back_soon() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let start = Instant::now();
        assert_eq!(world.edge.drop_connections(Which::All), 4);
        world.wait_for(0, SOON).await;
        assert_eq!(get(world.clients(), "/x").await.status, 530);
        let first = world.edge.wait_until(Duration::from_millis(1500), |state| state.live().next().is_some()).await;
        assert!(first, "{protocol:?}: none back");
        println!("{protocol:?}: first back after {:?}", start.elapsed());
        world.wait_for(4, Duration::from_secs(3).saturating_sub(start.elapsed())).await;
        println!("{protocol:?}: all back after {:?}", start.elapsed());
        assert_eq!(get(world.clients(), "/x").await.status, 200);
    }
}

fn refusal(times: u32, cause: &str, should_retry: bool) -> Refusal {
    Refusal { times, cause: cause.into(), should_retry, retry_after: should_retry.then_some(Duration::from_secs(1)) }
}

#[tokio::test]
async fn refusals_at_start_end_nothing() {
    for (protocol, cause, retry) in [
        (Protocol::Http2, "busy", true),
        (Protocol::Quic, "busy", true),
        (Protocol::Http2, "tunnel deleted", false),
        (Protocol::Quic, "tunnel deleted", false),
        (Protocol::Http2, "EDUPCONN", false),
        (Protocol::Quic, "EDUPCONN", false),
    ] {
        let edge = Setup::edge().await;
        edge.faults().refuse(refusal(5, cause, retry));
        let start = Instant::now();
        let world = Setup::new(protocol).start_at(edge).await;
        world.wait_for(4, Duration::from_secs(if retry { 5 } else { 30 })).await;
        println!("{protocol:?} {cause}: four up after {:?}", start.elapsed());
        let refused = |e: &&cftunnel::edge::Event| matches!(&e.kind, EventKind::Refused { cause: c, .. } if c == cause);
        assert_eq!(world.edge.state().events.iter().filter(refused).count(), 5);
    }
}

#[tokio::test]
async fn a_refused_connection_waits_as_long_as_the_edge_says() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        world.edge.faults().refuse(refusal(2, "busy", true));
        let start = Instant::now();
        world.edge.drop_connections(Which::Index(3));
        world.wait_for(3, SOON).await;
        world.wait_for(4, Duration::from_secs(5)).await;
        assert!(start.elapsed() >= Duration::from_secs(2), "{protocol:?}: twice refused for a second each");
        println!("{protocol:?}: back after {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_wrong_secret_is_refused_and_tried_again() {
    let edge = Setup::edge().await;
    let mut token = edge.token().clone();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    token.secret = cftunnel::gateway::token::TunnelSecret::new(vec![1; 32]);
    let other =
        cftunnel::edge::Edge::start(cftunnel::edge::Config { clients: any, tunnel: any, token: Some(token) }).await.unwrap();
    let plane = cftunnel::proxy::http::Plane::new(cftunnel::proxy::http::plane::Options::new(
        cftunnel::proxy::metrics::Metrics::register(&mut prometheus_client::registry::Registry::default()),
    ));
    let mut config = cftunnel::proxy::connector::Config::new(edge.token().clone()).unwrap();
    config.edge = cftunnel::proxy::connector::EdgeSource::Static(vec![other.tunnel_addr().into()]);
    config.roots = cftunnel::proxy::connector::Roots::from_pem(other.ca_pem().as_bytes(), "test").unwrap();
    let _connector = cftunnel::proxy::connector::spawn(config, Arc::clone(&plane), plane.needs_trailers()).unwrap();
    let refused = other
        .wait_until(SOON, |state| {
            state
                .events
                .iter()
                .filter(|e| matches!(&e.kind, EventKind::Refused { cause, .. } if cause.contains("Unauthorized")))
                .count()
                > 4
        })
        .await;
    assert!(refused, "{:#?}", other.state());
    assert!(other.state().sessions.is_empty());
}

/// Clients that ask again and again until they are told to stop. Every answer must be a 200 with the whole body.
struct Load {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(clients: SocketAddr, path: &'static str, len: usize) -> Self {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let tasks = (0..8).map(|_| {
            let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
            tokio::spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let whole = get(clients, path).await;
                    if whole.status != 200 || whole.body.len() != len {
                        failures.push(format!("{} with {} bytes: {:?}", whole.status, whole.body.len(), whole.body.get(..200)));
                    }
                    asked.fetch_add(1, Ordering::SeqCst);
                }
                failures
            })
        });
        let tasks = tasks.collect();
        Self { stop, asked, tasks }
    }

    async fn none_lost(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            assert_eq!(within(SOON, task).await.unwrap(), Vec::<String>::new());
        }
        self.asked.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn connections_taken_out_of_service_lose_nothing() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let load = Load::start(world.clients(), "/sleep/50", 5);
        for index in 0..4 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let before = world.edge.state().registered_total;
            assert_eq!(world.edge.goaway(Which::Index(index)), 1);
            let back = world.edge.wait_until(SOON, |s| s.registered_total > before && s.live().count() == 4).await;
            assert!(back, "{protocol:?} {index}: {:#?}", world.edge.state());
        }
        assert!(load.none_lost().await > 20, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_drain_loses_nothing() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let (edge, origin) = (world.clients(), world.origin.clone());
        let asked: Vec<_> = (0..8).map(|_| tokio::spawn(async move { get(edge, "/sleep/1000").await })).collect();
        crate::support::eventually("all arrive", || origin.seen.requests.load(Ordering::SeqCst) == 8).await;
        let start = Instant::now();
        let drained = tokio::spawn({
            let connector = world.connector.clone();
            async move { connector.drain().await }
        });
        world.wait_for(0, SOON).await;
        assert_eq!(get(edge, "/x").await.status, 530, "no new requests");
        for answer in asked {
            assert_eq!(answer.await.unwrap().text(), "slept", "{protocol:?}");
        }
        within(SOON, drained).await.unwrap();
        println!("{protocol:?}: drained after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(5), "the grace is a limit, not a wait");
        let unregistered = |e: &&cftunnel::edge::Event| matches!(e.kind, EventKind::Unregistered { .. });
        assert_eq!(world.edge.state().events.iter().filter(unregistered).count(), 4, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_drain_waits_for_the_edge_to_have_what_was_sent() {
    let world = World::start(Protocol::Quic).await;
    let (edge, origin) = (world.clients(), world.origin.clone());
    let asked = tokio::spawn(async move { get(edge, "/sleep/1000").await });
    crate::support::eventually("it arrives", || origin.seen.requests.load(Ordering::SeqCst) == 1).await;
    let connector = world.connector.clone();
    let drained = tokio::spawn(async move { connector.drain().await });
    world.wait_for(0, SOON).await;
    // The answer is written while no datagram gets through, and nothing tells that from one that did until it is acknowledged.
    world.edge.faults().silence_udp(true);
    tokio::time::sleep(Duration::from_millis(2000)).await;
    world.edge.faults().silence_udp(false);
    assert_eq!(within(SOON, asked).await.unwrap().text(), "slept");
    within(SOON, drained).await.unwrap();
}

#[tokio::test]
async fn a_drain_waits_for_requests_that_were_lost_on_the_way() {
    let world = World::start(Protocol::Quic).await;
    let faults = world.edge.faults();
    faults.silence_udp(true);
    let edge = world.clients();
    let asked: Vec<_> = (0..40).map(|_| tokio::spawn(async move { get(edge, "/x").await })).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let connector = world.connector.clone();
    let drained = tokio::spawn(async move { connector.drain().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The path comes back for just as long as it takes to unregister.
    faults.silence_udp(false);
    let unregistered = |e: &cftunnel::edge::Event| matches!(e.kind, EventKind::Unregistered { .. });
    while !world.edge.state().events.iter().any(unregistered) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    faults.silence_udp(true);
    tokio::time::sleep(Duration::from_millis(1000)).await;
    faults.silence_udp(false);
    for answer in asked {
        assert_eq!(within(SOON, answer).await.unwrap().status, 200);
    }
    within(SOON, drained).await.unwrap();
}

#[tokio::test]
async fn a_drain_while_connections_register_unregisters_them() {
    for protocol in BOTH {
        let edge = Setup::edge().await;
        edge.faults().delay_registrations(Duration::from_millis(1500));
        let world = Setup::new(protocol).start_at(edge).await;
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!(world.sessions().len(), 0, "{protocol:?}");
        within(SOON, world.connector.drain()).await;
        let events = world.edge.state().events;
        let count = |which: fn(&EventKind) -> bool| events.iter().filter(|e| which(&e.kind)).count();
        let registered = count(|e| matches!(e, EventKind::Registered { .. }));
        let unregistered = count(|e| matches!(e, EventKind::Unregistered { .. }));
        assert_eq!((registered, unregistered), (4, 4), "{protocol:?}: {events:#?}");
    }
}

#[tokio::test]
async fn a_drain_gives_up_dials_at_once() {
    let edge = Setup::edge().await;
    edge.faults().silence_udp(true);
    let world = Setup::new(Protocol::Quic).start_at(edge).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    within(Duration::from_secs(2), world.connector.drain()).await;
}

#[tokio::test]
async fn configurations_swapped_under_load_lose_nothing() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let load = Load::start(world.clients(), "/bytes/20000", 20_000);
        for i in 0..40 {
            let mut config = routes(world.origin.addr, false);
            if i % 2 == 0 {
                config.routes.retain(|r| r.object.name() == "any");
            }
            world.plane.apply(&config).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(load.none_lost().await > 40, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_route_that_needs_trailers_moves_the_connections_and_back_and_loses_nothing() {
    let world = World::start(Protocol::Auto).await;
    assert!(world.sessions().iter().all(|s| s.transport == Transport::Quic), "{:#?}", world.edge.state());
    let load = Load::start(world.clients(), "/sleep/20", 5);
    // Back only when no such route has been there for a while.
    for (needed, transport, limit) in [(true, Transport::Http2, SOON), (false, Transport::Quic, SOON * 3)] {
        world.plane.apply(&routes(world.origin.addr, needed)).unwrap();
        let there = |s: &cftunnel::edge::SessionState| s.transport == transport;
        let moved = world.edge.wait_until(limit, |state| state.live().count() == 4 && state.live().all(there)).await;
        assert!(moved, "to {transport}: {:#?}", world.edge.state());
    }
    assert!(load.none_lost().await > 10);
}
