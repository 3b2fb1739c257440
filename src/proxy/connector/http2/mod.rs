//! Connections over HTTP/2 (tunnel-protocol §4): we dial, then we are the server on that socket. What is done with one stream
//! is in `request`; the byte streams underneath and on top in `io`.

mod io;
mod request;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::{Ping, PingPong, Reason};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use self::io::{Traffic, Watched};
use super::link::{Ends, Link, LinkError, Rtt};
use super::state::Transport;
use super::stream::Streams;
use super::tls;
use crate::proxy::http::Serve;

/// Longest wait for TCP, TLS and the HTTP/2 preface together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// A PING is sent this long after the last answer, and waited for this long, or twice if other bytes came meanwhile: a dead
/// peer is found in less than 10 s.
const PING_INTERVAL: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long cutting may take, and how long the peer has to close its side of a connection that is over.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// What is read from the socket at once. rustls alone reads 4 KiB at a time, five times for a full record.
const READ_BUFFER: usize = 64 * 1024;

/// Streams that one connection carries at once.
const MAX_STREAMS: u32 = 8192;
/// Window of a stream: one upload over a path of 100 ms must exceed 200 Mbit/s, which takes 2.5 MB. It is the same for every
/// stream: `h2` cannot give one that is being read more than one that is not.
const STREAM_WINDOW: u32 = 3 << 20;
/// Window of the connection: bounds what uploads to backends that do not read can hold. Memory is taken only by what they hold;
/// 32 of them stop the other uploads of the connection.
const CONNECTION_WINDOW: u32 = 32 * STREAM_WINDOW;
const MAX_FRAME: u32 = 16 * 1024;
const MAX_HEADER_LIST: u32 = 1 << 20;
/// What is buffered per stream towards a slow client.
const SEND_BUFFER: usize = 32 * 1024;
/// The edge multiplexes all clients onto four connections: a burst of cancelled requests is everyday life, not an attack.
const RESET_STREAMS: usize = 4096;
/// Small frames that wait to be read; the default closes the connection over a few hundred unread WebSocket messages.
const SMALL_FRAMES: usize = 64 << 20;

/// Dials the edge.
///
/// # Errors
/// When TCP, TLS or HTTP/2 cannot be established in time.
pub(super) async fn dial<S: Serve>(
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    streams: Streams<S>,
) -> Result<Link, LinkError> {
    let connect = async {
        let refused = |source| LinkError::Connect { address, source };
        let tcp = TcpStream::connect(address).await.map_err(refused)?;
        tcp.set_nodelay(true).map_err(refused)?;
        let local = tcp.local_addr().ok().map(|a| a.ip());
        let tcp = BufReader::with_capacity(READ_BUFFER, tcp);
        let tls = TlsConnector::from(tls).connect(tls::server_name(Transport::Http2), tcp).await.map_err(refused)?;
        serve(tls, local, streams).await
    };
    timeout(DIAL_TIMEOUT, connect)
        .await
        .unwrap_or(Err(LinkError::Timeout { what: "http/2 connection to the edge", limit: DIAL_TIMEOUT }))
}

/// Is the HTTP/2 server on an established byte stream.
async fn serve<IO, S>(io: IO, local: Option<std::net::IpAddr>, streams: Streams<S>) -> Result<Link, LinkError>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Serve,
{
    let leaving = CancellationToken::new();
    let traffic = Arc::new(Traffic::default());
    let io = Watched::new(io, Arc::clone(&traffic), leaving.clone());
    let connection = builder().handshake::<_, Bytes>(io).await?;
    let requests = streams.requests.clone();
    Ok(Link::spawn(local, requests, None, leaving, |ends| drive(connection, Arc::new(streams), ends, traffic)))
}

fn builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(None)
        .data_frame_budget(SMALL_FRAMES);
    builder
}

/// Accepts streams until the connection ends; nothing moves on it unless this is polled.
async fn drive<IO, S>(
    mut connection: h2::server::Connection<IO, Bytes>,
    streams: Arc<Streams<S>>,
    ends: Ends,
    traffic: Arc<Traffic>,
) -> LinkError
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Serve,
{
    let Some(ping) = connection.ping_pong() else { return LinkError::Closed };
    let silence = keep_alive(ping, &traffic, &ends.rtt);
    tokio::pin!(silence);
    let uploads = Arc::clone(&streams.uploads);
    let bounded = uploads.bound(u64::from(CONNECTION_WINDOW / 2), streams.index);
    tokio::pin!(bounded);
    let mut control = Some(ends.control);
    let mut closing = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let kind = request::kind(request.headers());
                    let control = if kind == request::Kind::Control { control.take() } else { None };
                    let streams_of_task = Arc::clone(&streams);
                    let task = request::serve(streams_of_task, kind, request, respond, control);
                    if kind == request::Kind::Control {
                        // Not a request: it lasts as long as the connection, and a drain must not wait for it.
                        tokio::spawn(task);
                    } else {
                        streams.requests.spawn(task);
                    }
                }
                Some(Err(error)) => return error.into(),
                None => return LinkError::Closed,
            },
            () = &mut silence => return LinkError::Silent,
            never = &mut bounded => match never {},
            () = ends.close.cancelled(), if !closing => {
                closing = true;
                // Ends the connection when its streams are over and their last bytes written: the tasks that wrote them were
                // done when `h2` had them.
                connection.graceful_shutdown();
            }
            () = ends.cut.cancelled() => {
                connection.abrupt_shutdown(Reason::NO_ERROR);
                let closed = std::future::poll_fn(|cx| connection.poll_closed(cx));
                // Out of time or not, the connection is dropped now.
                drop(timeout(CLOSE_TIMEOUT, closed).await);
                return LinkError::Closed;
            }
        }
    }
}

/// Sends PINGs; returns when the peer has fallen silent. Bytes of any kind count as life: an answer can be stuck behind a
/// large transfer.
async fn keep_alive(mut ping: PingPong, traffic: &Traffic, rtt: &Rtt) {
    loop {
        let sent = Instant::now();
        if ping.send_ping(Ping::opaque()).is_err() {
            // The connection is at its end already, and says so itself.
            return std::future::pending().await;
        }
        let mut seen = traffic.bytes_read();
        let mut pong = std::pin::pin!(std::future::poll_fn(|cx| ping.poll_pong(cx)));
        loop {
            match timeout(PING_TIMEOUT, pong.as_mut()).await {
                Ok(Ok(_)) => break rtt.set(sent.elapsed()),
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) if traffic.bytes_read() == seen => return,
                Err(_) => seen = traffic.bytes_read(),
            }
        }
        sleep(PING_INTERVAL).await;
    }
}
