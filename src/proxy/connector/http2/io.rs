//! Byte streams below and above HTTP/2: the socket, watched for signs of life and for GOAWAY (which `h2` keeps from a server);
//! and one stream as something to read from and write to.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

/// Counts what the peer sends.
#[derive(Debug, Default)]
pub(super) struct Traffic(AtomicU64);

impl Traffic {
    pub(super) fn bytes_read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A socket that counts what is read and notices a GOAWAY frame.
pub(super) struct Watched<IO> {
    io: IO,
    traffic: Arc<Traffic>,
    frames: Frames,
    leaving: CancellationToken,
    /// Set once our side is shut down: how long the peer has to close its own.
    linger: Option<Pin<Box<Sleep>>>,
}

impl<IO> Watched<IO> {
    pub(super) fn new(io: IO, traffic: Arc<Traffic>, leaving: CancellationToken) -> Self {
        Self { io, traffic, frames: Frames::default(), leaving, linger: None }
    }
}

impl<IO: AsyncRead + Unpin> Watched<IO> {
    /// Reads until the peer closes, or for as long as it may take. A socket that is closed with something unread resets the
    /// connection, which takes back what the peer has not read yet: the ends of responses.
    fn poll_linger(&mut self, limit: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(limit)));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut rest = [0; 1024];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let fresh = &buf.filled()[before..];
        self.traffic.0.fetch_add(fresh.len() as u64, Ordering::Relaxed);
        if self.frames.scan(fresh) {
            self.leaving.cancel();
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        }
        self.poll_linger(super::CLOSE_TIMEOUT, cx).map(Ok)
    }
}

/// The preface of a client, in front of its first frame (RFC 9113 §3.4).
const PREFACE: usize = 24;
/// Length, type, flags, stream (RFC 9113 §4.1).
const FRAME_HEAD: usize = 9;
const GOAWAY: u8 = 7;

/// Where in the sequence of frames the bytes are.
struct Frames {
    skip: usize,
    head: [u8; FRAME_HEAD],
    have: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self { skip: PREFACE, head: [0; FRAME_HEAD], have: 0 }
    }
}

impl Frames {
    /// Follows the bytes; true when a GOAWAY frame starts among them.
    fn scan(&mut self, mut bytes: &[u8]) -> bool {
        let mut goaway = false;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (FRAME_HEAD - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == FRAME_HEAD {
                self.have = 0;
                self.skip = usize::from(self.head[0]) << 16 | usize::from(self.head[1]) << 8 | usize::from(self.head[2]);
                goaway |= self.head[3] == GOAWAY;
            }
        }
        goaway
    }
}

/// One stream, both ways. Dropping it before the end of writing resets it.
pub(super) struct StreamIo {
    recv: RecvStream,
    send: SendStream<Bytes>,
    /// Read, but not handed out yet.
    ahead: Bytes,
    ended: bool,
}

impl StreamIo {
    pub(super) fn new(recv: RecvStream, send: SendStream<Bytes>) -> Self {
        Self { recv, send, ahead: Bytes::new(), ended: false }
    }
}

impl AsyncRead for StreamIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.ahead.is_empty() {
            match ready!(self.recv.poll_data(cx)) {
                Some(data) => self.ahead = data.map_err(io::Error::other)?,
                None => return Poll::Ready(Ok(())),
            }
        }
        let n = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..n]);
        self.ahead.advance(n);
        // What was handed out is the reader's; only then may the peer send more.
        self.recv.flow_control().release_capacity(n).map_err(io::Error::other)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let n = ready!(poll_room(&mut self.send, buf.len().min(super::SEND_BUFFER), cx))?;
        let piece = Bytes::copy_from_slice(&buf[..n]);
        self.send.send_data(piece, false).map_err(io::Error::other)?;
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task sends whatever it has been given.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.ended, true) {
            self.send.send_data(Bytes::new(), true).map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Waits until between 1 and `wanted` bytes may be sent; an error once the stream is reset.
pub(super) fn poll_room(send: &mut SendStream<Bytes>, wanted: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    send.reserve_capacity(wanted);
    while send.capacity() == 0 {
        match ready!(send.poll_capacity(cx)) {
            Some(room) => drop(room.map_err(io::Error::other)?),
            None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
    Poll::Ready(Ok(send.capacity().min(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, 0, 0, 0, 0, 0], payload].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_is_kept_until_the_peer_closes_or_takes_too_long() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        for peer_closes in [true, false] {
            let (near, mut far) = tokio::io::duplex(64);
            let mut io = Watched::new(near, Arc::default(), CancellationToken::new());
            io.write_all(b"goodbye").await.expect("written");
            far.write_all(b"what nobody reads any more").await.expect("written");
            let start = tokio::time::Instant::now();
            let peer = tokio::spawn(async move {
                sleep(Duration::from_millis(100)).await;
                let mut seen = Vec::new();
                far.read_to_end(&mut seen).await.expect("read");
                if !peer_closes {
                    sleep(Duration::from_secs(60)).await;
                }
                seen
            });
            io.shutdown().await.expect("shut down");
            let limit = if peer_closes { Duration::from_millis(100) } else { crate::proxy::connector::http2::CLOSE_TIMEOUT };
            assert!(start.elapsed().abs_diff(limit) < Duration::from_millis(10), "{:?}", start.elapsed());
            drop(io);
            assert_eq!(peer.await.expect("no panic"), b"goodbye");
        }
    }

    #[test]
    fn a_goaway_is_seen_wherever_the_reads_cut_and_never_in_a_payload() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, &[]));
        bytes.extend(frame(0, &frame(GOAWAY, &[0; 8])));
        let quiet = bytes.len();
        bytes.extend(frame(GOAWAY, &[0; 8]));
        for size in 1..bytes.len() {
            let mut frames = Frames::default();
            let mut seen = 0;
            for (i, chunk) in bytes.chunks(size).enumerate() {
                if frames.scan(chunk) {
                    assert!((i + 1) * size >= quiet + FRAME_HEAD, "chunks of {size}");
                    seen += 1;
                }
            }
            assert_eq!(seen, 1, "chunks of {size}");
        }
    }
}
