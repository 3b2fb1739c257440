//! The body of a response: where it ends, and what becomes of its connection then.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::chunked::{ChunkError, Chunked, Piece};
use super::head::Framing;
use super::upload::{Pump, UploadError};
use super::{Connection, Stream, Switched};
use crate::proxy::http::BodyError;

/// What is read at once: little of a peer that sends little, and no more than stays in a core's cache.
const MIN_READ: usize = 4 * 1024;
const MAX_READ: usize = 32 * 1024;

/// Why a response ended early.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended before the response.
    #[error("the connection ended before the response")]
    Cut,
    /// The coding is broken.
    #[error("{0}")]
    Chunked(#[from] ChunkError),
}

/// The body of a response that is being read. Dropped before its end, it takes the connection with it.
#[derive(Debug)]
pub(in crate::proxy::http) struct Incoming {
    stream: Stream,
    /// Read and not yet used.
    ahead: Bytes,
    decoder: Decoder,
    /// Whether the connection can carry another request when this body has ended.
    persistent: bool,
    /// The rest of the request.
    pump: Option<Pump>,
    /// Size of the next read.
    size: usize,
}

#[derive(Debug)]
enum Decoder {
    Ended,
    Length(u64),
    Chunked(Box<Chunked>),
    UntilClose,
}

impl Incoming {
    pub(super) fn new(stream: Stream, ahead: Bytes, framing: Framing, persistent: bool, pump: Option<Pump>) -> Self {
        let decoder = match framing {
            Framing::None => Decoder::Ended,
            Framing::Length(length) => Decoder::Length(length),
            Framing::Chunked => Decoder::Chunked(Box::new(Chunked::new())),
            Framing::UntilClose => Decoder::UntilClose,
        };
        Self { stream, ahead, decoder, persistent, pump, size: MIN_READ }
    }

    /// The whole body, if it came along with the head.
    pub(in crate::proxy::http) fn take_whole(&mut self) -> Option<Bytes> {
        match self.decoder {
            Decoder::Length(length) if length == self.ahead.len() as u64 && self.pump.is_none() => {
                self.decoder = Decoder::Ended;
                Some(std::mem::take(&mut self.ahead))
            }
            _ => None,
        }
    }

    /// The connection, if the exchange is over and another one may follow: everything has been sent, the end of the response was
    /// clear, and nothing came behind it.
    pub(in crate::proxy::http) fn into_connection(self) -> Option<Connection> {
        let over = matches!(self.decoder, Decoder::Ended) && self.pump.is_none() && self.ahead.is_empty();
        match self.stream {
            Stream::Whole(stream) if over && self.persistent => Some(Connection::new(stream)),
            _ => None,
        }
    }

    /// The connection after a 101. `None` while the request is being sent.
    pub(in crate::proxy::http) fn into_switched(self) -> Option<Switched> {
        match self.stream {
            Stream::Whole(stream) => Some(Switched { ahead: self.ahead, stream }),
            Stream::Half(_) | Stream::Gone => None,
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll_pump(cx)?;
        loop {
            if matches!(self.decoder, Decoder::Ended) {
                return Poll::Ready(None);
            }
            if self.ahead.is_empty() {
                self.ahead = ready!(self.poll_fill(cx)).map_err(ResponseError::from)?;
                if self.ahead.is_empty() {
                    let whole = matches!(self.decoder, Decoder::UntilClose);
                    self.decoder = Decoder::Ended;
                    self.persistent = false;
                    return Poll::Ready(if whole { None } else { Some(Err(ResponseError::Cut.into())) });
                }
            }
            if let Some(frame) = self.decode().map_err(ResponseError::from)? {
                return Poll::Ready(frame.map(Ok));
            }
        }
    }

    /// `None` when more has to be read, `Some(None)` at the end.
    fn decode(&mut self) -> Result<Option<Option<Frame<Bytes>>>, ChunkError> {
        let data = match &mut self.decoder {
            Decoder::Ended => return Ok(Some(None)),
            Decoder::UntilClose => std::mem::take(&mut self.ahead),
            Decoder::Length(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(self.ahead.len());
                *left -= n as u64;
                if *left == 0 {
                    self.decoder = Decoder::Ended;
                }
                self.ahead.split_to(n)
            }
            Decoder::Chunked(chunked) => match chunked.decode(&mut self.ahead)? {
                None => return Ok(None),
                Some(Piece::End(trailers)) => {
                    self.decoder = Decoder::Ended;
                    return Ok(Some(trailers.map(Frame::trailers)));
                }
                Some(Piece::Data(data)) => {
                    if chunked.ends_with(&self.ahead) {
                        self.ahead = Bytes::new();
                        self.decoder = Decoder::Ended;
                    }
                    data
                }
            },
        };
        Ok(Some(Some(Frame::data(data))))
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let size = match self.decoder {
            // One more than is due: a read that does not fill its memory says that there is nothing more.
            Decoder::Length(left) => self.size.min(usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1)),
            _ => self.size,
        };
        let read = ready!(self.stream.poll_fill(size, cx))?;
        self.size = if read.len() >= size { (self.size * 4).min(MAX_READ) } else { read.len().clamp(MIN_READ, MAX_READ) };
        Poll::Ready(Ok(read))
    }

    /// Looks how the sending goes. When it has ended well the connection is whole again.
    fn poll_pump(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        let Some(pump) = &mut self.pump else { return Ok(()) };
        let Poll::Ready(sent) = pump.poll(cx) else { return Ok(()) };
        self.pump = None;
        match sent {
            Ok(write) => {
                self.stream = match std::mem::replace(&mut self.stream, Stream::Gone) {
                    Stream::Half(read) => read.reunite(write).map_or(Stream::Gone, Stream::Whole),
                    other => other,
                };
                Ok(())
            }
            // The backend takes no more; what it says about that is still to be read.
            Err(UploadError::Io(_)) => {
                self.persistent = false;
                Ok(())
            }
            Err(UploadError::Body(error)) => {
                self.persistent = false;
                self.decoder = Decoder::Ended;
                Err(error)
            }
        }
    }
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(this.poll_body(cx));
        if let Some(Err(_)) = &frame {
            this.persistent = false;
            this.decoder = Decoder::Ended;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.decoder, Decoder::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        match self.decoder {
            Decoder::Ended => SizeHint::with_exact(0),
            Decoder::Length(left) => SizeHint::with_exact(left),
            Decoder::Chunked(_) | Decoder::UntilClose => SizeHint::default(),
        }
    }
}
