//! Connections to one endpoint: kept alive, reused newest first, bounded, closed when idle. A pool outlives changes of the
//! configuration as long as its endpoint is in it. Which endpoint a request goes to is decided in `upstream`.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::client::conn::{TrySendError, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::BodyError;
use super::h1::{self, Upload};
use super::lease::{Incoming, Lease};
use super::plane::Options;
use super::request_body::RequestBody;
use crate::proxy::error::{Error, Kind};
use crate::proxy::metrics::{ConnectFailure, Metrics};
use crate::proxy::workers;

/// Idle HTTP/1.1 connections kept per endpoint and worker.
const MAX_IDLE: usize = 256;
/// How long an idle connection is kept; the usual connector's `keepAliveTimeout`.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Requests on one HTTP/2 connection before another one is opened; the least limit that RFC 9113 §6.5.2 recommends to peers.
const STREAMS: usize = 100;
/// HTTP/2 connections per endpoint and worker; beyond `MAX_H2 * STREAMS` requests they queue.
const MAX_H2: usize = 8;
/// How long an endpoint is passed over after a failed connection, if there is another one; doubled with each failure in a row.
const PENALTY: Duration = Duration::from_secs(1);
/// How often the penalty is doubled: 32 s at most.
const MAX_DOUBLINGS: u32 = 5;
/// Finds a backend that vanished while a response or a session is under way; the usual connector's `tcpKeepAlive`.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Most that is buffered of a request's body for each stream of HTTP/2.
const MAX_BUFFER: usize = 64 * 1024;
/// Most bytes of a response's header fields over HTTP/2.
const MAX_HEADER_LIST: u32 = 64 * 1024;

/// One address of a backend, and the connections to it.
#[derive(Debug)]
pub(super) struct Endpoint {
    address: SocketAddr,
    connect_timeout: Duration,
    metrics: Arc<Metrics>,
    /// By worker: a connection is used on the thread that opened it, where waking it costs least.
    shelves: Box<[Shelf]>,
    /// No longer in the configuration: what is in flight finishes, nothing is kept.
    retired: AtomicBool,
    /// When the endpoint may be tried first again, milliseconds after `start`.
    avoid_until: AtomicU64,
    /// Failed connections in a row; those at the same time count as one.
    failures: AtomicU32,
    start: Instant,
}

/// The connections that one worker has opened.
#[derive(Debug, Default)]
struct Shelf {
    connections: Mutex<Connections>,
    /// Held while an HTTP/2 connection is opened, so that a burst opens one and not one each.
    opening: tokio::sync::Mutex<()>,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        // Nothing panics under the lock, and a list of connections cannot be half changed.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Connections {
    idle: Vec<Idle>,
    shared: Vec<Arc<Shared>>,
}

#[derive(Debug)]
struct Idle {
    connection: h1::Connection,
    until: Instant,
}

/// An HTTP/2 connection.
#[derive(Debug)]
struct Shared {
    sender: http2::SendRequest<RequestBody>,
    active: AtomicUsize,
    /// When the last request ended, milliseconds after the endpoint's start.
    used: AtomicU64,
}

/// An HTTP/1.1 connection for one request.
#[derive(Debug)]
pub(super) struct Connection {
    endpoint: Arc<Endpoint>,
    connection: h1::Connection,
    /// It has carried requests before, so that its peer may be about to close it.
    pub(super) reused: bool,
}

