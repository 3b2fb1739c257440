use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::super::WireError;
use super::super::message::{Builder, Decoder};
use super::super::registration::{ClientInfo, ConnectionOptions, ConnectionResponse, Registration};
use super::super::vectors::captured;
use super::*;
use crate::gateway::token::TunnelSecret;

fn register(client: &mut RegistrationClient, server: &mut RegistrationServer, registration: &Registration) -> CallId {
    let bytes = client.start(registration).unwrap();
    match server.receive(&bytes).unwrap().pop() {
        Some(RegistrationEvent::Register { call, registration: seen }) => {
            assert_eq!(*seen, *registration);
            call
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_whole_life() {
    let (mut client, mut server) = (RegistrationClient::new(), RegistrationServer::new());
    let call = register(&mut client, &mut server, &captured());
    // The answer to the bootstrap waits in the output; then comes that to the registration.
    let details = ConnectionResponse::Details { uuid: Uuid::from_u128(3), location: "ams".into(), remotely_managed: false };
    let bytes = server.answer_registration(call, &details).unwrap();
    assert_eq!(client.receive(&bytes).unwrap(), [RegistrationClientEvent::Registered(details)]);
    assert_eq!(server.receive(&client.take_output()).unwrap(), []);

    let bytes = client.update_local_configuration(b"{\"a\":1}").unwrap();
    let Some(RegistrationEvent::UpdateLocalConfiguration { call, config }) = server.receive(&bytes).unwrap().pop() else {
        panic!()
    };
    assert_eq!(config, b"{\"a\":1}");
    let bytes = server.fail(call, "no room").unwrap();
    let answered = RegistrationClientEvent::LocalConfigurationAnswered { error: Some("no room".into()) };
    assert_eq!(client.receive(&bytes).unwrap(), [answered]);

    let bytes = client.unregister().unwrap();
    assert_eq!(client.unregister().unwrap(), b"", "once");
    let Some(RegistrationEvent::Unregister { call }) = server.receive(&bytes).unwrap().pop() else { panic!() };
    let bytes = server.acknowledge(call).unwrap();
    assert_eq!(client.receive(&bytes).unwrap(), [RegistrationClientEvent::Unregistered { error: None }]);
    let bytes = client.abort();
    assert_eq!(client.abort(), b"");
    assert_eq!(client.unregister(), Err(WireError::Closed));
    assert_eq!(server.receive(&bytes).unwrap().len(), 1);
    assert_eq!(server.receive(b""), Err(WireError::Closed));
}

#[test]
fn unregister_before_the_answer_is_pipelined() {
    let (mut client, mut server) = (RegistrationClient::new(), RegistrationServer::new());
    register(&mut client, &mut server, &captured());
    let bytes = client.unregister().unwrap();
    assert!(matches!(server.receive(&bytes).unwrap()[..], [RegistrationEvent::Unregister { .. }]));
}

#[test]
fn an_exception_is_a_failure_with_its_text() {
    let (mut client, mut server) = (RegistrationClient::new(), RegistrationServer::new());
    let call = register(&mut client, &mut server, &captured());
    let bytes = server.fail(call, "database is away").unwrap();
    assert_eq!(client.receive(&bytes).unwrap(), [RegistrationClientEvent::RegisterFailed("database is away".into())]);
}

#[test]
fn a_peer_without_the_capability_is_one_failure() {
    // Two clients face each other: each answers that it has nothing to give.
    let (mut client, mut other) = (RegistrationClient::new(), RegistrationClient::new());
    let bytes = client.start(&captured()).unwrap();
    assert_eq!(other.receive(&bytes).unwrap(), []);
    let events = client.receive(&other.take_output()).unwrap();
    assert!(matches!(&events[..], [RegistrationClientEvent::RegisterFailed(_)]), "{events:?}");
    assert!(client.unregister().is_err());
}

#[test]
fn configuration_pushes() {
    let (mut edge, mut connector) = (ConfigurationClient::new(), ConfigurationServer::new());
    let bytes = edge.start(7, b"{}").unwrap();
    let Some(ConfigurationEvent::UpdateConfiguration { call, version, config }) = connector.receive(&bytes).unwrap().pop() else {
        panic!()
    };
    assert_eq!((version, &config[..]), (7, &b"{}"[..]));
    let bytes = connector.answer(call, -1, Some("no ingress rules")).unwrap();
    let answered = ConfigurationClientEvent::Answered { latest_applied: -1, error: "no ingress rules".into() };
    assert_eq!(edge.receive(&bytes).unwrap(), [answered]);
    // A second answer to the same call has no effect.
    assert_eq!(connector.answer(call, 7, None).unwrap(), b"");
}

/// A stream of a peer written by hand.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn bootstrap(mut self, question: u32) -> Self {
        let (mut b, root) = Builder::new(1, 1);
        b.set_u16(root, 0, 8);
        let body = b.init_struct(root, 0, 1, 1);
        b.set_u32(body, 0, question);
        self.0.extend(b.finish().unwrap());
        self
    }

    fn call(mut self, question: u32, interface: u64, method: u16, promised: Option<u32>) -> Self {
        let (mut b, root) = Builder::new(1, 1);
        b.set_u16(root, 0, 2);
        let call = b.init_struct(root, 0, 3, 3);
        b.set_u32(call, 0, question);
        b.set_u16(call, 4, method);
        b.set_u64(call, 8, interface);
        let target = b.init_struct(call, 0, 1, 1);
        if let Some(promised) = promised {
            b.set_u16(target, 4, 1);
            let answer = b.init_struct(target, 0, 1, 1);
            b.set_u32(answer, 0, promised);
        }
        b.init_struct(call, 1, 0, 2);
        self.0.extend(b.finish().unwrap());
        self
    }

    /// Any message of one body word, `tag`ged.
    fn plain(mut self, tag: u16, word: u64) -> Self {
        let (mut b, root) = Builder::new(1, 1);
        b.set_u16(root, 0, tag);
        let body = b.init_struct(root, 0, 1, 1);
        b.set_u64(body, 0, word);
        let cap = b.init_struct(body, 0, 1, 1);
        b.set_u16(cap, 0, 1);
        b.set_u32(cap, 4, 77);
        self.0.extend(b.finish().unwrap());
        self
    }
}

/// Tags of the messages in `bytes`, each with its body's first word and, for exceptions in answers, the exception's type.
fn summary(bytes: &[u8]) -> Vec<(u16, u64, Option<u16>)> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    let mut out = Vec::new();
    while let Some(message) = decoder.next_message().unwrap() {
        let root = message.root().unwrap();
        let body = root.pointer_to_struct(0).unwrap();
        let exception = (root.u16(0) == 3 && body.u16(6) == 1).then(|| body.pointer_to_struct(0).unwrap().u16(4));
        out.push((root.u16(0), body.u64(0) & 0xffff_ffff, exception));
    }
    out
}

