//! Connectors over TCP: they dial, and then the edge is the HTTP/2 client on the connection (tunnel-protocol §4).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::control::{ControlStream, SessionSlot, supervise};
use super::inject::{GOAWAY, InjectIo, Injections};
use super::link::{Channel, Link, LinkError, Upload};
use super::session::{EventKind, Origin, Transport};
use crate::proxy::connector::wire::headers;
use crate::proxy::connector::wire::rpc::RegistrationServer;
use crate::proxy::http::Body;

/// How long TLS, and the answer to the control stream, may take.
const SETUP_DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener, acceptor: TlsAcceptor) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.closing.cancelled() => return,
        };
        match accepted {
            Ok(_) if shared.faults.rejects_http2() => {}
            Ok((tcp, remote)) => {
                let origin = Origin { transport: Transport::Http2, remote, sni: None, alpn: None };
                shared.tasks.spawn(serve(Arc::clone(&shared), tcp, acceptor.clone(), origin));
            }
            // Out of descriptors, most likely: wait for some to come free.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(shared: Arc<Shared>, tcp: TcpStream, acceptor: TlsAcceptor, mut origin: Origin) {
    let _ = tcp.set_nodelay(true);
    let handshake = tokio::time::timeout(SETUP_DEADLINE, acceptor.accept(tcp));
    let failed = |reason: String| {
        let (transport, remote) = (Transport::Http2, origin.remote);
        shared.sessions.record(EventKind::HandshakeFailed { transport, remote, reason });
    };
    let tls = match handshake.await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return failed(format!("tls: {error}")),
        Err(_) => return failed("tls: no handshake in time".into()),
    };
    let injections = Injections::default();
    let server_side = tls.get_ref().1;
    let (sni, alpn) = (server_side.server_name().map(str::to_owned), server_side.alpn_protocol().map(text));
    let io = InjectIo::new(tls, injections.clone());
    let (channel, connection) = match builder().handshake::<_, Bytes>(io).await {
        Ok(pair) => pair,
        Err(error) => return failed(format!("http/2: {error}")),
    };
    (origin.sni, origin.alpn) = (sni, alpn);
    let (commands, inbox) = mpsc::unbounded_channel();
    let link = Link::new(Channel::Http2(channel.clone()), commands);
    let session = SessionSlot::default();
    let control = control_stream(Arc::clone(&shared), channel, origin.clone(), link, session.clone());
    let control = tokio_util::task::AbortOnDropHandle::new(shared.tasks.spawn(control));
    let end = async {
        match connection.await {
            Ok(()) => "the connector closed the connection".to_owned(),
            Err(error) => format!("http/2: {error}"),
        }
    };
    let away = injections.clone();
    let reason = supervise(&shared, inbox, end, |b| injections.push(b), || away.push(Bytes::from_static(GOAWAY))).await;
    control.abort();
    // It may be registering at this moment: the session is there or never comes once the task is over.
    let _ = control.await;
    session.close(&shared, &origin, reason);
}

/// Limits that many clients on one connection need (tunnel-protocol §15): one that cancels a lot must not cost the others.
fn builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .max_header_list_size(1 << 20)
        .max_concurrent_reset_streams(4096)
        .max_local_error_reset_streams(None)
        .max_send_buffer_size(64 << 10)
        .data_frame_budget(64 << 20)
        .enable_push(false);
    builder
}

async fn control_stream(
    shared: Arc<Shared>,
    channel: h2::client::SendRequest<Bytes>,
    origin: Origin,
    link: Link,
    session: SessionSlot,
) {
    let opened = tokio::time::timeout(SETUP_DEADLINE, open_control(channel)).await;
    let (out, body) = match opened {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return link.command(super::link::Command::Close(format!("control stream: {error}"))),
        Err(_) => return link.command(super::link::Command::Close("control stream: no answer in time".into())),
    };
    ControlStream { shared, origin, link, out, body, server: RegistrationServer::new(), session }.serve().await;
}

/// A request whose body is our side of the RPC stream, and whose response's body is the connector's.
async fn open_control(channel: h2::client::SendRequest<Bytes>) -> Result<(Upload, Body), LinkError> {
    let mut request = Request::builder().uri("http://edge.local/").body(())?;
    request.headers_mut().insert(headers::UPGRADE, HeaderValue::from_static(headers::UPGRADE_CONTROL_STREAM));
    let (answer, upload) = channel.ready().await?.send_request(request, false)?;
    let (parts, stream) = answer.await?.into_parts();
    if parts.status != StatusCode::OK {
        return Err(LinkError::Status);
    }
    Ok((Upload::http2(upload), Body::H2(stream)))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
