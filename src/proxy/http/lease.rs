//! What a response holds while its body is read: the connection or the place on one, and the way back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use super::pool::{Endpoint, Stream};
use super::{BodyError, h1};

/// The body of a response, by the protocol of its backend.
#[derive(Debug, Default)]
pub(super) enum Incoming {
    /// Given back.
    #[default]
    Ended,
    H1(h1::Incoming),
    H2(hyper::body::Incoming),
}

impl Incoming {
    /// The whole body, if it is here.
    pub(super) fn take_whole(&mut self) -> Option<Bytes> {
        match self {
            _ if self.is_end_stream() => Some(Bytes::new()),
            Self::H1(incoming) => incoming.take_whole(),
            Self::Ended | Self::H2(_) => None,
        }
    }
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Ended => Poll::Ready(None),
            Self::H1(incoming) => Pin::new(incoming).poll_frame(cx),
            Self::H2(incoming) => Pin::new(incoming).poll_frame(cx).map_err(BodyError::from),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Ended => true,
            Self::H1(incoming) => incoming.is_end_stream(),
            Self::H2(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Ended => SizeHint::with_exact(0),
            Self::H1(incoming) => incoming.size_hint(),
            Self::H2(incoming) => incoming.size_hint(),
        }
    }
}

/// Keeps a place at a backend until the body of a response has ended.
#[derive(Debug)]
pub(super) struct Lease(Held);

#[derive(Debug)]
enum Held {
    /// The connection is in the body; it is kept for so long when that has ended.
    H1(Arc<Endpoint>, Duration),
    H2(#[expect(dead_code, reason = "held for its drop")] Stream),
    /// Not of a pool.
    Detached,
}

impl Lease {
    /// Of a connection that goes back to `endpoint`, for so long.
    pub(super) fn h1(endpoint: Arc<Endpoint>, keep: Duration) -> Self {
        Self(Held::H1(endpoint, keep))
    }

    /// Of a place on a connection.
    pub(super) fn h2(stream: Stream) -> Self {
        Self(Held::H2(stream))
    }

    /// Of a connection that is closed after this response.
    pub(super) fn detached() -> Self {
        Self(Held::Detached)
    }

    /// The response has ended; the connection may serve another request. Without this call it is closed.
    pub(super) fn give_back(self, incoming: Incoming) {
        if let (Held::H1(endpoint, keep), Incoming::H1(incoming)) = (self.0, incoming)
            && let Some(connection) = incoming.into_connection()
        {
            endpoint.keep(connection, keep);
        }
    }
}