#[test]
fn unknown_calls_and_messages_are_answered() {
    const CONFIGURATION: u64 = 0xb48e_dfbd_aa25_db04;
    let mut connector = ConfigurationServer::new();
    let script = Script::default()
        .bootstrap(0)
        .call(1, 0x1234, 0, Some(0)) // an interface nobody knows
        .call(2, CONFIGURATION, 9, None) // a method nobody knows
        .call(3, 0x8394_45a5_9fb0_1686, 0, Some(0)) // a udp session
        .call(4, CONFIGURATION, 0, Some(99)) // a promise of no answer
        .plain(11, 5) // accept: not of this level
        .plain(6, 0) // release
        .plain(5, 9) // resolve of a promise that we do not hold
        .plain(13, 6) // disembargo
        .plain(0, 0); // unimplemented: about a message we never sent
    assert_eq!(connector.receive(&script.0).unwrap(), []);
    // What the peer level refuses by itself comes first.
    let expected = [
        (3, 0, None),
        (3, 4, Some(0)),
        (0, 11, None), // unimplemented, with the message
        (6, 77, None), // the capability of the resolution goes back
        (13, 6, None),
        (3, 1, Some(3)),
        (3, 2, Some(3)),
        (3, 3, None),
    ];
    assert_eq!(summary(&connector.take_output()), expected);
}

