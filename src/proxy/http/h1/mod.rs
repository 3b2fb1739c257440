//! A client of HTTP/1.1 (RFC 9112): a connection carries one request after the other, driven by whoever waits for the response.
//!
//! No task, queue or buffer stays with a connection between requests, so that thousands of idle ones cost little more than their
//! sockets. What frames a message is decided by its body alone and never by a field that somebody else wrote, and a connection
//! on which anything was unclear carries no second request. Which connection a request gets is in `pool`.

mod chunked;
mod head;
mod incoming;
mod upload;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use self::head::{Head, HeadError, Heads};
pub(super) use self::incoming::Incoming;
pub use self::incoming::ResponseError;
pub(super) use self::upload::Upload;
use self::upload::{Pump, UploadError};
use crate::proxy::error::{Error, Kind};

/// A connection on which no request is under way.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// A connection that has carried nothing yet.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream }
    }

    /// Whether the peer has left the connection alone: neither closed it nor sent what nobody asked for.
    pub(super) fn is_unused(&self) -> bool {
        matches!(self.stream.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request and waits for the head of the response. Interim responses are swallowed (RFC 9110 §15.2). A response that
    /// comes before the request has been sent does not stop the sending; the end of that response does.
    ///
    /// # Errors
    /// [`Kind::RequestBody`], [`Kind::Closed`] or [`Kind::BadResponse`]. `upload` can be sent once more when
    /// [`Upload::rewind`] says so.
    pub(super) async fn send(mut self, upload: &mut Upload) -> Result<Response<Incoming>, Error> {
        let mut heads = Heads::default();
        let mut broken = None;
        let (head, ahead) = poll_fn(|cx| self.poll_response(upload, &mut broken, &mut heads, cx)).await?;
        let pump = if upload.is_done() {
            None
        } else if broken.is_some() {
            upload.give_up();
            None
        } else {
            Some(upload.take())
        };
        Ok(respond(self.stream, head, ahead, upload.is_head(), pump, broken.is_none()))
    }

    /// Sends what can be sent and reads what there is. An error of sending waits in `broken`: a backend that refuses a request
    /// says so and hangs up, and what it said is still to be read.
    fn poll_response(
        &mut self,
        upload: &mut Upload,
        broken: &mut Option<io::Error>,
        heads: &mut Heads,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Head, Bytes), Error>> {
        if broken.is_none() && !upload.is_done() {
            match upload.poll(&mut self.stream, cx) {
                Poll::Ready(Err(UploadError::Body(e))) => return Poll::Ready(Err(Error::new(Kind::RequestBody, e))),
                Poll::Ready(Err(UploadError::Io(e))) => *broken = Some(e),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        Poll::Ready(match ready!(heads.poll(&mut self.stream, cx)) {
            Ok(head) => Ok(head),
            Err(HeadError::Io(e)) => Err(Error::new(Kind::Closed, broken.take().unwrap_or(e))),
            Err(e) => Err(Error::new(Kind::BadResponse, e)),
        })
    }
}

fn respond(
    stream: TcpStream,
    head: Head,
    ahead: Bytes,
    to_head: bool,
    upload: Option<Upload>,
    sound: bool,
) -> Response<Incoming> {
    let Head { status, headers, framing, persistent } = head;
    let (stream, pump) = match upload {
        Some(upload) => {
            let (read, write) = stream.into_split();
            (Stream::Half(read), Some(Pump::spawn(upload, write)))
        }
        None => (Stream::Whole(stream), None),
    };
    let framing = if to_head { head::Framing::None } else { framing };
    let mut response = Response::new(Incoming::new(stream, ahead, framing, persistent && sound, pump));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// A connection under a response.
#[derive(Debug)]
enum Stream {
    Whole(TcpStream),
    /// The request is still being sent.
    Half(tokio::net::tcp::OwnedReadHalf),
    /// Given away.
    Gone,
}

impl Stream {
    /// Waits until there is something to read, then reads up to `size` bytes into memory of their own: a response that waits
    /// holds none. Empty at the end.
    fn poll_fill(&mut self, size: usize, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        match self {
            Self::Whole(stream) => {
                ready!(stream.poll_read_ready(cx))?;
                poll_fill(stream, size, cx)
            }
            Self::Half(half) => {
                ready!(half.as_ref().poll_read_ready(cx))?;
                poll_fill(half, size, cx)
            }
            Self::Gone => Poll::Ready(Ok(Bytes::new())),
        }
    }
}

/// A read that fills less than a quarter of its memory is copied out of it: a peer that drips bytes must not make each of them
/// hold a whole buffer.
fn poll_fill(stream: &mut (impl AsyncRead + Unpin), size: usize, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
    let mut buffer = BytesMut::with_capacity(size);
    let n = ready!(poll_read_buf(Pin::new(stream), cx, &mut buffer))?;
    Poll::Ready(Ok(if n < size / 4 { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }))
}

/// A connection that has switched protocols, with what was read of the new one along with the head.
#[derive(Debug)]
pub(super) struct Switched {
    ahead: Bytes,
    stream: TcpStream,
}

impl AsyncRead for Switched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let n = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..n]);
        self.ahead.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Switched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
