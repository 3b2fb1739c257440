//! The byte stream under hyper: gives back what was read to tell the protocol, notes signs of life, and resets what was cut.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::activity::Activity;

/// The preface of an HTTP/2 client (RFC 9113 §3.4). No method of HTTP/1.1 is called PRI.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most that is read to tell the protocol; room for a usual head, so that it takes no second read.
const FIRST_READ: usize = 2048;

/// Reads until it is clear whether the client speaks HTTP/2. Returns that, and the bytes read.
///
/// # Errors
/// When the stream fails. One that ends early is left to HTTP/1.1.
pub(super) async fn detect(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(bool, Bytes)> {
    let mut read = Vec::with_capacity(FIRST_READ);
    loop {
        let n = io.read_buf(&mut read).await?;
        let head = &read[..read.len().min(PREFACE.len())];
        if head.len() == PREFACE.len() || n == 0 || !PREFACE.starts_with(head) {
            return Ok((head == PREFACE, read.into()));
        }
    }
}

/// A byte stream over a TCP connection.
pub(super) trait Carrier {
    fn tcp(&self) -> &TcpStream;
}

impl Carrier for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Carrier for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// A byte stream that is watched.
pub(super) struct Watched<IO: Carrier> {
    io: IO,
    /// Read before, to be read again.
    ahead: Bytes,
    activity: Arc<Activity>,
}

impl<IO: Carrier> Watched<IO> {
    pub(super) fn new(io: IO, ahead: Bytes, activity: Arc<Activity>) -> Self {
        Self { io, ahead, activity }
    }

    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity.wrote(result.is_ready());
        result
    }
}

impl<IO: Carrier> Drop for Watched<IO> {
    fn drop(&mut self) {
        if self.activity.is_cut() {
            // Closed in good order, megabytes that nobody takes would stay with the kernel for as long as the client likes.
            let _ = self.io.tcp().set_zero_linger();
        }
    }
}

impl<IO: AsyncRead + Carrier + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ahead.is_empty() {
            let result = Pin::new(&mut this.io).poll_read(cx, buf);
            if result.is_ready() {
                this.activity.read();
            }
            return result;
        }
        let n = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead[..n]);
        this.ahead.advance(n);
        if this.ahead.is_empty() {
            // Its memory goes, too.
            this.ahead = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Carrier + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(result)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(cx);
        if result.is_pending() {
            // TLS takes all it is given and holds it back.
            self.activity.wrote(false);
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn detected(sent: &[u8]) -> (bool, Bytes) {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let client = tokio::spawn({
            let sent = sent.to_vec();
            async move {
                for byte in sent {
                    far.write_all(&[byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let found = detect(&mut near).await.unwrap();
        client.abort();
        found
    }

    #[tokio::test]
    async fn the_protocol_is_told_from_as_few_bytes_as_possible_and_none_is_lost() {
        assert_eq!(detected(PREFACE).await, (true, Bytes::from_static(PREFACE)));
        for (sent, read) in [(&b"GET / HTTP/1.1"[..], &b"G"[..]), (b"POST", b"PO"), (b"PRI / HTTP/1.1", b"PRI /"), (b"PR", b"PR")]
        {
            let (http2, ahead) = detected(sent).await;
            assert!(!http2);
            assert!(sent.starts_with(&ahead) && ahead.starts_with(read), "{ahead:?}");
        }
    }

    #[tokio::test]
    async fn what_was_read_ahead_comes_first() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (far, near) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut far, (near, _)) = (far.unwrap(), near.unwrap());
        far.write_all(b"def").await.unwrap();
        drop(far);
        let mut io = Watched::new(near, Bytes::from_static(b"abc"), Activity::new(true));
        let mut small = [0; 2];
        io.read_exact(&mut small).await.unwrap();
        assert_eq!(&small, b"ab");
        let mut rest = Vec::new();
        io.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"cdef");
    }
}
