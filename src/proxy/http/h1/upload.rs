//! A request on its way to a backend: its head, then its body in the frame that the head announced.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::request::Parts;
use http::{HeaderMap, Method};
use http_body::Body as _;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::JoinHandle;

use super::head::{Framing, encode};
use crate::proxy::http::BodyError;
use crate::proxy::http::request_body::{RequestBody, Sent};

/// Up to this many bytes are copied behind what is being written; more are written from where they are.
const COPIED: usize = 4 * 1024;
/// What is written at once: as much as the kernel takes for one segment of TCP, however small the frames it came in.
const BATCH: usize = 64 * 1024;
/// Pieces that are written at once.
const PIECES: usize = 16;
/// What ends a chunk, and what ends the body (RFC 9112 §7.1).
const CRLF: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const CRLF_LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// Why a request could not be sent.
#[derive(Debug)]
pub(super) enum UploadError {
    /// Its body broke off.
    Body(BodyError),
    /// The connection takes no more.
    Io(io::Error),
}

/// A request that is being sent.
#[derive(Debug)]
pub(in crate::proxy::http) struct Upload {
    /// The head, then whatever frames the body or is small.
    buffer: Vec<u8>,
    written: usize,
    /// Large pieces of the body, to be written behind `buffer`.
    pieces: VecDeque<Bytes>,
    /// Framing to be written behind `pieces`.
    tail: &'static [u8],
    body: RequestBody,
    framing: Framing,
    /// Everything is in `buffer`, `pieces` and `tail`.
    ended: bool,
    done: bool,
    /// Whether the connection has taken any of it.
    begun: bool,
    is_head: bool,
    /// Whether the request had no body from the start, so that `buffer` is all of it.
    bodiless: bool,
    idempotent: bool,
}

impl Upload {
    /// A request in origin form.
    pub(in crate::proxy::http) fn new(head: &Parts, body: RequestBody) -> Self {
        Self::from_parts(&head.method, &head.uri, &head.headers, body)
    }

    fn from_parts(method: &Method, uri: &http::Uri, headers: &HeaderMap, body: RequestBody) -> Self {
        let bodiless = body.is_end_stream();
        let framing = match body.size_hint().exact() {
            _ if bodiless => Framing::None,
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        };
        Self {
            buffer: encode(method, uri, headers, framing),
            written: 0,
            pieces: VecDeque::new(),
            tail: &[],
            body,
            framing,
            ended: bodiless,
            done: false,
            begun: false,
            is_head: *method == Method::HEAD,
            bodiless,
            idempotent: method.is_idempotent() && *method != Method::CONNECT,
        }
    }

    /// Tells when the body has been sent or given up; `None` when there is nothing to send.
    pub(in crate::proxy::http) fn watch(&mut self) -> Option<Sent> {
        self.body.watch()
    }

