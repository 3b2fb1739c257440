//! Connections over QUIC (tunnel-protocol §5): we dial, open the control stream, and take the streams that the edge opens.
//! What is done with one stream is in `request`.

mod request;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::link::{Ends, Heard, Link, LinkError};
use super::state::Transport;
use super::stream::Streams;
use super::tls::{self, Roots, TlsError};
use crate::proxy::http::Serve;

/// Longest wait for the handshake. UDP that is silently dropped is common: the other transport must get its turn soon.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// A peer that is silent for this long is gone; PINGs keep an idle connection from looking so.
const IDLE_TIMEOUT: VarInt = VarInt::from_u32(5_000);
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How often the round-trip time is looked at.
const RTT_INTERVAL: Duration = Duration::from_secs(1);
/// Streams that the edge may have open at once. Quinn allots each of them in advance.
const MAX_STREAMS: VarInt = VarInt::from_u32(4096);
/// Window of a stream: twice what 200 Mbit/s over a path of 100 ms takes, so that a lost packet does not stop it.
const STREAM_WINDOW: VarInt = VarInt::from_u32(6 << 20);
/// Window of the connection: bounds what uploads to backends that do not read can hold. Memory is taken only by what they hold;
/// 16 of them stop the other uploads of the connection.
const CONNECTION_WINDOW: VarInt = VarInt::from_u32(16 * (6 << 20));
/// What is buffered towards all clients of a connection together, until the edge has it: one round trip's worth, which at
/// 100 ms is 640 Mbit/s. Clients that stall do not fill it: beyond their streams' windows nothing is buffered.
const SEND_WINDOW: u64 = 8 << 20;
/// First packet sizes that pass where the path is a tunnel itself (§5.1); discovery finds the rest.
const INITIAL_MTU_V4: u16 = 1232;
const INITIAL_MTU_V6: u16 = 1252;
const LARGEST_MTU: u16 = 1452;
/// Asked of the kernel, which may give less.
const SOCKET_BUFFER: usize = 7 << 20;
const DATAGRAM_BUFFER: usize = 64 * 1024;

/// What QUIC connections need, made once.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    v4: ClientConfig,
    v6: ClientConfig,
}

impl Settings {
    /// # Errors
    /// When rustls refuses the combination.
    pub(super) fn new(roots: &Roots, post_quantum: bool) -> Result<Self, TlsError> {
        let tls = tls::client_config(Transport::Quic, roots, post_quantum)?;
        let crypto = QuicClientConfig::try_from(tls).map_err(|_| TlsError::NoInitialCipher)?;
        let mut v4 = ClientConfig::new(Arc::new(crypto));
        let mut v6 = v4.clone();
        v4.transport_config(Arc::new(transport(INITIAL_MTU_V4)));
        v6.transport_config(Arc::new(transport(INITIAL_MTU_V6)));
        Ok(Self { v4, v6 })
    }
}

fn transport(initial_mtu: u16) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(LARGEST_MTU);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(MAX_STREAMS)
        // The edge opens none; what came on one would never be read.
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(STREAM_WINDOW)
        .receive_window(CONNECTION_WINDOW)
        .send_window(SEND_WINDOW)
        .initial_mtu(initial_mtu)
        .mtu_discovery_config(Some(discovery))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::from(IDLE_TIMEOUT)))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER));
    config
}

/// The UDP sockets of one slot, one per address family. Kept over reconnects, so that the local port stays the same (§5.1).
#[derive(Debug, Default)]
pub(super) struct Sockets([Mutex<Option<Endpoint>>; 2]);

impl Sockets {
    /// The socket for connections to `remote`, bound when there is none.
    fn endpoint(&self, remote: SocketAddr) -> io::Result<Endpoint> {
        let mut kept = self.0[usize::from(remote.is_ipv6())].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = kept.as_ref() {
            return Ok(endpoint.clone());
        }
        let runtime = quinn::default_runtime().ok_or_else(|| io::Error::other("no async runtime"))?;
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket(remote)?, runtime)?;
        Ok(kept.insert(endpoint).clone())
    }

    /// Gives up a socket that can no longer be used; the next connection binds another.
    fn discard(&self, remote: SocketAddr) {
        *self.0[usize::from(remote.is_ipv6())].lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits until the goodbyes of closed connections have been sent.
    pub(super) async fn flush(&self) {
        for kept in &self.0 {
            let endpoint = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(endpoint) = endpoint {
                drop(timeout(Duration::from_millis(200), endpoint.wait_idle()).await);
            }
        }
    }
}

