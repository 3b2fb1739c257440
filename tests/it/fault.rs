//! Networks and edges that fail.

use std::time::Duration;

use cftunnel::edge::{EventKind, Kill, Transport};
use cftunnel::proxy::connector::Protocol;
use tokio::time::Instant;

use crate::support::client::{get, no_body, read, send, to, within};
use crate::support::{BOTH, SOON, Setup, World};

#[tokio::test]
async fn a_connection_cut_in_the_middle_of_a_body_cuts_the_client_and_comes_back() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        world.edge.faults().kill_mid_body(Kill { times: 1, after: 1_000_000 });
        let response = send(world.clients(), to("GET", "/bytes/20000000").body(no_body()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(within(SOON, read(response)).await.is_err(), "{protocol:?}: a part is not the whole");
        world.wait_for(4, Duration::from_secs(3)).await;
        assert_eq!(get(world.clients(), "/bytes/20000").await.body.len(), 20_000);
    }
}

#[tokio::test]
async fn silent_udp_falls_back_to_http2_within_eight_seconds() {
    let edge = Setup::edge().await;
    edge.faults().silence_udp(true);
    let start = Instant::now();
    let world = Setup::new(Protocol::Auto).start_at(edge).await;
    let up = world.edge.wait_until(Duration::from_secs(8), |state| state.live().next().is_some()).await;
    assert!(up, "{:#?}", world.edge.state());
    println!("first connection after {:?}", start.elapsed());
    world.wait_for(4, SOON).await;
    assert!(world.sessions().iter().all(|s| s.transport == Transport::Http2));
    assert_eq!(get(world.clients(), "/x").await.status, 200);
}

#[tokio::test]
async fn refused_quic_falls_back_to_http2() {
    let edge = Setup::edge().await;
    edge.faults().reject_quic(true);
    let world = Setup::new(Protocol::Auto).start_at(edge).await;
    world.wait_for(4, Duration::from_secs(8)).await;
    assert!(world.sessions().iter().all(|s| s.transport == Transport::Http2));
}

#[tokio::test]
async fn udp_that_falls_silent_later_is_noticed() {
    let world = World::start(Protocol::Auto).await;
    assert!(world.sessions().iter().all(|s| s.transport == Transport::Quic));
    world.edge.faults().silence_udp(true);
    let moved = world
        .edge
        .wait_until(Duration::from_secs(25), |state| state.live().filter(|s| s.transport == Transport::Http2).count() == 4)
        .await;
    assert!(moved, "{:#?}", world.edge.state());
}

#[tokio::test]
async fn slow_registrations_and_requests_are_waited_for() {
    let edge = Setup::edge().await;
    edge.faults().delay_registrations(Duration::from_millis(500));
    let world = Setup::new(Protocol::Http2).start_at(edge).await;
    world.wait_for(4, SOON).await;
    world.edge.faults().delay_requests(Duration::from_millis(300));
    let start = Instant::now();
    assert_eq!(get(world.clients(), "/x").await.status, 200);
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_locally_managed_tunnel_gets_to_know_nothing_wrong() {
    for protocol in BOTH {
        let edge = Setup::edge().await;
        edge.faults().locally_managed(true);
        let world = Setup::new(protocol).start_at(edge).await;
        world.wait_for(4, SOON).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        for event in world.edge.state().events {
            assert!(!matches!(event.kind, EventKind::Gone { .. }), "{protocol:?}: {event:?}");
        }
    }
}

#[tokio::test]
async fn an_edge_that_stops_leaves_no_task_and_no_port() {
    for protocol in BOTH {
        let World { edge, connector, plane, .. } = World::start(protocol).await;
        let (clients, tunnel, token) = (edge.client_addr(), edge.tunnel_addr(), edge.token().clone());
        within(SOON, edge.shutdown()).await;
        // The same ports are free again, and the connector comes back by itself; but it trusts the old certificate.
        let edge = cftunnel::edge::Edge::start(cftunnel::edge::Config { clients, tunnel, token: Some(token) }).await;
        let edge = edge.expect("the ports are free");
        let failed =
            edge.wait_until(SOON, |s| s.events.iter().any(|e| matches!(e.kind, EventKind::HandshakeFailed { .. }))).await;
        assert!(failed, "{:#?}", edge.state());
        drop((connector, plane));
    }
}
