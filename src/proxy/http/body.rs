//! One body type for every way a request or a response comes in, so that the request path has no boxes and no generics.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::response_body::ResponseBody;

/// Why a body ended early. The text is for logs; the peer sees a reset or a cut connection.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The HTTP/2 stream towards the edge or a client failed.
    #[error("http/2 stream: {0}")]
    H2(#[from] h2::Error),
    /// The QUIC stream failed.
    #[error("quic stream: {0}")]
    Quic(#[from] quinn::ReadError),
    /// The connection of an HTTP client or backend failed.
    #[error("http connection: {0}")]
    Hyper(#[from] hyper::Error),
    /// The backend's response broke off.
    #[error("backend: {0}")]
    Backend(#[from] super::h1::ResponseError),
    /// The peer sent fewer bytes than it promised.
    #[error("{missing} bytes of the declared length are missing")]
    Short {
        /// Bytes that did not come.
        missing: u64,
    },
    /// The peer sent more bytes than it promised.
    #[error("more bytes than the declared length")]
    Long,
}

/// A request or response body.
#[derive(Debug, Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// Bytes at hand.
    Full(Bytes),
    /// From an HTTP/1.1 or HTTP/2 connection that hyper reads.
    Hyper(hyper::body::Incoming),
    /// From a stream of a tunnel connection over HTTP/2.
    H2(h2::RecvStream),
    /// From a stream of a tunnel connection over QUIC.
    Quic(QuicBody),
    /// Of a backend's response.
    Upstream(Box<ResponseBody>),
    /// A body that is watched: tells its guard when it ends, however it ends.
    Guarded(Box<Guarded>),
    /// A body whose consumer is watched.
    Watched(Box<Watched>),
}

/// Sees how a body is consumed; dropped with it.
pub trait Watch: Send + Sync {
    /// The consumer took this many bytes, or there was nothing for it to take.
    fn pulled(&self, bytes: Option<usize>);
}

/// A body with somebody who watches.
pub struct Watched {
    body: Body,
    watch: Box<dyn Watch>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("body", &self.body).finish_non_exhaustive()
    }
}

/// The rest of a QUIC stream, up to its end or to a declared length.
#[derive(Debug)]
pub struct QuicBody {
    /// What was read of the body along with the head.
    ahead: Bytes,
    stream: quinn::RecvStream,
    /// Bytes still to come; `None` when the length is not known.
    remaining: Option<u64>,
}

impl QuicBody {
    /// Reads `stream` to its end; with a length, anything shorter or longer is an error.
    pub fn new(stream: quinn::RecvStream, length: Option<u64>) -> Self {
        Self::after(Bytes::new(), stream, length)
    }

    /// As [`Self::new`], with the first bytes of the body at hand already.
    pub fn after(ahead: Bytes, stream: quinn::RecvStream, length: Option<u64>) -> Self {
        Self { ahead, stream, remaining: length }
    }
}

/// Largest piece taken from a QUIC stream at once, bytes.
const QUIC_CHUNK: usize = 64 * 1024;

/// A body with something to drop at its end.
pub struct Guarded {
    body: Body,
    guard: Option<Box<dyn Send + Sync>>,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Body {
    /// Bytes at hand.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        if bytes.is_empty() { Self::Empty } else { Self::Full(bytes) }
    }

    /// Drops `guard` when the body has ended or is dropped.
    #[must_use]
    pub fn guarded(self, guard: Box<dyn Send + Sync>) -> Self {
        Self::Guarded(Box::new(Guarded { body: self, guard: Some(guard) }))
    }

    /// Tells `watch` of each try to take a piece.
    #[must_use]
    pub fn watched(self, watch: Box<dyn Watch>) -> Self {
        Self::Watched(Box::new(Watched { body: self, watch }))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            this @ Self::Full(_) => {
                let Self::Full(bytes) = std::mem::take(this) else { return Poll::Ready(None) };
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Hyper(body) => Pin::new(body).poll_frame(cx).map_err(BodyError::from),
            Self::H2(stream) => match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Freed at once: the window bounds what is under way, and the consumer pulls.
                    stream.flow_control().release_capacity(data.len())?;
                    Poll::Ready(Some(Ok(Frame::data(data))))
                }
                Some(Err(e)) => Poll::Ready(Some(Err(e.into()))),
                None => match ready!(stream.poll_trailers(cx))? {
                    Some(trailers) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                    None => Poll::Ready(None),
                },
            },
            Self::Quic(body) => body.poll_data(cx).map(|r| r.map(|r| r.map(Frame::data))),
            Self::Upstream(body) => Pin::new(&mut **body).poll_frame(cx),
            Self::Guarded(guarded) => {
                let frame = ready!(Pin::new(&mut guarded.body).poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) || guarded.body.is_end_stream() {
                    guarded.guard = None;
                }
                Poll::Ready(frame)
            }
            Self::Watched(watched) => {
                let frame = Pin::new(&mut watched.body).poll_frame(cx);
                match &frame {
                    Poll::Ready(Some(Ok(frame))) => watched.watch.pulled(frame.data_ref().map(Bytes::len)),
                    Poll::Ready(_) | Poll::Pending => watched.watch.pulled(None),
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Hyper(body) => body.is_end_stream(),
            Self::H2(stream) => stream.is_end_stream(),
            Self::Quic(body) => body.remaining == Some(0),
            Self::Upstream(body) => body.is_end_stream(),
            Self::Guarded(guarded) => guarded.body.is_end_stream(),
            Self::Watched(watched) => watched.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Hyper(body) => body.size_hint(),
            Self::H2(_) => SizeHint::default(),
            Self::Quic(body) => body.remaining.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Upstream(body) => body.size_hint(),
            Self::Guarded(guarded) => guarded.body.size_hint(),
            Self::Watched(watched) => watched.body.size_hint(),
        }
    }
}

impl QuicBody {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.remaining == Some(0) {
            return Poll::Ready(None);
        }
        let chunk = if self.ahead.is_empty() {
            let mut read = std::pin::pin!(self.stream.read_chunk(QUIC_CHUNK, true));
            ready!(Future::poll(read.as_mut(), cx)).map(|chunk| chunk.map(|c| c.bytes))
        } else {
            Ok(Some(std::mem::take(&mut self.ahead)))
        };
        Poll::Ready(match (chunk, self.remaining.as_mut()) {
            (Err(e), _) => Some(Err(e.into())),
            (Ok(None), None) => None,
            (Ok(None), Some(missing)) => Some(Err(BodyError::Short { missing: *missing })),
            (Ok(Some(chunk)), None) => Some(Ok(chunk)),
            (Ok(Some(chunk)), Some(left)) => match left.checked_sub(chunk.len() as u64) {
                Some(rest) => {
                    *left = rest;
                    Some(Ok(chunk))
                }
                None => Some(Err(BodyError::Long)),
            },
        })
    }
}
