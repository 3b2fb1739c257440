//! Bytes that no sane edge or client would send. They end at most the stream or connection that they come on.

use cftunnel::edge::Which;
use cftunnel::proxy::connector::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::client::{get, within};
use crate::support::{BOTH, SOON, World};

/// Frames and stream heads of ill will.
fn garbage(protocol: Protocol) -> Vec<Vec<u8>> {
    let data = [0x0a, 0x36, 0xcd, 0x12, 0xa1, 0x3e, b'0', b'1'];
    let rpc = [0x52, 0xbb, 0x82, 0x5c, 0xdb, 0x65];
    let all_ones = vec![0xff; 4096];
    match protocol {
        Protocol::Quic => vec![
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            vec![0x0a],
            data.to_vec(),
            [&data[..], &all_ones].concat(),
            [&data[..], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]].concat(),
            [&data[..], &[0, 0, 0, 0, 1, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff, 1, 0, 1, 0]].concat(),
            [&rpc[..], &all_ones].concat(),
            [&rpc[..], &[0; 64]].concat(),
        ],
        _ => vec![
            all_ones,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            // HEADERS whose block is no HPACK.
            vec![0, 0, 4, 1, 5, 0, 0, 0x40, 1, 0xff, 0xff, 0xff, 0xff],
            // CONTINUATION of nothing; DATA of a stream that was never opened; WINDOW_UPDATE of zero.
            vec![0, 0, 0, 9, 4, 0, 0, 0, 1],
            vec![0, 0, 1, 0, 0, 0, 0, 0x70, 1, b'x'],
            vec![0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            // SETTINGS with a window beyond 2^31 - 1.
            vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff],
        ],
    }
}

#[tokio::test]
async fn garbage_of_the_edge_ends_at_most_that_connection() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        for bytes in garbage(protocol) {
            let stay = world.sessions().iter().find(|s| s.index == 2).expect("connection 2").id;
            assert_eq!(world.edge.send_garbage(Which::Index(1), bytes.clone()), 1);
            for _ in 0..4 {
                // One of them may have been on the connection that ended; none may hang.
                within(SOON, get(world.clients(), "/x")).await;
            }
            world.wait_for(4, SOON).await;
            let kept = world.sessions().iter().any(|s| s.id == stay);
            assert!(kept, "{protocol:?} {bytes:x?}: another connection ended");
            assert_eq!(get(world.clients(), "/x").await.status, 200, "{protocol:?} {bytes:x?}");
        }
    }
}

#[tokio::test]
async fn garbage_of_a_connector_ends_at_most_its_connection() {
    let world = World::start(Protocol::Http2).await;
    let mut tcp = tokio::net::TcpStream::connect(world.edge.tunnel_addr()).await.unwrap();
    tcp.write_all(b"\x16\x03\x01 this is no client hello").await.unwrap();
    tcp.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = within(SOON, tcp.read_to_end(&mut answer)).await;
    let udp = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for len in [1, 20, 1200] {
        udp.send_to(&vec![0xc3; len], world.edge.tunnel_addr()).await.unwrap();
    }
    assert_eq!(get(world.clients(), "/x").await.status, 200);
    assert_eq!(world.sessions().len(), 4);
}

#[tokio::test]
async fn hostile_requests_do_not_reach_the_backend() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let requests = [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx: y\0z\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: user@a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: [::1\r\n\r\n",
            "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n",
        ];
        for request in requests {
            let mut tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
            tcp.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            within(SOON, tcp.read_exact(&mut answer)).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 400", "{protocol:?} {request:?}");
        }
        assert_eq!(world.origin.seen.requests.load(std::sync::atomic::Ordering::SeqCst), 0, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_length_beside_a_coding_does_not_count_and_the_connection_ends() {
    const LENGTH: &str = "content-length: 5\r\n";
    const CODING: &str = "transfer-encoding: chunked\r\n";
    for protocol in BOTH {
        let world = World::start(protocol).await;
        for (i, head) in [format!("{LENGTH}{CODING}"), format!("{CODING}{LENGTH}")].into_iter().enumerate() {
            let mut tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
            let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
            let request = format!("POST /upload HTTP/1.1\r\nhost: a\r\n{head}\r\n0\r\n\r\n{smuggled}");
            tcp.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = within(SOON, tcp.read_to_end(&mut answer)).await;
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
            assert!(
                !world.origin.last().headers.contains_key("content-length")
                    || world.origin.last().headers["content-length"] == "0"
            );
            assert_eq!(world.origin.seen.requests.load(std::sync::atomic::Ordering::SeqCst), i + 1, "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn header_bombs_get_431_and_no_backend() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        let many = (0..90).map(|i| format!("x-{i}: {}\r\n", "v".repeat(1500))).collect::<String>();
        for headers in [many, "x: y\r\n".repeat(300)] {
            let mut tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
            let _ = tcp.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n").as_bytes()).await;
            let mut answer = [0; 12];
            within(SOON, tcp.read_exact(&mut answer)).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 431", "{protocol:?} {}", String::from_utf8_lossy(&answer));
        }
        assert_eq!(world.origin.seen.requests.load(std::sync::atomic::Ordering::SeqCst), 0, "{protocol:?}");
        assert_eq!(world.sessions().len(), 4, "no connection paid for it");
    }
}

#[tokio::test]
async fn an_upgrade_with_a_length_does_not_eat_what_follows() {
    for protocol in BOTH {
        let world = World::start(protocol).await;
        // The backend refuses the upgrade for want of a key, and its connection goes on.
        for _ in 0..2 {
            let mut tcp = tokio::net::TcpStream::connect(world.clients()).await.unwrap();
            let request =
                "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 3\r\n\r\nabc";
            tcp.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            within(SOON, tcp.read_exact(&mut answer)).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 400", "{protocol:?}");
            assert!(!world.origin.last().headers.contains_key("content-length"), "{protocol:?}");
        }
        assert_eq!(get(world.clients(), "/x").await.status, 200, "{protocol:?}");
    }
}
