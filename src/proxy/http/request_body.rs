//! The body of a request on its way to a backend: exactly as long as declared or broken off, without trailers, and telling
//! when it has been sent. Where it goes is decided elsewhere.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::oneshot;

use super::{Body, BodyError};

/// How long to wait for a first byte of a request that usually has no body and did not say (S3 "Retries").
const PROBE: Duration = Duration::from_millis(200);

/// The body that goes to a backend. Most requests have none; one that has is kept behind a pointer, because the queue of every
/// connection to a backend has room for dozens of requests.
#[derive(Debug)]
pub(super) struct RequestBody(Option<Box<Content>>);

#[derive(Debug)]
struct Content {
    inner: Body,
    length: Length,
    /// Dropped with the body.
    sent: Option<oneshot::Sender<Infallible>>,
}

#[derive(Debug)]
enum Length {
    /// Bytes to come, and the chunk that completes the length. It is held back until the end is seen: a request that turns
    /// out longer than declared must not look complete to the backend.
    Declared { left: u64, last: Option<Bytes> },
    /// Whatever comes, and a chunk that was read ahead.
    Open { first: Option<Bytes> },
}

/// Resolves when the body has been sent or given up.
pub(super) type Sent = oneshot::Receiver<Infallible>;

impl RequestBody {
    /// Nothing.
    pub(super) fn empty() -> Self {
        Self(None)
    }

    /// `declared` is the length that the head names.
    pub(super) fn new(inner: Body, declared: Option<u64>) -> Self {
        let length = match declared {
            Some(0) => return Self::empty(),
            None if matches!(inner, Body::Empty) => return Self::empty(),
            Some(left) => Length::Declared { left, last: None },
            None => Length::Open { first: None },
        };
        Self(Some(Box::new(Content { inner, length, sent: None })))
    }

    /// Tells when the body has been sent or given up; `None` when there is nothing to send.
    pub(super) fn watch(&mut self) -> Option<Sent> {
        if self.is_end_stream() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.0.as_mut()?.sent = Some(sender);
        Some(receiver)
    }

    /// Whether nothing declares the length and the body has not ended, so that only the end of the stream can tell.
    pub(super) fn is_open(&self) -> bool {
        let open = |c: &Content| matches!(c.length, Length::Open { .. }) && c.inner.size_hint().exact().is_none();
        self.0.as_deref().is_some_and(open)
    }

    /// Waits a moment for the first bytes of an open body and remembers them. Afterwards a stream that closed empty is known
    /// to be no body at all.
    pub(super) async fn probe(&mut self) {
        let Some(Content { inner, length: Length::Open { first }, .. }) = self.0.as_deref_mut() else { return };
        let chunk = std::future::poll_fn(|cx| {
            loop {
                match ready!(Pin::new(&mut *inner).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(chunk) if !chunk.is_empty() => return Poll::Ready(Ok(Some(chunk))),
                        _ => {}
                    },
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Ok(None)),
                }
            }
        });
        match tokio::time::timeout(PROBE, chunk).await {
            Ok(Ok(Some(chunk))) => *first = Some(chunk),
            Ok(Ok(None)) => *self = Self::empty(),
            // A broken stream reports itself again when the body is read; nothing came in time: it is sent as it comes.
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

impl Content {
    fn poll_declared(
        inner: &mut Body,
        left: &mut u64,
        last: &mut Option<Bytes>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut *inner).poll_frame(cx)) else {
                return Poll::Ready(match (*left, last.take()) {
                    (0, last) => last.map(Ok),
                    (missing, _) => Some(Err(BodyError::Short { missing })),
                });
            };
            let Ok(chunk) = frame?.into_data() else { continue };
            if chunk.is_empty() {
                continue;
            }
            *left = left.checked_sub(chunk.len() as u64).ok_or(BodyError::Long)?;
            if *left > 0 || inner.is_end_stream() {
                return Poll::Ready(Some(Ok(chunk)));
            }
            *last = Some(chunk);
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(this) = self.get_mut().0.as_deref_mut() else { return Poll::Ready(None) };
        let chunk = match &mut this.length {
            Length::Declared { left, last } => ready!(Content::poll_declared(&mut this.inner, left, last, cx)),
            Length::Open { first } => loop {
                if let Some(first) = first.take() {
                    break Some(Ok(first));
                }
                match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                    None => break None,
                    Some(Err(e)) => break Some(Err(e)),
                    // Trailers of requests are not forwarded.
                    Some(Ok(frame)) => {
                        if let Ok(chunk) = frame.into_data() {
                            break Some(Ok(chunk));
                        }
                    }
                }
            },
        };
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        let Some(content) = self.0.as_deref() else { return true };
        match &content.length {
            Length::Declared { left, last } => *left == 0 && last.is_none(),
            Length::Open { first } => first.is_none() && content.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let Some(content) = self.0.as_deref() else { return SizeHint::with_exact(0) };
        match &content.length {
            Length::Declared { left, last } => SizeHint::with_exact(left + last.as_ref().map_or(0, |l| l.len() as u64)),
            Length::Open { first: None } => content.inner.size_hint(),
            Length::Open { first: Some(_) } => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn read(body: RequestBody) -> Result<Vec<u8>, BodyError> {
        Ok(body.collect().await?.to_bytes().to_vec())
    }

    #[tokio::test]
    async fn a_declared_length_is_kept_or_the_body_breaks_off() {
        let body = |declared| RequestBody::new(Body::full("hello"), declared);
        assert_eq!(read(body(Some(5))).await.unwrap(), b"hello");
        assert_eq!(read(body(None)).await.unwrap(), b"hello");
        assert!(matches!(read(body(Some(6))).await, Err(BodyError::Short { missing: 1 })));
        assert!(matches!(read(body(Some(4))).await, Err(BodyError::Long)));
        assert!(read(RequestBody::empty()).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_end_of_the_body_can_be_waited_for() {
        let mut body = RequestBody::new(Body::full("hello"), Some(5));
        let mut sent = body.watch().unwrap();
        assert!(matches!(sent.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        read(body).await.unwrap();
        assert!(sent.await.is_err());
        assert!(RequestBody::empty().watch().is_none());
    }

    #[tokio::test]
    async fn probing_an_open_body_keeps_its_first_bytes() {
        let mut body = RequestBody::new(Body::full("hello"), None);
        body.probe().await;
        assert!(!body.is_end_stream());
        assert_eq!(read(body).await.unwrap(), b"hello");
        let mut body = RequestBody::new(Body::Empty, None);
        body.probe().await;
        assert!(body.is_end_stream());
    }
}
