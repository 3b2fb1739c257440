//! Cap'n Proto messages and the RPC peers of both ends: nothing panics, nothing grows beyond what came in, and bytes mean the same
//! however they are cut.

use std::fmt::Debug;

use cftunnel::gateway::token::TunnelSecret;
use cftunnel::proxy::connector::wire::WireError;
use cftunnel::proxy::connector::wire::registration::{ConnectionOptions, Registration};
use cftunnel::proxy::connector::wire::rpc::{ConfigurationClient, ConfigurationServer, RegistrationClient, RegistrationServer};

/// What one peer says to the bytes, until it gives up.
fn heard<E: Debug>(pieces: &[&[u8]], mut receive: impl FnMut(&[u8]) -> Result<Vec<E>, WireError>) -> (Vec<String>, bool) {
    let mut events = Vec::new();
    for piece in pieces {
        match receive(piece) {
            Ok(more) => events.extend(more.iter().map(|event| format!("{event:?}"))),
            Err(_) => return (events, true),
        }
    }
    (events, false)
}

fn registration_of_ours() -> Registration {
    let options = ConnectionOptions { num_previous_attempts: 1, ..ConnectionOptions::default() };
    Registration {
        account_tag: "0123456789abcdef0123456789abcdef".to_owned(),
        tunnel_secret: TunnelSecret::new(vec![7; 32]),
        tunnel_id: Default::default(),
        conn_index: 1,
        options,
    }
}

fn everyone(pieces: &[&[u8]]) -> Vec<(Vec<String>, bool)> {
    let (mut registration, mut configuration) = (RegistrationServer::new(), ConfigurationServer::new());
    let (mut client, mut edge) = (RegistrationClient::new(), ConfigurationClient::new());
    edge.start(1, b"{}").expect("a new client starts");
    client.start(&registration_of_ours()).expect("a new client starts");
    vec![
        heard(pieces, |b| registration.receive(b)),
        heard(pieces, |b| configuration.receive(b)),
        heard(pieces, |b| client.receive(b)),
        heard(pieces, |b| edge.receive(b)),
    ]
}

pub(crate) fn target(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let whole = everyone(&[bytes]);
    let (left, right) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let halves = everyone(&[left, right]);
    for ((whole, failed), (halves, halves_failed)) in whole.iter().zip(&halves) {
        assert_eq!(failed, halves_failed, "the cut decides whether a message is valid");
        // A peer that gives up in the middle of a piece keeps what it had heard in that piece to itself.
        assert!(*failed || whole == halves, "the cut decides what a message says");
    }
}
