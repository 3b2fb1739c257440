//! WebSocket (X12): the handshake towards the backend, and the session that follows. Who carries the client's bytes to it is
//! the transport's business.

use std::io;
use std::pin::Pin;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::h1::Upload;
use super::lease::{Incoming, Lease};
use super::plane::InFlight;
use super::request_body::RequestBody;
use super::upstream::Upstream;
use super::{Body, Upgraded, forwarded, timeout};
use crate::proxy::error::{Error, Kind};
use crate::proxy::metrics::Metrics;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Turns a request into the handshake of RFC 6455 §4.1; the hops before have taken its hop-by-hop fields away.
pub(super) fn set_handshake(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    headers.remove(CONTENT_LENGTH);
}

/// What a handshake led to.
pub(super) enum Handshake {
    /// The backend switched: a 101 that carries the session.
    Switched(Response<Body>),
    /// The backend answered something else, to be passed on as any response.
    Declined(Response<Incoming>, Lease),
}

/// Sends the handshake.
///
/// # Errors
/// As for any request; [`Kind::BadResponse`] when the backend switches to something else than WebSocket.
pub(super) async fn handshake(
    upstream: &Upstream,
    request: Request<RequestBody>,
    limit: Option<Duration>,
    idle: Duration,
    in_flight: &mut Option<InFlight>,
    metrics: &Metrics,
) -> Result<Handshake, Error> {
    let connection = upstream.connect_upgradable(metrics).await?;
    let (head, body) = request.into_parts();
    let mut upload = Upload::new(&head, body);
    let response = timeout::within(limit, &mut None, pin!(connection.send(&mut upload))).await??;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Handshake::Declined(response.map(Incoming::H1), Lease::detached()));
    }
    if !response.headers().get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes())) {
        return Err(Kind::BadResponse.into());
    }
    let (mut head, incoming) = response.into_parts();
    let io = incoming.into_switched().ok_or(Kind::BadResponse)?;
    let session = Session::new(io, idle, metrics.websocket_sessions.clone(), in_flight.take());
    forwarded::strip_response(&mut head.headers);
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    head.headers.insert(UPGRADE, WEBSOCKET);
    head.extensions.clear();
    head.extensions.insert(Upgraded::new(session));
    Ok(Handshake::Switched(Response::from_parts(head, Body::Empty)))
}

/// The bytes of a session. One that carries none in either direction for `idle` ends: a bound on abandonment, not on
/// duration (S3 "WebSocket routes").
struct Session<T> {
    io: T,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
    /// When bytes were last seen. The timer is moved only when it fires, not for every frame.
    used: Instant,
    open: Gauge,
    _in_flight: Option<InFlight>,
}

impl<T> Session<T> {
    fn new(io: T, idle: Duration, open: Gauge, in_flight: Option<InFlight>) -> Self {
        open.inc();
        Self { io, idle, timer: Box::pin(sleep(idle)), used: Instant::now(), open, _in_flight: in_flight }
    }

    fn check_idle(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let end = self.used + self.idle;
            if end <= Instant::now() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the websocket session was idle for too long"));
            }
            self.timer.as_mut().reset(end);
        }
        Ok(())
    }
}

impl<T> Drop for Session<T> {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Session<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, buf) {
            Poll::Ready(result) => {
                if buf.filled().len() > before {
                    self.used = Instant::now();
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                self.check_idle(cx)?;
                Poll::Pending
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Session<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        self.used = Instant::now();
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn the_handshake_is_complete() {
        let mut headers = HeaderMap::from_iter([
            (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("8")),
            (CONTENT_LENGTH, HeaderValue::from_static("0")),
        ]);
        set_handshake(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_VERSION], "13");
        assert_eq!(headers[UPGRADE], "websocket");
        assert!(!headers.contains_key(CONTENT_LENGTH));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_idle_and_any_byte_keeps_it() {
        let hour = Duration::from_secs(3600);
        let (near, mut far) = tokio::io::duplex(64);
        let gauge = Gauge::default();
        let mut session = Session::new(near, hour, gauge.clone(), None);
        assert_eq!(gauge.get(), 1);
        let start = Instant::now();
        let far = tokio::spawn(async move {
            sleep(Duration::from_secs(3000)).await;
            far.write_all(b"x").await.unwrap();
            far
        });
        assert_eq!(session.read_u8().await.unwrap(), b'x');
        let far = far.await.unwrap();
        // Writing counts as much as reading.
        sleep(Duration::from_secs(3000)).await;
        session.write_all(b"y").await.unwrap();
        let error = session.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), Duration::from_secs(6000) + hour);
        drop((session, far));
        assert_eq!(gauge.get(), 0);
    }
}