/// A place on an HTTP/2 connection.
#[derive(Debug)]
pub(super) struct Stream {
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
    reused: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.used.store(self.endpoint.now(), Ordering::Relaxed);
        self.shared.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that got no response.
pub(super) struct SendFailed {
    pub(super) error: Error,
    /// The request, when the connection had not begun to send it.
    pub(super) unsent: Option<Request<RequestBody>>,
}

impl Connection {
    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// As [`h1::Connection::send`].
    pub(super) async fn send(self, upload: &mut Upload) -> Result<(Response<Incoming>, Lease), Error> {
        let response = self.connection.send(upload).await?;
        let keep = keep_alive(response.headers()).map_or(IDLE_TIMEOUT, |announced| announced.min(IDLE_TIMEOUT));
        Ok((response.map(Incoming::H1), Lease::h1(self.endpoint, keep)))
    }
}

impl Stream {
    /// Whether the connection has carried requests before.
    pub(super) fn is_reused(&self) -> bool {
        self.reused
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(self, request: Request<RequestBody>) -> Result<(Response<Incoming>, Lease), Box<SendFailed>> {
        match self.shared.sender.clone().try_send_request(request).await {
            Ok(response) => Ok((response.map(Incoming::H2), Lease::h2(self))),
            Err(failed) => Err(Box::new(SendFailed::from(failed))),
        }
    }
}

impl From<TrySendError<Request<RequestBody>>> for SendFailed {
    fn from(mut failed: TrySendError<Request<RequestBody>>) -> Self {
        let unsent = failed.take_message();
        let error = failed.into_error();
        Self { error: Error::new(failure(&error), error), unsent }
    }
}

/// What an error of hyper means. Closing is told from talking nonsense, because only the former may be tried again.
pub(super) fn failure(error: &hyper::Error) -> Kind {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<BodyError>() {
            return Kind::RequestBody;
        }
        if let Some(h2) = cause.downcast_ref::<h2::Error>() {
            if h2.is_reset() && !h2.is_remote() && !h2.is_library() {
                // hyper resets a stream whose body fails; nothing else of ours does.
                return Kind::RequestBody;
            }
            let refused = h2.reason() == Some(h2::Reason::REFUSED_STREAM);
            let gone = h2.is_go_away() && h2.is_remote();
            return if refused || gone || h2.is_io() { Kind::Closed } else { Kind::BadResponse };
        }
        if cause.is::<io::Error>() {
            return Kind::Closed;
        }
        source = cause.source();
    }
    let closed = error.is_incomplete_message() || error.is_canceled() || error.is_closed();
    if closed { Kind::Closed } else { Kind::BadResponse }
}

/// `Keep-Alive: timeout=N` of a response, less a second for the way: reusing a connection later than that races with its
/// end.
fn keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let (_, seconds) = value.split(',').filter_map(|p| p.trim().split_once('=')).find(|(name, _)| *name == "timeout")?;
    Some(Duration::from_secs(seconds.trim().parse::<u32>().ok()?.saturating_sub(1).into()))
}

impl Endpoint {
    /// No connection yet.
    pub(super) fn new(address: SocketAddr, options: &Options) -> Self {
        Self {
            address,
            connect_timeout: options.connect_timeout,
            metrics: Arc::clone(&options.metrics),
            shelves: (0..options.workers.max(1)).map(|_| Shelf::default()).collect(),
            retired: AtomicBool::new(false),
            avoid_until: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            start: Instant::now(),
        }
    }

    /// Whether a connection failed a moment ago.
    pub(super) fn is_suspect(&self) -> bool {
        let until = self.avoid_until.load(Ordering::Relaxed);
        until != 0 && self.now() < until
    }

    /// An HTTP/1.1 connection for one request: one that waits, if `fresh` does not forbid it, or a new one.
    ///
    /// # Errors
    /// [`Kind::Connect`].
    pub(super) async fn connect_h1(self: &Arc<Self>, fresh: bool) -> Result<Connection, Error> {
        let waiting = if fresh { None } else { self.waiting() };
        let reused = waiting.is_some();
        let connection = match waiting {
            Some(connection) => connection,
            // Rare, and large: not to be a part of every request's state.
            None => Box::pin(self.open_h1()).await?,
        };
        Ok(Connection { endpoint: Arc::clone(self), connection, reused })
    }

    /// A place on an HTTP/2 connection.
    ///
    /// # Errors
    /// [`Kind::Connect`].
    pub(super) async fn connect_h2(self: &Arc<Self>) -> Result<Stream, Error> {
        match self.free_stream(STREAMS) {
            Some(stream) => Ok(stream),
            None => self.stream().await,
        }
    }

    /// An HTTP/1.1 connection of its own, for a request that may switch protocols; never kept.
    ///
    /// # Errors
    /// [`Kind::Connect`].
    pub(super) async fn open_h1(&self) -> Result<h1::Connection, Error> {
        Ok(h1::Connection::new(self.dial().await?))
    }

