//! The body of a backend's response: holds what must live as long as it (the connection, the count of requests in flight)
//! and gives each back at its end. Dropped before its end it takes the connection with it, which cancels the request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::lease::{Incoming, Lease};
use super::plane::InFlight;
use super::{Body, BodyError, forwarded};
/// The body of a backend's response.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    held: Option<(Lease, InFlight)>,
}

impl ResponseBody {
    /// A body that ends `lease` and `in_flight`. A response without a body ends them at once.
    pub(super) fn wrap(incoming: Incoming, lease: Lease, in_flight: InFlight) -> Body {
        let mut incoming = incoming;
        if let Some(whole) = incoming.take_whole() {
            // Nothing is left to wait for: the connection is free before its response has been sent on.
            lease.give_back(incoming);
            return Body::full(whole);
        }
        Body::Upstream(Box::new(Self { incoming, held: Some((lease, in_flight)) }))
    }

    fn ended(&mut self, clean: bool) {
        let incoming = std::mem::take(&mut self.incoming);
        if let Some((lease, _in_flight)) = self.held.take()
            && clean
        {
            lease.give_back(incoming);
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut frame = ready!(Pin::new(&mut this.incoming).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            forwarded::strip_trailers(trailers);
        }
        match &frame {
            Some(Ok(_)) if !this.incoming.is_end_stream() => {}
            Some(Ok(_)) | None => this.ended(true),
            Some(Err(_)) => this.ended(false),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