fn socket(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if remote.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    // Less than asked for is slower, not broken; the kernel's limit is the operator's (net.core.rmem_max, wmem_max).
    for result in [socket.set_recv_buffer_size(SOCKET_BUFFER), socket.set_send_buffer_size(SOCKET_BUFFER)] {
        if let Err(error) = result {
            tracing::debug!(error = %error, "UDP buffer size not accepted");
        }
    }
    socket.bind(&SocketAddr::new(any, 0).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Dials the edge.
///
/// # Errors
/// When there is no socket, or no handshake in time.
pub(super) async fn dial<S: Serve>(
    address: SocketAddr,
    settings: &Settings,
    sockets: &Sockets,
    streams: Streams<S>,
) -> Result<Link, LinkError> {
    let connection = handshake(address, settings, sockets).await?;
    let requests = streams.requests.clone();
    // QUIC has no announcement of an end.
    let leaving = CancellationToken::new();
    let heard: Heard = Arc::new({
        let connection = connection.clone();
        move || connection.stats().udp_rx.datagrams
    });
    Ok(Link::spawn(connection.local_ip(), requests, Some(heard), leaving, |ends| drive(connection, Arc::new(streams), ends)))
}

/// Finds out whether a handshake succeeds.
///
/// # Errors
/// When it does not.
pub(super) async fn probe(address: SocketAddr, settings: &Settings, sockets: &Sockets) -> Result<(), LinkError> {
    handshake(address, settings, sockets).await?.close(VarInt::from_u32(0), b"");
    Ok(())
}

async fn handshake(address: SocketAddr, settings: &Settings, sockets: &Sockets) -> Result<Connection, LinkError> {
    let config = if address.is_ipv6() { &settings.v6 } else { &settings.v4 };
    let refused = |source| LinkError::Connect { address, source };
    let endpoint = sockets.endpoint(address).map_err(refused)?;
    let connecting = match endpoint.connect_with(config.clone(), address, tls::server_name_text(Transport::Quic)) {
        Ok(connecting) => connecting,
        Err(error) => {
            sockets.discard(address);
            return Err(error.into());
        }
    };
    match timeout(HANDSHAKE_TIMEOUT, connecting).await {
        Ok(connection) => Ok(connection?),
        Err(_) => Err(LinkError::Timeout { what: "quic handshake with the edge", limit: HANDSHAKE_TIMEOUT }),
    }
}

/// Takes streams until the connection ends.
async fn drive<S: Serve>(connection: Connection, streams: Arc<Streams<S>>, ends: Ends) -> LinkError {
    // The first stream that we open is the control stream; the edge sees it with our first bytes.
    let control = match connection.open_bi().await {
        Ok((send, recv)) => Box::new(tokio::io::join(recv, send)),
        Err(error) => return error.into(),
    };
    drop(ends.control.send(control));
    let mut measure = tokio::time::interval(RTT_INTERVAL);
    let bounded = streams.uploads.bound(CONNECTION_WINDOW.into_inner() / 2, streams.index);
    tokio::pin!(bounded);
    loop {
        tokio::select! {
            accepted = connection.accept_bi() => match accepted {
                Ok((send, recv)) => drop(streams.requests.spawn(request::serve(Arc::clone(&streams), send, recv))),
                Err(error) => return error.into(),
            },
            // Private-network traffic, which is not served; it must not pile up.
            datagram = connection.read_datagram() => if let Err(error) = datagram {
                return error.into();
            },
            never = &mut bounded => match never {},
            _ = measure.tick() => ends.rtt.set(connection.rtt()),
            // No stream is under way that is not acknowledged, or there is no time for it.
            () = ends.close.cancelled() => {
                connection.close(VarInt::from_u32(0), b"");
                return LinkError::Closed;
            }
        }
    }
}