#[test]
fn broken_protocol_closes_with_an_abort() {
    let cases = [
        Script::default().bootstrap(0).bootstrap(0),
        Script::default().plain(4, 12), // finish of nothing
        Script::default().plain(3, 12), // return to nothing
        (0..100).fold(Script::default(), |s, i| s.call(i, 1, 1, None)),
        Script(vec![0xff; 64]),
    ];
    for (i, case) in cases.into_iter().enumerate() {
        let mut connector = ConfigurationServer::new();
        connector.receive(&case.0).expect_err(&format!("case {i}"));
        let output = summary(&connector.take_output());
        assert_eq!(output.last().map(|m| m.0), Some(1), "case {i}: {output:?}");
        assert_eq!(connector.receive(b""), Err(WireError::Closed));
    }
}

#[test]
fn a_finished_call_may_still_be_answered_and_frees_its_number() {
    const CONFIGURATION: u64 = 0xb48e_dfbd_aa25_db04;
    let mut connector = ConfigurationServer::new();
    let first = connector.receive(&Script::default().bootstrap(0).call(1, CONFIGURATION, 0, None).plain(4, 1).0).unwrap();
    let [ConfigurationEvent::UpdateConfiguration { call, .. }] = first[..] else { panic!("{first:?}") };
    connector.take_output();
    assert_eq!(summary(&connector.answer(call, 1, None).unwrap()), [(3, 1, None)]);
    assert_eq!(connector.receive(&Script::default().call(1, CONFIGURATION, 0, None).0).unwrap().len(), 1);
}

fn option_text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_.äß-]{0,40}"
}

fn registration() -> impl Strategy<Value = Registration> {
    let client = (any::<u128>(), prop::collection::vec(option_text(), 0..8), option_text(), option_text())
        .prop_map(|(id, features, version, arch)| ClientInfo { client_id: Uuid::from_u128(id), features, version, arch });
    let options = (client, any::<Option<std::net::Ipv6Addr>>(), any::<bool>(), any::<u8>(), any::<u8>()).prop_map(
        |(client, ip, replace_existing, compression_quality, num_previous_attempts)| ConnectionOptions {
            client,
            origin_local_ip: ip.map(|ip| ip.to_canonical()),
            replace_existing,
            compression_quality,
            num_previous_attempts,
        },
    );
    (option_text(), prop::collection::vec(any::<u8>(), 0..64), any::<u128>(), any::<u8>(), options).prop_map(
        |(account_tag, secret, id, conn_index, options)| Registration {
            account_tag,
            tunnel_secret: TunnelSecret::new(secret),
            tunnel_id: Uuid::from_u128(id),
            conn_index,
            options,
        },
    )
}

fn response() -> impl Strategy<Value = ConnectionResponse> {
    let error = (option_text(), prop::option::of(1..i64::MAX as u64), any::<bool>()).prop_map(|(cause, after, should_retry)| {
        ConnectionResponse::Error { cause, retry_after: after.map(Duration::from_nanos), should_retry }
    });
    let details = (any::<u128>(), option_text(), any::<bool>()).prop_map(|(id, location, remotely_managed)| {
        ConnectionResponse::Details { uuid: Uuid::from_u128(id), location, remotely_managed }
    });
    prop_oneof![error, details]
}

proptest! {
    #[test]
    fn registrations_survive_the_trip(registration in registration(), response in response(), piece in 1usize..200) {
        let (mut client, mut server) = (RegistrationClient::new(), RegistrationServer::new());
        let call = register(&mut client, &mut server, &registration);
        let bytes = server.answer_registration(call, &response).unwrap();
        let mut events = Vec::new();
        for chunk in bytes.chunks(piece) {
            events.extend(client.receive(chunk).unwrap());
        }
        prop_assert_eq!(events, [RegistrationClientEvent::Registered(response)]);
    }
}
