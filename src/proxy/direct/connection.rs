//! One connection from its first byte to its last: TLS, which protocol, hyper's server, limits of time, the drain. What a
//! request is made of is in `request`.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::activity::{Activity, Late, Watch};
use super::io::{Watched, detect};
use super::request::Requests;
use super::{Direct, Place};
use crate::proxy::http::Serve;

/// Most bytes of a head, and most that is buffered of a body each way: hyper grows its buffers up to this under load. Envoy's
/// limit is 60 KiB.
const MAX_BUFFER: usize = 64 * 1024;
/// Requests at once on one HTTP/2 connection: RFC 9113 §6.5.2 recommends no fewer than 100.
const MAX_STREAMS: u32 = 128;
/// Windows for uploads: what a client can make us hold for a slow backend.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What is buffered per stream towards a slow client.
const SEND_BUFFER: usize = 32 * 1024;
/// Finds a client that vanished while a response or a session is under way.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// How long a connection may take to end in good order.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A connection that has been admitted.
pub(super) struct Connection<S> {
    pub(super) direct: Arc<Direct<S>>,
    pub(super) place: Place,
    pub(super) peer: SocketAddr,
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("no TLS handshake in time")]
    SlowHandshake,
    #[error("nothing was sent in time")]
    Silent,
    #[error("io: {0}")]
    Io(#[from] io::Error),
    #[error("http: {0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Late(&'static str),
    #[error("cut at the end of the drain")]
    Closed,
}

impl<S: Serve> Connection<S> {
    /// Serves it to its end.
    pub(super) async fn run(self, socket: TcpStream, tls: Option<TlsAcceptor>) {
        let peer = self.peer;
        if let Err(error) = self.serve(socket, tls).await {
            tracing::debug!(%peer, %error, "Connection ended early");
        }
    }

    async fn serve(self, socket: TcpStream, tls: Option<TlsAcceptor>) -> Result<(), ConnectionError> {
        // Without these a connection works all the same.
        let _ = socket.set_nodelay(true);
        let keepalive = socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE / 2);
        let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&keepalive);
        match tls {
            Some(tls) => self.serve_tls(socket, tls).await,
            None => self.serve_plain(socket).await,
        }
    }

    async fn serve_plain(self, mut socket: TcpStream) -> Result<(), ConnectionError> {
        let first = self.unless_drained(timeout(self.direct.limits.head, detect(&mut socket))).await;
        let Some(first) = first else { return Ok(()) };
        let (http2, ahead) = first.map_err(|_| ConnectionError::Silent)??;
        let activity = Activity::new(!http2);
        let io = Watched::new(socket, ahead, Arc::clone(&activity));
        self.speak(http2, false, io, activity).await
    }

    async fn serve_tls(self, socket: TcpStream, tls: TlsAcceptor) -> Result<(), ConnectionError> {
        let handshake = self.unless_drained(timeout(self.direct.limits.head, tls.accept(socket))).await;
        let Some(handshake) = handshake else { return Ok(()) };
        let stream = handshake.map_err(|_| ConnectionError::SlowHandshake)??;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let activity = Activity::new(!http2);
        let io = Watched::new(stream, bytes::Bytes::new(), Arc::clone(&activity));
        self.speak(http2, true, io, activity).await
    }

    /// `None` when the drain has gone on for a moment and nothing has come yet: nothing is lost with such a connection.
    async fn unless_drained<T>(&self, first: impl Future<Output = T>) -> Option<T> {
        let drained = async {
            self.direct.draining.wait().await;
            tokio::time::sleep(self.direct.limits.drain_idle).await;
        };
        tokio::select! {
            biased;
            first = first => Some(first),
            () = drained => None,
        }
    }

    /// Serves requests over a byte stream.
    async fn speak<IO>(self, http2: bool, tls: bool, io: IO, activity: Arc<Activity>) -> Result<(), ConnectionError>
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let direct = Arc::clone(&self.direct);
        let requests =
            Arc::new(Requests { direct: self.direct, _place: self.place, peer: self.peer, tls, activity: Arc::clone(&activity) });
        let service = service_fn(move |request| Arc::clone(&requests).answer(request));
        // The state of a protocol is large: each in an allocation of its own, or every task has the size of the largest.
        if http2 {
            let connection = http2_builder().serve_connection(TokioIo::new(io), service);
            drive(Box::pin(connection), &direct, &activity).await
        } else {
            let connection = http1_builder().serve_connection(TokioIo::new(io), service).with_upgrades();
            drive(Box::pin(connection), &direct, &activity).await
        }
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // Limits of time are kept in `activity`: hyper's own costs a timer for each request.
    builder.max_buf_size(MAX_BUFFER).header_read_timeout(None);
    builder
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(MAX_BUFFER).unwrap_or(u32::MAX))
        .enable_connect_protocol();
    builder
}

