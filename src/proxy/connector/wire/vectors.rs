//! Bytes of real peers (tunnel-protocol §17) against both ends of every part.

use bytes::BytesMut;
use uuid::Uuid;

use super::message::{Decoder, Limits};
use super::registration::{ClientInfo, ConnectionOptions, ConnectionResponse, Registration};
use super::rpc::{RegistrationClient, RegistrationClientEvent, RegistrationEvent, RegistrationServer};
use super::stream::{ConnectKind, ConnectResponse, Opening};
use crate::gateway::token::TunnelSecret;

macro_rules! vector {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/", $name)).as_slice()
    };
}

const HTTP2_CONNECTOR: &[u8] = vector!("control-http2.connector-to-edge.bin");
const HTTP2_EDGE: &[u8] = vector!("control-http2.edge-to-connector.bin");
const QUIC_CONNECTOR: &[u8] = vector!("control-quic.connector-to-edge.bin");
const QUIC_EDGE: &[u8] = vector!("control-quic.edge-to-connector.bin");
const REQUEST: &[u8] = vector!("connect-request.bin");
const RESPONSE: &[u8] = vector!("connect-response.bin");

/// The vectors of heads start behind the signature and version.
fn signed(vector: &[u8]) -> BytesMut {
    BytesMut::from(&[b"\x0a\x36\xcd\x12\xa1\x3e01", vector].concat()[..])
}

/// What the captured connector registered with, but for its id and the order of its features.
pub(super) fn captured() -> Registration {
    Registration {
        account_tag: "0123456789abcdef0123456789abcdef".into(),
        tunnel_secret: TunnelSecret::new(b"secret-secret-secret-secret-1234".to_vec()),
        tunnel_id: Uuid::from_u128(0x1111_1111_2222_3333_4444_5555_5555_5555),
        conn_index: 0,
        options: ConnectionOptions {
            client: ClientInfo {
                client_id: Uuid::from_u128(0x95db_83ac_e93e_45bd_a3ea_e0f9_94c6_6d42),
                features: [
                    "allow_remote_config",
                    "serialized_headers",
                    "support_datagram_v2",
                    "support_quic_eof",
                    "management_logs",
                ]
                .map(str::to_owned)
                .into(),
                version: "DEV".into(),
                arch: "linux_amd64".into(),
            },
            origin_local_ip: Some([127, 0, 0, 1].into()),
            ..ConnectionOptions::default()
        },
    }
}

fn details(location: &str) -> ConnectionResponse {
    ConnectionResponse::Details { uuid: Uuid::from_u128(7), location: location.into(), remotely_managed: true }
}

#[test]
fn the_edge_reads_the_whole_control_stream_of_the_usual_connector() {
    // Byte by byte and in pieces; but never so that a call comes with what answers to it, for numbers are used again.
    for (bytes, piece) in [(HTTP2_CONNECTOR, 592), (HTTP2_CONNECTOR, 1), (QUIC_CONNECTOR, 592), (QUIC_CONNECTOR, 13)] {
        let mut server = RegistrationServer::new();
        let mut seen = Vec::new();
        for chunk in bytes.chunks(piece) {
            for event in server.receive(chunk).unwrap() {
                match event {
                    RegistrationEvent::Register { call, registration } => {
                        let mut r = *registration;
                        if bytes == HTTP2_CONNECTOR {
                            assert_eq!(r, captured());
                        }
                        r.options.client.client_id = captured().options.client.client_id;
                        r.options.client.features = captured().options.client.features;
                        // Over QUIC the usual connector gives the edge's address for its own.
                        assert!(r.options.origin_local_ip.is_some());
                        r.options.origin_local_ip = captured().options.origin_local_ip;
                        assert_eq!(r, captured());
                        seen.push("register");
                        server.answer_registration(call, &details("lab")).unwrap();
                    }
                    RegistrationEvent::Unregister { call } => {
                        seen.push("unregister");
                        server.acknowledge(call).unwrap();
                    }
                    RegistrationEvent::UpdateLocalConfiguration { .. } => seen.push("configuration"),
                    RegistrationEvent::Aborted(reason) => {
                        assert_eq!(reason, "rpc: shutdown");
                        seen.push("aborted");
                    }
                }
            }
        }
        assert_eq!(seen, ["register", "unregister", "aborted"]);
    }
}

#[test]
fn a_connector_takes_the_answers_of_an_edge_of_another_make() {
    for (bytes, piece) in [(HTTP2_EDGE, 1), (HTTP2_EDGE, 312), (QUIC_EDGE, 312), (QUIC_EDGE, 7)] {
        let mut client = RegistrationClient::new();
        assert!(!client.start(&captured()).unwrap().is_empty());
        let mut events = Vec::new();
        let (before, after) = bytes.split_at(0xf0);
        for chunk in before.chunks(piece) {
            events.extend(client.receive(chunk).unwrap());
        }
        // The captured connector used number 1 again, since it was free; ours counts on.
        let [RegistrationClientEvent::Registered(ConnectionResponse::Details { uuid, location, remotely_managed })] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((location.as_str(), *remotely_managed), ("lab01", true));
        assert!(!uuid.is_nil());
        client.unregister().unwrap();
        let mut answer = after.to_vec();
        answer[0x20] = 2;
        assert_eq!(client.receive(&answer).unwrap(), [RegistrationClientEvent::Unregistered { error: None }]);
        assert!(!client.take_output().is_empty(), "finishes");
        assert!(!client.abort().is_empty());
    }
}

