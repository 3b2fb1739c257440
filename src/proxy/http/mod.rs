//! The life of a request: parse the host, find the rule, filter, choose a backend, forward, filter the response.

pub mod body;
mod exchange;
mod filter;
mod forwarded;
mod framing;
mod grpc;
mod h1;
mod host;
mod lease;
pub mod plane;
mod pool;
pub(in crate::proxy) mod relay;
mod request_body;
mod response_body;
#[cfg(test)]
mod tests;
mod timeout;
mod upgrade;
mod upstream;

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use body::{Body, BodyError};
pub use h1::ResponseError;
pub use plane::Plane;
pub use response_body::ResponseBody;

/// How a request came in; what cannot be read off its head.
#[derive(Clone, Debug)]
pub struct Inbound {
    /// `Host` or `:authority` as sent.
    pub authority: String,
    /// The client asks to switch to WebSocket. Transports set this, leave the hop's own upgrade headers out and keep the
    /// client's bytes: the body of such a request is not read.
    pub websocket: bool,
    /// Where it came from.
    pub via: Via,
}

/// Where a request came from: decides which forwarding headers are believed (X27) and whether trailers reach the client.
#[derive(Clone, Copy, Debug)]
pub enum Via {
    /// Through a tunnel connection. The edge has set the forwarding headers.
    Tunnel {
        /// Index of the connection.
        connection: u8,
        /// QUIC carries no trailers.
        trailers: bool,
    },
    /// From a client of a port that the plane binds itself.
    Direct {
        /// The client.
        peer: SocketAddr,
        /// Whether TLS ended here.
        tls: bool,
    },
}

/// The byte stream of a backend that has switched protocols. A response with status 101 carries one in its extensions,
/// wrapped in [`Upgraded`].
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Takes the stream out of a 101 response's extensions once.
#[derive(Clone)]
pub struct Upgraded(std::sync::Arc<std::sync::Mutex<Option<Box<dyn Duplex>>>>);

impl Upgraded {
    /// Wraps a stream so that it fits into a response's extensions.
    pub fn new(io: impl Duplex + 'static) -> Self {
        Self(std::sync::Arc::new(std::sync::Mutex::new(Some(Box::new(io)))))
    }

    /// The stream; `None` when it was taken before.
    pub fn take(&self) -> Option<UpgradedIo> {
        self.0.lock().ok()?.take().map(UpgradedIo)
    }
}

/// A byte stream after the switch of protocols.
pub struct UpgradedIo(Box<dyn Duplex>);

impl AsyncRead for UpgradedIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for UpgradedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

/// What answers requests. The connector and the direct listeners know no more of the request path than this.
pub trait Serve: Send + Sync + 'static {
    /// Answers one request; never fails: what goes wrong becomes a response. Dropping the future cancels the request, the
    /// one to the backend included. A response of the service's own has the [`Side`](super::error::Side) that is at fault in
    /// its extensions. `request.uri()` is in origin form with the path and query bytes as sent; the authority is
    /// in `inbound`.
    fn serve(&self, inbound: Inbound, request: http::Request<Body>) -> impl Future<Output = http::Response<Body>> + Send;
}
