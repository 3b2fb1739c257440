//! Puts bytes of ours between the frames that the h2 crate writes: a GOAWAY, which its client side cannot be told to send, and
//! bytes that no sane client sends at all.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What waits to be put in. Whoever adds to it has to poll the connection afterwards.
#[derive(Clone, Debug, Default)]
pub(super) struct Injections(Arc<Mutex<VecDeque<Bytes>>>);

impl Injections {
    pub(super) fn push(&self, bytes: Bytes) {
        self.lock().push_back(bytes);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An IO that keeps track of where the frames written to it end.
#[derive(Debug)]
pub(super) struct InjectIo<T> {
    io: T,
    frames: Frames,
    injections: Injections,
    /// Bytes of an injection that is under way.
    current: Bytes,
}

impl<T> InjectIo<T> {
    pub(super) fn new(io: T, injections: Injections) -> Self {
        Self { io, frames: Frames { skip: PREFACE, ..Frames::default() }, injections, current: Bytes::new() }
    }
}

/// Bytes that a client sends before its first frame.
const PREFACE: usize = 24;
const HEADER: usize = 9;

/// Where in a stream of frames we are.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes until the next frame's header.
    skip: usize,
    header: [u8; HEADER],
    have: usize,
}

impl Frames {
    fn advance(&mut self, mut written: &[u8]) {
        while !written.is_empty() {
            if self.skip > 0 {
                let n = self.skip.min(written.len());
                self.skip -= n;
                written = &written[n..];
                continue;
            }
            self.header[self.have] = written[0];
            self.have += 1;
            written = &written[1..];
            if self.have == HEADER {
                self.skip = usize::from(self.header[0]) << 16 | usize::from(self.header[1]) << 8 | usize::from(self.header[2]);
                self.have = 0;
            }
        }
    }

    fn at_boundary(&self) -> bool {
        self.skip == 0 && self.have == 0
    }
}

impl<T: AsyncWrite + Unpin> InjectIo<T> {
    fn poll_inject(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wrote = false;
        loop {
            if self.current.is_empty() {
                match if self.frames.at_boundary() { self.injections.lock().pop_front() } else { None } {
                    Some(bytes) => self.current = bytes,
                    None if wrote => return Pin::new(&mut self.io).poll_flush(cx),
                    None => return Poll::Ready(Ok(())),
                }
            }
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, &self.current))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.current.advance(n);
            wrote = true;
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for InjectIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The connection's task reads whenever it runs, also when it has nothing to write.
        let _ = self.poll_inject(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for InjectIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_inject(cx))?;
        let n = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.frames.advance(&buf[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_inject(cx))?;
        let n = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs))?;
        let mut left = n;
        for buf in bufs {
            let here = left.min(buf.len());
            self.frames.advance(&buf[..here]);
            left -= here;
        }
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_inject(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A GOAWAY frame of a client without fault: no error, and no stream of the server's that it has seen.
pub(super) const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn bytes_go_between_frames_only() {
        let (near, mut far) = tokio::io::duplex(4096);
        let injections = Injections::default();
        let mut io = InjectIo::new(near, injections.clone());
        let frame = [&[0, 0, 3, 0, 0, 0, 0, 0, 1][..], b"abc"].concat();
        io.write_all(&[b'P'; PREFACE]).await.unwrap();
        io.write_all(&frame[..5]).await.unwrap();
        injections.push(Bytes::from_static(b"<>"));
        io.write_all(&frame[5..10]).await.unwrap();
        io.write_all(&frame[10..]).await.unwrap();
        io.write_all(&frame).await.unwrap();
        drop(io);
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&[b'P'; PREFACE][..], &frame, b"<>", &frame].concat());
    }
}