#[test]
fn our_registration_says_what_the_usual_one_does() {
    let mut client = RegistrationClient::new();
    let bytes = client.start(&captured()).unwrap();
    let mut server = RegistrationServer::new();
    let events = server.receive(&bytes).unwrap();
    let [RegistrationEvent::Register { registration, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(**registration, captured());
    // The messages up to and with the call have the sizes of the captured ones.
    let messages = |bytes: &[u8]| {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let mut kinds = Vec::new();
        while let Some(message) = decoder.next_message().unwrap() {
            kinds.push(message.root().unwrap().u16(0));
        }
        kinds
    };
    assert_eq!(messages(&bytes), messages(HTTP2_CONNECTOR)[..2]);
}

#[test]
fn the_head_of_a_request() {
    let mut buffer = signed(REQUEST);
    buffer.extend_from_slice(b"body");
    let Some(Opening::Request(request)) = Opening::take(&mut buffer, &Limits::DEFAULT).unwrap() else { panic!() };
    assert_eq!(&buffer[..], b"body");
    assert_eq!(request.dest, "https://app.example.test/p?q=1");
    assert_eq!(request.kind, ConnectKind::Http);
    let expected = [("HttpMethod", "GET"), ("HttpHost", "app.example.test"), ("HttpHeader:Cf-Ray", "0000000000000001-LAB")];
    assert_eq!(request.metadata, expected.map(|(k, v)| (k.to_owned(), v.into())));
    let mut again = BytesMut::from(&request.encode().unwrap()[..]);
    assert_eq!(Opening::take(&mut again, &Limits::DEFAULT).unwrap(), Some(Opening::Request(request)));
}

#[test]
fn the_head_of_a_response() {
    let mut buffer = signed(RESPONSE);
    let response = ConnectResponse::take(&mut buffer, &Limits::DEFAULT).unwrap().unwrap();
    assert_eq!(response.error, "");
    assert_eq!(
        response.metadata,
        [("HttpStatus", "200"), ("HttpHeader:Content-Type", "text/plain")].map(|(k, v)| (k.to_owned(), v.into()))
    );
    assert!(buffer.is_empty());
    let mut again = BytesMut::from(&response.encode().unwrap()[..]);
    assert_eq!(ConnectResponse::take(&mut again, &Limits::DEFAULT).unwrap(), Some(response));
}

#[test]
fn serialised_headers() {
    const TEXT: &str = "Q29udGVudC1UeXBl:dGV4dC9wbGFpbg;U2V0LUNvb2tpZQ:YT0x;U2V0LUNvb2tpZQ:Yj0y";
    let mut out = Vec::new();
    for (name, value) in [("Content-Type", "text/plain"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")] {
        super::headers::append(&mut out, name.as_bytes(), value.as_bytes());
    }
    assert_eq!(std::str::from_utf8(&out).unwrap(), TEXT);
    let parsed = super::headers::parse(TEXT.as_bytes()).unwrap();
    assert_eq!(parsed["content-type"], "text/plain");
    assert_eq!(parsed.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
}

/// Everything that takes bytes from outside, fed with the same ones. Nothing may panic, and nothing may take for ever.
pub(super) fn feed_all(bytes: &[u8]) {
    let _ = RegistrationServer::new().receive(bytes);
    let mut client = RegistrationClient::new();
    client.start(&captured()).unwrap();
    let _ = client.receive(bytes);
    let _ = super::rpc::ConfigurationServer::new().receive(bytes);
    let mut edge = super::rpc::ConfigurationClient::new();
    edge.start(1, b"{}").unwrap();
    let _ = edge.receive(bytes);
    for bytes in [BytesMut::from(bytes), signed(bytes)] {
        let _ = Opening::take(&mut bytes.clone(), &Limits::DEFAULT);
        let _ = ConnectResponse::take(&mut bytes.clone(), &Limits::DEFAULT);
    }
    let _ = super::headers::parse(bytes);
}

#[test]
fn cut_and_flipped_vectors_never_panic() {
    for vector in [HTTP2_CONNECTOR, HTTP2_EDGE, QUIC_CONNECTOR, QUIC_EDGE, REQUEST, RESPONSE] {
        for end in 0..vector.len() {
            feed_all(&vector[..end]);
        }
        let mut bytes = vector.to_vec();
        for bit in 0..vector.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            feed_all(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