/// hyper's connections of both protocols.
trait Drive: Future<Output = hyper::Result<()>> {
    /// Whether its peer is told of the end before that comes, so that nothing is lost when it begins at once.
    const ANNOUNCES_END: bool;

    fn graceful_shutdown(self: Pin<&mut Self>);
}

impl<I, B, S> Drive for http1::UpgradeableConnection<I, S>
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    B: http_body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    const ANNOUNCES_END: bool = false;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        Self::graceful_shutdown(self);
    }
}

impl<I, B, S, E> Drive for http2::Connection<I, S, E>
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: http_body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    const ANNOUNCES_END: bool = true;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        Self::graceful_shutdown(self);
    }
}

/// Polls a connection to its end, and ends it when it takes too long or when the listeners drain.
async fn drive<C: Drive, S: Serve>(
    mut connection: Pin<Box<C>>,
    direct: &Direct<S>,
    activity: &Activity,
) -> Result<(), ConnectionError> {
    let mut watch = Watch::new(activity);
    let mut timer = pin!(sleep_until(Instant::now() + direct.limits.head));
    let mut draining = pin!(direct.draining.wait());
    let mut closing = pin!(direct.closing.cancelled());
    let mut registered = false;
    let mut finishing: Option<Instant> = None;
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended.map_err(ConnectionError::from));
            }
            let drains = direct.draining.is_given();
            if drains {
                if closing.as_mut().poll(cx).is_ready() {
                    activity.cut();
                    return Poll::Ready(Err(ConnectionError::Closed));
                }
            } else if !registered {
                // Once is enough to be woken, for the waker of a task stays the same; looking at a token takes a lock that all
                // connections share.
                registered = true;
                if draining.as_mut().poll(cx).is_ready() {
                    continue;
                }
            }
            if C::ANNOUNCES_END && drains && finishing.is_none() {
                finishing = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let Some((at, late)) = watch.look(activity, &direct.limits, drains) else { return Poll::Pending };
            let (at, late) = match (late, finishing) {
                (Late::Finish, Some(begun)) => (at.max(begun + LAST_WORDS), Late::Cut("it did not end when it should")),
                sooner => (at, sooner.0),
            };
            ready!(poll_until(timer.as_mut(), at, cx));
            match late {
                Late::Cut(why) => {
                    activity.cut();
                    return Poll::Ready(Err(ConnectionError::Late(why)));
                }
                Late::Finish => {
                    finishing = Some(Instant::now());
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    })
    .await
}

/// Ready at `at` or later. The timer is moved only when it must ring earlier, or has rung: not for every request.
fn poll_until(mut timer: Pin<&mut Sleep>, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if at < timer.deadline() {
        timer.as_mut().reset(at);
    }
    loop {
        ready!(timer.as_mut().poll(cx));
        if timer.deadline() >= at {
            return Poll::Ready(());
        }
        timer.as_mut().reset(at);
    }
}
