//! Heads: how a request's is written, and how a response's is read.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Uri};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use crate::proxy::http::framing;

/// Most bytes of a response's head, interim responses each for itself. Envoy's limit is 60 KiB, nginx's 4 to 8.
const MAX_HEAD: usize = 64 * 1024;
/// Most fields of a response, as in Envoy.
pub(super) const MAX_FIELDS: usize = 100;
/// Most interim responses before the final one.
const MAX_INTERIM: usize = 100;
/// Room for a usual head and a small body, so that both come in one read.
const FIRST_READ: usize = 4096;

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body.
    None,
    /// Bytes.
    Length(u64),
    Chunked,
    /// The connection ends with it; of responses only.
    UntilClose,
}

/// Writes the head of a request in origin form. Fields that frame a message are written by `framing`, whatever the map says; a
/// length of a request without a body stays, for it tells the backend that none comes.
pub(super) fn encode(method: &Method, uri: &Uri, headers: &HeaderMap, framing: Framing) -> Vec<u8> {
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let fields: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let mut out = Vec::with_capacity(method.as_str().len() + target.len() + fields + 64);
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in headers {
        if *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING {
            field(&mut out, name.as_str(), value.as_bytes());
        }
    }
    match framing {
        Framing::Length(length) => field(&mut out, "content-length", length.to_string().as_bytes()),
        Framing::Chunked => field(&mut out, "transfer-encoding", b"chunked"),
        Framing::None if headers.contains_key(CONTENT_LENGTH) => field(&mut out, "content-length", b"0"),
        Framing::None | Framing::UntilClose => {}
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The head of a response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Of a response to anything but HEAD.
    pub(super) framing: Framing,
    /// Whether the connection may carry another request.
    pub(super) persistent: bool,
}

/// Why there is no head.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("a response that is no HTTP/1.1: {0}")]
    Malformed(#[from] httparse::Error),
    #[error("a response with a status of {0}")]
    Status(u16),
    #[error("a response with a field that is none")]
    Field,
    #[error("a response whose length can be read in two ways")]
    Length,
    #[error("the head of a response is larger than {MAX_HEAD} bytes")]
    TooLarge,
    #[error("more than {MAX_INTERIM} interim responses")]
    Interim,
}

/// Reads heads up to the first that is final.
#[derive(Debug, Default)]
pub(super) struct Heads {
    read: BytesMut,
    /// Bytes of `read` that are known not to end a head.
    seen: usize,
    interim: usize,
}

impl Heads {
    /// The final head, and what was read behind it.
    pub(super) fn poll(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<Result<(Head, Bytes), HeadError>> {
        loop {
            if let Some(found) = self.next()? {
                return Poll::Ready(Ok(found));
            }
            let read = ready!(self.poll_read(stream, cx))?;
            if read == 0 {
                let what = if self.read.is_empty() { "no response" } else { "the end of it in a response's head" };
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, what).into()));
            }
        }
    }

    fn poll_read(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() == self.read.len() {
            // Memory only for what is there: a request that waits for its answer holds none.
            ready!(stream.poll_read_ready(cx))?;
            self.read.reserve(if self.read.is_empty() { FIRST_READ } else { self.read.len() });
        }
        poll_read_buf(Pin::new(stream), cx, &mut self.read)
    }

    /// The final head, if all of it has been read.
    fn next(&mut self) -> Result<Option<(Head, Bytes)>, HeadError> {
        while !self.read.is_empty() {
            // A head that comes in drops is not read again for each.
            if self.seen > 0 && !has_empty_line(&self.read[self.seen.saturating_sub(2)..]) {
                break;
            }
            let read = std::mem::take(&mut self.read).freeze();
            let Some((head, length)) = parse(&read)? else {
                // Whole again, and without a copy: nobody else has it.
                self.read = BytesMut::from(read);
                break;
            };
            let rest = read.slice(length..);
            if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some((head, rest)));
            }
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(HeadError::Interim);
            }
            self.seen = 0;
            self.read = BytesMut::from(&rest[..]);
        }
        self.seen = self.read.len();
        if self.seen >= MAX_HEAD { Err(HeadError::TooLarge) } else { Ok(None) }
    }
}

/// Whether a line ends and the next one is empty.
fn has_empty_line(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|w| w == b"\n\n") || bytes.windows(3).any(|w| w == b"\n\r\n")
}