    pub(super) fn is_head(&self) -> bool {
        self.is_head
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Makes the request ready to be sent once more. False when that is not safe: a backend may have acted on it, and the method
    /// is not idempotent or the body is gone (X6).
    pub(in crate::proxy::http) fn rewind(&mut self) -> bool {
        if !self.begun {
            return true;
        }
        if !(self.bodiless && self.idempotent) {
            return false;
        }
        self.written = 0;
        self.begun = false;
        self.done = false;
        true
    }

    /// What is left to send; nothing of it stays.
    pub(super) fn take(&mut self) -> Self {
        Self {
            buffer: std::mem::take(&mut self.buffer),
            pieces: std::mem::take(&mut self.pieces),
            body: std::mem::replace(&mut self.body, RequestBody::empty()),
            ..*self
        }
    }

    /// Sends no more.
    pub(super) fn give_up(&mut self) {
        self.pieces = VecDeque::new();
        self.body = RequestBody::empty();
        self.done = true;
    }

    /// Sends as much as there is and as the connection takes; ready when that is all.
    pub(super) fn poll<W: AsyncWrite + Unpin>(&mut self, io: &mut W, cx: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        while !self.done {
            let waits = self.poll_gather(cx).map_err(UploadError::Body)?.is_pending();
            if self.has_pending() {
                ready!(self.poll_write(io, cx)).map_err(UploadError::Io)?;
                continue;
            }
            ready!(Pin::new(&mut *io).poll_flush(cx)).map_err(UploadError::Io)?;
            if waits {
                return Poll::Pending;
            }
            self.done = self.ended;
            // Whoever waits for the end of the body is told by its drop.
            self.body = RequestBody::empty();
        }
        Poll::Ready(Ok(()))
    }

    fn has_pending(&self) -> bool {
        self.written < self.buffer.len() || !self.pieces.is_empty() || !self.tail.is_empty()
    }

    /// Takes as much of the body as is written at once. Pending when there is no more now.
    fn poll_gather(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if !self.pieces.is_empty() || !self.tail.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !self.ended && self.buffer.len() - self.written < COPIED {
            let mut bytes = 0;
            let more = loop {
                if bytes >= BATCH || self.pieces.len() == PIECES {
                    break Poll::Ready(true);
                }
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Pending => break Poll::Pending,
                    Poll::Ready(None) => break Poll::Ready(false),
                    Poll::Ready(Some(frame)) => {
                        if let Ok(data) = frame?.into_data()
                            && !data.is_empty()
                        {
                            bytes += data.len();
                            self.pieces.push_back(data);
                        }
                    }
                }
            };
            self.frame(bytes)?;
            if !ready!(more) {
                self.end()?;
            }
            if !self.pieces.is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Frames what was gathered, which is this many bytes, as one chunk if the body goes in chunks.
    fn frame(&mut self, bytes: usize) -> Result<(), BodyError> {
        if bytes == 0 {
            return Ok(());
        }
        self.make_room();
        let chunked = match &mut self.framing {
            Framing::Chunked => true,
            Framing::Length(left) => {
                *left = left.checked_sub(bytes as u64).ok_or(BodyError::Long)?;
                false
            }
            Framing::None | Framing::UntilClose => return Err(BodyError::Long),
        };
        if chunked {
            self.buffer.extend_from_slice(format!("{bytes:x}\r\n").as_bytes());
        }
        if bytes > COPIED {
            self.tail = if chunked { CRLF } else { &[] };
            return Ok(());
        }
        for piece in self.pieces.drain(..) {
            self.buffer.extend_from_slice(&piece);
        }
        if chunked {
            self.buffer.extend_from_slice(CRLF);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), BodyError> {
        match self.framing {
            Framing::Length(missing) if missing > 0 => return Err(BodyError::Short { missing }),
            Framing::Chunked if self.pieces.is_empty() => {
                self.make_room();
                self.buffer.extend_from_slice(LAST_CHUNK);
            }
            Framing::Chunked => self.tail = CRLF_LAST_CHUNK,
            _ => {}
        }
        self.ended = true;
        Ok(())
    }

    fn make_room(&mut self) {
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.written = 0;
        }
    }

    fn poll_write<W: AsyncWrite + Unpin>(&mut self, io: &mut W, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let io = Pin::new(io);
        let buffered = &self.buffer[self.written..];
        let n = if self.pieces.is_empty() && self.tail.is_empty() {
            ready!(io.poll_write(cx, buffered))?
        } else {
            let mut slices = [IoSlice::new(&[]); PIECES + 2];
            let texts = std::iter::once(buffered).chain(self.pieces.iter().map(|piece| &**piece)).chain([self.tail]);
            let texts = texts.filter(|text| !text.is_empty());
            let count = slices.iter_mut().zip(texts).map(|(slice, text)| *slice = IoSlice::new(text)).count();
            ready!(io.poll_write_vectored(cx, &slices[..count]))?
        };
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.begun = true;
        self.advance(n);
        Poll::Ready(Ok(()))
    }

    /// Takes note of what was written.
    fn advance(&mut self, mut n: usize) {
        let of_buffer = n.min(self.buffer.len() - self.written);
        self.written += of_buffer;
        n -= of_buffer;
        while let Some(piece) = self.pieces.front_mut() {
            let of_piece = n.min(piece.len());
            piece.advance(of_piece);
            n -= of_piece;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.tail = &self.tail[n.min(self.tail.len())..];
    }
}

/// The task that goes on with a request whose response has begun: whoever reads the response may wait for its own peer, and the
/// backend may wait for the request. Dropped, it sends no more.
#[derive(Debug)]
pub(super) struct Pump(JoinHandle<Result<OwnedWriteHalf, UploadError>>);

impl Pump {
    pub(super) fn spawn(mut upload: Upload, mut half: OwnedWriteHalf) -> Self {
        Self(tokio::spawn(async move {
            poll_fn(|cx| upload.poll(&mut half, cx)).await?;
            Ok(half)
        }))
    }

    /// Gives the writing half back when everything has been sent.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<OwnedWriteHalf, UploadError>> {
        let joined = ready!(Future::poll(Pin::new(&mut self.0), cx));
        Poll::Ready(joined.unwrap_or_else(|e| Err(UploadError::Io(io::Error::other(e)))))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Uri};
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::http::Body;

    fn upload(method: Method, body: RequestBody) -> Upload {
        let (head, ()) = Request::builder().method(method).uri(Uri::from_static("/")).body(()).expect("sound").into_parts();
        Upload::new(&head, body)
    }

    async fn sent(mut upload: Upload, room: usize) -> Result<String, UploadError> {
        let (mut near, mut far) = tokio::io::duplex(room);
        let read = tokio::spawn(async move {
            let mut text = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut far, &mut text).await.map(|_| text)
        });
        poll_fn(|cx| upload.poll(&mut near, cx)).await?;
        drop(near);
        let text = read.await.expect("no panic").expect("read");
        Ok(String::from_utf8(text).expect("text"))
    }

    #[tokio::test]
    async fn a_body_is_sent_in_the_frame_that_was_announced() {
        let large = "x".repeat(10_000);
        let post = |body, declared| upload(Method::POST, RequestBody::new(body, declared));
        let text = sent(post(Body::full(large.clone()), Some(10_000)), 777).await.expect("sent");
        assert_eq!(text, format!("POST / HTTP/1.1\r\ncontent-length: 10000\r\n\r\n{large}"));
        let text = sent(post(Body::Empty, None), 777).await.expect("sent");
        assert_eq!(text, "POST / HTTP/1.1\r\n\r\n");
        let short = sent(post(Body::full("abc"), Some(4)), 777).await.expect_err("short");
        assert!(matches!(short, UploadError::Body(BodyError::Short { missing: 1 })), "{short:?}");
    }

    #[test]
    fn only_what_is_safe_is_sent_again() {
        let empty = || RequestBody::empty();
        let full = || RequestBody::new(Body::full("abc"), Some(3));
        for (method, body, fresh, begun) in [
            (Method::GET, empty(), true, true),
            (Method::PUT, empty(), true, true),
            (Method::POST, empty(), true, false),
            (Method::PUT, full(), true, false),
        ] {
            let mut upload = upload(method.clone(), body);
            assert_eq!(upload.rewind(), fresh, "{method}");
            upload.begun = true;
            assert_eq!(upload.rewind(), begun, "{method}");
        }
    }

    proptest! {
        #[test]
        fn chunks_arrive_as_they_were(
            batches in proptest::collection::vec(proptest::collection::vec(1usize..9000, 1..=PIECES), 0..5),
            room in 1usize..70_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let mut upload = upload(Method::POST, RequestBody::empty());
            upload.framing = Framing::Chunked;
            let mut want = String::from_utf8(upload.buffer.clone()).expect("text");
            let text = runtime.block_on(async {
                let (mut near, mut far) = tokio::io::duplex(room);
                let read = tokio::spawn(async move {
                    let mut text = Vec::new();
                    tokio::io::AsyncReadExt::read_to_end(&mut far, &mut text).await.map(|_| text)
                });
                for (i, sizes) in batches.iter().enumerate() {
                    let size = sizes.iter().sum();
                    upload.pieces.extend(sizes.iter().map(|size| Bytes::from("y".repeat(*size))));
                    upload.frame(size).expect("room");
                    want.push_str(&format!("{size:x}\r\n{}\r\n", "y".repeat(size)));
                    if i + 1 == batches.len() {
                        break;
                    }
                    while !upload.pieces.is_empty() || upload.buffer.len() - upload.written >= COPIED {
                        poll_fn(|cx| upload.poll_write(&mut near, cx)).await.expect("written");
                    }
                    if !upload.tail.is_empty() {
                        poll_fn(|cx| upload.poll_write(&mut near, cx)).await.expect("written");
                    }
                }
                upload.end().expect("sound");
                want.push_str("0\r\n\r\n");
                poll_fn(|cx| upload.poll(&mut near, cx)).await.expect("sent");
                drop(near);
                read.await.expect("no panic").expect("read")
            });
            prop_assert_eq!(String::from_utf8(text).expect("text"), want);
        }
    }
}
