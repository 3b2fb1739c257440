//! Connectors over QUIC (tunnel-protocol §5).

use std::net::UdpSocket;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use quinn::crypto::rustls::HandshakeData;
use quinn::{EndpointConfig, Runtime as _, ServerConfig, TokioRuntime, TransportConfig};
use tokio::sync::mpsc;

use super::certificate::Certificates;
use super::control::{ControlStream, SessionSlot, supervise};
use super::fault::Faults;
use super::link::{Channel, Command, Link, Upload};
use super::session::{EventKind, Origin, Transport};
use super::socket::MutableSocket;
use super::{EdgeError, Shared};
use crate::proxy::connector::wire::rpc::RegistrationServer;
use crate::proxy::http::Body;
use crate::proxy::http::body::QuicBody;

/// How long the handshake may take, and the control stream after it.
const SETUP_DEADLINE: Duration = Duration::from_secs(10);
/// Silence after which a connection is over; connectors keep theirs alive and ask for less.
const IDLE: Duration = Duration::from_secs(30);

/// The endpoint, and what lives until it has let go of its port.
pub(super) fn endpoint(
    udp: UdpSocket,
    certificates: &Certificates,
    faults: &Faults,
) -> Result<(quinn::Endpoint, Weak<MutableSocket>), EdgeError> {
    let mut transport = TransportConfig::default();
    // A connector opens its control stream and nothing else.
    transport
        .max_concurrent_bidi_streams(4_u32.into())
        .max_concurrent_uni_streams(4_u32.into())
        .stream_receive_window((6_u32 << 20).into())
        .receive_window((30_u32 << 20).into())
        .send_window(8 << 20)
        .max_idle_timeout(quinn::IdleTimeout::try_from(IDLE).ok());
    let mut config = ServerConfig::with_crypto(Arc::new(certificates.quic()?));
    config.transport_config(Arc::new(transport));
    let address = udp.local_addr();
    let error = |source| EdgeError::Bind {
        address: address.as_ref().copied().unwrap_or_else(|_| ([127, 0, 0, 1], 0).into()),
        what: "connectors over quic",
        source,
    };
    let runtime = Arc::new(TokioRuntime);
    let socket = MutableSocket { inner: runtime.wrap_udp_socket(udp).map_err(error)?, silent: faults.silent_udp() };
    let socket = Arc::new(socket);
    let alive = Arc::downgrade(&socket);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(EndpointConfig::default(), Some(config), socket, runtime);
    Ok((endpoint.map_err(error)?, alive))
}

pub(super) async fn listen(shared: Arc<Shared>, endpoint: quinn::Endpoint) {
    loop {
        let incoming = tokio::select! {
            Some(incoming) = endpoint.accept() => incoming,
            () = shared.closing.cancelled() => return,
            else => return,
        };
        if shared.faults.rejects_quic() {
            incoming.refuse();
        } else {
            shared.tasks.spawn(serve(Arc::clone(&shared), incoming));
        }
    }
}

async fn serve(shared: Arc<Shared>, incoming: quinn::Incoming) {
    let remote = incoming.remote_address();
    let failed = |reason: String| {
        shared.sessions.record(EventKind::HandshakeFailed { transport: Transport::Quic, remote, reason });
    };
    let handshake = async { incoming.accept()?.await };
    let connection = match tokio::time::timeout(SETUP_DEADLINE, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return failed(format!("quic: {error}")),
        Err(_) => return failed("quic: no handshake in time".into()),
    };
    let handshake = connection.handshake_data().and_then(|d| d.downcast::<HandshakeData>().ok());
    let (sni, alpn) = handshake.map_or((None, None), |h| (h.server_name, h.protocol));
    let alpn = alpn.map(|p| String::from_utf8_lossy(&p).into_owned());
    let origin = Origin { transport: Transport::Quic, remote, sni, alpn };
    let (commands, inbox) = mpsc::unbounded_channel();
    let link = Link::new(Channel::Quic(connection.clone()), commands);
    let session = SessionSlot::default();
    let control = control_stream(Arc::clone(&shared), connection.clone(), origin.clone(), link, session.clone());
    let control = tokio_util::task::AbortOnDropHandle::new(shared.tasks.spawn(control));
    let end = async { format!("quic: {}", connection.closed().await) };
    let inject = |bytes| drop(shared.tasks.spawn(send_garbage(connection.clone(), bytes)));
    // QUIC has no word for it: the connection is just not used any more.
    let reason = supervise(&shared, inbox, end, inject, || {}).await;
    connection.close(0_u32.into(), b"");
    control.abort();
    // It may be registering at this moment: the session is there or never comes once the task is over.
    let _ = control.await;
    session.close(&shared, &origin, reason);
}

/// The first stream that the connector opens, without a signature.
async fn control_stream(shared: Arc<Shared>, connection: quinn::Connection, origin: Origin, link: Link, session: SessionSlot) {
    let (send, receive) = match tokio::time::timeout(SETUP_DEADLINE, connection.accept_bi()).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return link.command(Command::Close(format!("quic: {error}"))),
        Err(_) => return link.command(Command::Close("no control stream in time".into())),
    };
    let (out, body) = (Upload::quic(send), Body::Quic(QuicBody::new(receive, None)));
    ControlStream { shared, origin, link, out, body, server: RegistrationServer::new(), session }.serve().await;
}

async fn send_garbage(connection: quinn::Connection, bytes: Bytes) {
    if let Ok((mut send, mut receive)) = connection.open_bi().await {
        let _ = send.write_chunk(bytes).await;
        let _ = send.finish();
        // Until the connector has dealt with it, one way or the other.
        let _ = tokio::time::timeout(SETUP_DEADLINE, receive.read_to_end(1 << 16)).await;
    }
}