/// A head and its length; `None` when it is not whole.
fn parse(bytes: &Bytes) -> Result<Option<(Head, usize)>, HeadError> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    let httparse::Status::Complete(length) = parsed? else { return Ok(None) };
    let code = response.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).map_err(|_| HeadError::Status(code))?;
    let mut headers = header_map(bytes, response.headers)?;
    let http11 = response.version == Some(1);
    let (framing, clear) = framing_of(status, &mut headers, http11)?;
    let persistent = clear && framing != Framing::UntilClose && persists(&headers, http11);
    Ok(Some((Head { status, headers, framing, persistent }, length)))
}

/// Fields whose values share the memory of `bytes`, which they are a part of.
pub(super) fn header_map(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<HeaderMap, HeadError> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Field)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value)).map_err(|_| HeadError::Field)?;
        headers.try_append(name, value).map_err(|_| HeadError::TooLarge)?;
    }
    Ok(headers)
}

/// How long the body is (RFC 9112 §6.3), and whether there is no doubt about it.
fn framing_of(status: StatusCode, headers: &mut HeaderMap, http11: bool) -> Result<(Framing, bool), HeadError> {
    let (coded, sized) = (headers.contains_key(TRANSFER_ENCODING), headers.contains_key(CONTENT_LENGTH));
    if coded && !http11 {
        return Err(HeadError::Length);
    }
    let length = framing::response_length(headers).map_err(|_| HeadError::Length)?;
    let bodiless = status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let framing = match length {
        _ if bodiless => Framing::None,
        _ if coded => Framing::Chunked,
        Some(0) => Framing::None,
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    };
    Ok((framing, !(coded && sized)))
}

/// RFC 9112 §9.3.
fn persists(headers: &HeaderMap, http11: bool) -> bool {
    let says = |option: &str| {
        let values = headers.get_all(CONNECTION).iter();
        values.flat_map(|v| v.as_bytes().split(|b| *b == b',')).any(|o| o.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
    };
    if http11 { !says("close") } else { says("keep-alive") && !says("close") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(Head, usize)>, HeadError> {
        parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    fn shape(text: &str) -> (Framing, bool) {
        let (head, length) = read(text).expect("sound").expect("whole");
        assert_eq!(length, text.len());
        (head.framing, head.persistent)
    }

    #[test]
    fn the_end_of_a_body_is_known_or_the_connection_carries_no_other() {
        let cases = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Framing::Length(5), true),
            ("HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", Framing::None, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", Framing::Chunked, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n", Framing::Chunked, false),
            ("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false),
            ("HTTP/1.1 204 No Content\r\n\r\n", Framing::None, true),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", Framing::None, true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: x, CLOSE\r\n\r\n", Framing::Length(5), false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", Framing::Length(5), false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\n", Framing::Length(5), true),
        ];
        for (text, framing, persistent) in cases {
            assert_eq!(shape(text), (framing, persistent), "{text:?}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_head() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length : 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "220 mail.example ESMTP\r\n\r\n",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_head_is_the_same_in_whatever_pieces_it_comes() {
        let text = b"\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\nx: y\n\nbody";
        for step in 1..text.len() {
            let mut heads = Heads::default();
            let mut found = None;
            let mut left = &text[..];
            while found.is_none() {
                let (piece, rest) = left.split_at(step.min(left.len()));
                heads.read.extend_from_slice(piece);
                left = rest;
                found = heads.next().expect("sound");
            }
            let (head, ahead) = found.expect("found");
            assert_eq!((head.status, head.headers.len()), (StatusCode::OK, 1), "step {step}");
            assert!(b"body".starts_with(&ahead[..]) && ahead.len() + left.len() == 4, "step {step}");
        }
    }

    #[test]
    fn the_frame_of_a_request_is_its_bodys_and_not_what_its_fields_say() {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("a.example"));
        let text = |headers: &HeaderMap, framing| {
            let uri = Uri::from_static("/a?b");
            String::from_utf8(encode(&Method::GET, &uri, headers, framing)).expect("text")
        };
        let start = "GET /a?b HTTP/1.1\r\nhost: a.example\r\n";
        assert_eq!(text(&headers, Framing::None), format!("{start}\r\n"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(text(&headers, Framing::None), format!("{start}content-length: 0\r\n\r\n"));
        assert_eq!(text(&headers, Framing::Length(5)), format!("{start}content-length: 5\r\n\r\n"));
        assert_eq!(text(&headers, Framing::Chunked), format!("{start}transfer-encoding: chunked\r\n\r\n"));
    }
}