    /// Takes the endpoint out of service: idle connections close now, the others when their requests have ended.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        for shelf in &self.shelves {
            *shelf.lock() = Connections::default();
        }
    }

    /// Closes what has been idle for too long.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let elapsed = self.now();
        for shelf in &self.shelves {
            let mut connections = shelf.lock();
            connections.idle.retain(|idle| idle.until > now && idle.connection.is_unused());
            connections.shared.retain(|shared| {
                let idle = elapsed.saturating_sub(shared.used.load(Ordering::Relaxed));
                let busy = shared.active.load(Ordering::Relaxed) > 0;
                !shared.sender.is_closed() && (busy || u128::from(idle) < IDLE_TIMEOUT.as_millis())
            });
        }
    }

    /// The connections of the worker that runs the caller.
    fn shelf(&self) -> &Shelf {
        &self.shelves[workers::current() % self.shelves.len()]
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The connection that came back last: the least likely to be closed by its peer, and the others can age out.
    fn waiting(&self) -> Option<h1::Connection> {
        let now = Instant::now();
        let mut connections = self.shelf().lock();
        while let Some(idle) = connections.idle.pop() {
            if idle.until > now && idle.connection.is_unused() {
                return Some(idle.connection);
            }
        }
        None
    }

    /// Takes a connection back for as long as its peer is likely to keep it.
    pub(super) fn keep(&self, connection: h1::Connection, keep: Duration) {
        if self.retired.load(Ordering::Acquire) || keep.is_zero() {
            return;
        }
        let until = Instant::now() + keep;
        let mut connections = self.shelf().lock();
        if connections.idle.len() >= MAX_IDLE {
            connections.idle.remove(0);
        }
        connections.idle.push(Idle { connection, until });
    }

    /// A place on a new HTTP/2 connection, or on one that another request has opened meanwhile.
    async fn stream(self: &Arc<Self>) -> Result<Stream, Error> {
        let shelf = self.shelf();
        let _opening = match shelf.opening.try_lock() {
            Ok(opening) => opening,
            Err(_) => {
                let opening = shelf.opening.lock().await;
                if self.is_suspect() {
                    // The one before just failed: its wait must not be repeated for everyone behind it.
                    return Err(Kind::Connect.into());
                }
                opening
            }
        };
        let full = shelf.lock().shared.len() >= MAX_H2;
        if let Some(stream) = self.free_stream(if full { usize::MAX } else { STREAMS }) {
            return Ok(stream);
        }
        let shared = Arc::new(self.open_h2().await?);
        if !self.retired.load(Ordering::Acquire) {
            shelf.lock().shared.push(Arc::clone(&shared));
        }
        Ok(Stream { endpoint: Arc::clone(self), shared, reused: false })
    }

    /// A place on the least busy connection with fewer than `limit` requests.
    fn free_stream(self: &Arc<Self>, limit: usize) -> Option<Stream> {
        let mut connections = self.shelf().lock();
        connections.shared.retain(|shared| !shared.sender.is_closed());
        let active = |shared: &Arc<Shared>| shared.active.load(Ordering::Relaxed);
        let shared = connections.shared.iter().filter(|s| active(s) < limit).min_by_key(|s| active(s))?;
        shared.active.fetch_add(1, Ordering::Relaxed);
        Some(Stream { endpoint: Arc::clone(self), shared: Arc::clone(shared), reused: true })
    }

    /// An HTTP/2 connection with one place taken.
    async fn open_h2(&self) -> Result<Shared, Error> {
        let socket = self.dial().await?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(16 << 20)
            .max_send_buf_size(MAX_BUFFER)
            .max_header_list_size(MAX_HEADER_LIST)
            // Finds a peer that vanished without a word; only asked while something waits for it.
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .handshake(TokioIo::new(socket))
            .await;
        let (sender, connection) = handshake.map_err(|e| self.connect_failed(ConnectFailure::Handshake, e))?;
        tokio::spawn(connection);
        Ok(Shared { sender, active: AtomicUsize::new(1), used: AtomicU64::new(self.now()) })
    }

    async fn dial(&self) -> Result<TcpStream, Error> {
        let socket = match timeout(self.connect_timeout, TcpStream::connect(self.address)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(e)) => return Err(self.connect_failed(connect_failure(&e), e)),
            Err(e) => return Err(self.connect_failed(ConnectFailure::Timeout, e)),
        };
        // Hints; a socket that refuses them still carries the request.
        let _ = socket.set_nodelay(true);
        let keepalive = socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE / 2);
        let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&keepalive);
        self.metrics.upstream_connects.inc();
        self.failures.store(0, Ordering::Relaxed);
        self.avoid_until.store(0, Ordering::Relaxed);
        Ok(socket)
    }

    fn connect_failed(&self, failure: ConnectFailure, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let source = source.into();
        tracing::debug!(endpoint = %self.address, error = %source, "Cannot connect to endpoint");
        self.metrics.connect_failed(failure);
        if !self.is_suspect() {
            let before = self.failures.fetch_add(1, Ordering::Relaxed);
            let penalty = PENALTY * (1 << before.min(MAX_DOUBLINGS));
            self.avoid_until.store(self.now() + u64::try_from(penalty.as_millis()).unwrap_or(0), Ordering::Relaxed);
        }
        Error::new(Kind::Connect, source)
    }
}

fn connect_failure(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectFailure::Refused,
        io::ErrorKind::TimedOut => ConnectFailure::Timeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            ConnectFailure::Unreachable
        }
        _ => ConnectFailure::Other,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_announced_life_of_a_connection_is_believed_less_a_second() {
        let headers = |value| HeaderMap::from_iter([("keep-alive".parse().unwrap(), HeaderValue::from_static(value))]);
        assert_eq!(keep_alive(&headers("timeout=5")), Some(Duration::from_secs(4)));
        assert_eq!(keep_alive(&headers("max=3, timeout=60")), Some(Duration::from_secs(59)));
        assert_eq!(keep_alive(&headers("timeout=0")), Some(Duration::ZERO));
        assert_eq!(keep_alive(&headers("timeout=soon")), None);
        assert_eq!(keep_alive(&headers("x")), None);
        assert_eq!(keep_alive(&HeaderMap::new()), None);
    }
}
