//! One stream that the edge has opened over QUIC (tunnel-protocol §5.2 to §5.5): its head, and its answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::io::{AsyncReadExt as _, AsyncWrite};
use tokio::sync::Semaphore;

use super::STREAM_WINDOW;
use crate::proxy::connector::control::RPC_TIMEOUT;
use crate::proxy::connector::stream::{Answer, HEAD_TIMEOUT, Streams};
use crate::proxy::connector::uploads::{self, Held};
use crate::proxy::connector::wire::WireError;
use crate::proxy::connector::wire::message::Limits;
use crate::proxy::connector::wire::rpc::{ConfigurationEvent, ConfigurationServer};
use crate::proxy::connector::wire::stream::{
    ConnectKind, ConnectRequest, ConnectResponse, HTTP_HEADER, HTTP_HOST, HTTP_METHOD, HTTP_STATUS, Opening,
};
use crate::proxy::http::body::QuicBody;
use crate::proxy::http::relay::relay;
use crate::proxy::http::{Body, BodyError, Serve, UpgradedIo};

/// Largest piece of a head that is read at once, and most of a head that is held without a place among the large ones.
const HEAD_CHUNK: usize = 16 * 1024;

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Read(#[from] quinn::ReadError),
    #[error(transparent)]
    Write(#[from] quinn::WriteError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the edge ended it inside its head")]
    Cut,
    #[error("the edge took too long for its head")]
    Slow,
    #[error("the edge does not want the response any more")]
    Stopped,
    #[error("its backend takes nothing of the upload")]
    Stalled,
    #[error("response body: {0}")]
    Body(BodyError),
}

/// Why a request's head cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum InvalidRequest {
    #[error("tcp flows are not served by this connector")]
    Tcp,
    #[error("the {0} is missing, malformed or there twice")]
    Field(&'static str),
    #[error("the header {0:?} is malformed")]
    Header(String),
}

/// The sending half, which is reset rather than finished when it is dropped early: quinn would finish it, and a truncated body
/// would look complete.
struct Sender {
    stream: SendStream,
    finished: bool,
}

impl Sender {
    fn finish(&mut self) {
        self.finished = true;
        // Stopped by the peer already: nothing is left to finish.
        drop(self.stream.finish());
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.finished {
            drop(self.stream.reset(VarInt::from_u32(0)));
        }
    }
}

impl AsyncWrite for Sender {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.stream), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.stream), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

/// Answers a stream of any kind.
pub(super) async fn serve<S: Serve>(streams: Arc<Streams<S>>, send: SendStream, mut recv: RecvStream) {
    let send = Sender { stream: send, finished: false };
    let mut ahead = BytesMut::new();
    let opening = tokio::time::timeout(HEAD_TIMEOUT, read_opening(&streams.large_heads, &mut recv, &mut ahead)).await;
    let done = match opening.unwrap_or(Err(StreamError::Slow)) {
        Ok(Opening::Request(head)) => forward(&streams, head, ahead.freeze(), send, recv).await,
        Ok(Opening::Rpc) => {
            let serving = serve_rpc(&streams, ahead, send, recv);
            tokio::time::timeout(RPC_TIMEOUT, serving).await.unwrap_or(Err(StreamError::Slow))
        }
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        tracing::debug!(conn_index = streams.index, error = %error, "Stream ended early");
    }
}

/// Reads the head. What is read is out of reach of the stream's window, so that a head of more than [`HEAD_CHUNK`] waits for one
/// of the places in `large`: thousands of streams that stop inside their heads would hold a megabyte each.
async fn read_opening(large: &Semaphore, recv: &mut RecvStream, ahead: &mut BytesMut) -> Result<Opening, StreamError> {
    let mut place = None;
    loop {
        let room = HEAD_CHUNK - ahead.len().min(HEAD_CHUNK);
        if room == 0 && place.is_none() {
            // Never closed; without a place the stream is given up by its deadline.
            place = large.acquire().await.ok();
        }
        let most = if room == 0 { HEAD_CHUNK } else { room };
        let Some(chunk) = recv.read_chunk(most, true).await? else { return Err(StreamError::Cut) };
        ahead.extend_from_slice(&chunk.bytes);
        if let Some(opening) = Opening::take(ahead, &Limits::DEFAULT)? {
            return Ok(opening);
        }
    }
}

/// An RPC stream: configuration pushes, acknowledged (§7, §8.2).
async fn serve_rpc<S>(
    streams: &Streams<S>,
    mut input: BytesMut,
    mut send: Sender,
    mut recv: RecvStream,
) -> Result<(), StreamError> {
    let mut server = ConfigurationServer::new();
    loop {
        let events = server.receive(&input);
        let mut output = server.take_output();
        let mut aborted = false;
        for event in events? {
            match event {
                ConfigurationEvent::UpdateConfiguration { call, version, .. } => {
                    let applied = streams.pushed.apply(version);
                    tracing::debug!(conn_index = streams.index, version, applied, "Acknowledged a configuration push");
                    output.extend(server.answer(call, applied, None)?);
                }
                ConfigurationEvent::Aborted(_) => aborted = true,
            }
        }
        send.stream.write_all(&output).await?;
        if aborted {
            break;
        }
        let Some(chunk) = recv.read_chunk(HEAD_CHUNK, true).await? else { break };
        input = BytesMut::from(&chunk.bytes[..]);
    }
    send.finish();
    Ok(())
}

async fn forward<S: Serve>(
    streams: &Streams<S>,
    head: ConnectRequest,
    ahead: Bytes,
    mut send: Sender,
    recv: RecvStream,
) -> Result<(), StreamError> {
    let parsed = match Parsed::try_from(head) {
        Ok(parsed) => parsed,
        Err(error @ InvalidRequest::Tcp) => return refuse(&mut send, StatusCode::BAD_GATEWAY, Some(&error)).await,
        Err(error) => {
            tracing::debug!(conn_index = streams.index, error = %error, "Request refused");
            return refuse(&mut send, StatusCode::BAD_REQUEST, None).await;
        }
    };
    let Parsed { authority, request, length, websocket } = parsed;
    let is_head = request.method() == Method::HEAD;
    let has_body = !websocket && length != Length::None;
    // A stream that is not read as a body is kept to the end: dropping it tells the edge to stop sending.
    let length = match length {
        Length::Known(length) => Some(length),
        Length::None | Length::Unknown => None,
    };
    let (body, upload, mut kept) = if has_body {
        let held = Held::quic(STREAM_WINDOW.into_inner(), length);
        let (body, upload) = streams.uploads.watch(Body::Quic(QuicBody::after(ahead, recv, length)), held);
        (body, Some(upload), None)
    } else {
        (Body::Empty, None, Some((ahead, recv)))
    };
    let stopped = send.stream.stopped();
    tokio::pin!(stopped);
    let answer = tokio::select! {
        biased;
        // The client is gone: dropping the other future cancels the request to the backend (§5.5).
        _ = &mut stopped => return Err(StreamError::Stopped),
        () = given_up(kept.as_mut().map(|(_, recv)| recv)) => return Err(StreamError::Stopped),
        () = uploads::given_up(upload.as_deref()) => return refuse(&mut send, StatusCode::GATEWAY_TIMEOUT, None).await,
        answer = streams.answer(authority, websocket, false, request.map(|()| body)) => answer,
    };
    match (answer, kept) {
        (Answer::Response(response), _) => {
            tokio::select! {
                sent = send_response(&mut send, response, is_head) => sent?,
                () = uploads::given_up(upload.as_deref()) => return Err(StreamError::Stalled),
                _ = &mut stopped => return Err(StreamError::Stopped),
            }
        }
        (Answer::Upgrade(head, io), Some((ahead, recv))) => upgrade(send, &head, io, ahead, recv).await?,
        (Answer::Upgrade(..), None) => refuse(&mut send, StatusCode::BAD_GATEWAY, None).await?,
        (Answer::Refuse(status), _) => refuse(&mut send, status, None).await?,
    }
    // Under way until the edge has all of it: a connection that is closed takes back what is not acknowledged.
    drop(stopped.await);
    Ok(())
}

/// Resolves when the edge resets a stream that is not read as a body: the client is gone. A body that is read says so itself.
async fn given_up(recv: Option<&mut RecvStream>) {
    if let Some(recv) = recv
        && matches!(recv.received_reset().await, Ok(Some(_)))
    {
        return;
    }
    std::future::pending().await
}

/// The connector's own answer: a status, or with `error` none at all, which clients see as 502.
async fn refuse(send: &mut Sender, status: StatusCode, error: Option<&InvalidRequest>) -> Result<(), StreamError> {
    let metadata = vec![(HTTP_STATUS.to_owned(), Bytes::from(status.as_str().to_owned()))];
    let response = ConnectResponse { error: error.map(ToString::to_string).unwrap_or_default(), metadata };
    send.stream.write_all(&response.encode()?).await?;
    send.finish();
    Ok(())
}

/// The head as the edge wants it (§5.4). `length` is the body's, when it is known and the response does not say it itself.
fn head(status: StatusCode, headers: &http::HeaderMap, length: Option<u64>) -> Result<Vec<u8>, WireError> {
    let mut metadata = Vec::with_capacity(headers.len() + 2);
    metadata.push((HTTP_STATUS.to_owned(), Bytes::from(status.as_str().to_owned())));
    for (name, value) in headers {
        metadata.push((format!("{HTTP_HEADER}{name}"), Bytes::copy_from_slice(value.as_bytes())));
    }
    if let Some(length) = length {
        metadata.push((format!("{HTTP_HEADER}{}", header::CONTENT_LENGTH), Bytes::from(length.to_string())));
    }
    ConnectResponse { error: String::new(), metadata }.encode()
}

async fn send_response(send: &mut Sender, response: Response<Body>, is_head: bool) -> Result<(), StreamError> {
    let (mut parts, mut body) = response.into_parts();
    if parts.status == StatusCode::NO_CONTENT {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let no_body = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let says_length = parts.headers.contains_key(header::CONTENT_LENGTH);
    let length = body.size_hint().exact().filter(|_| !no_body && !says_length);
    send.stream.write_chunk(head(parts.status, &parts.headers, length)?.into()).await?;
    while !no_body && !body.is_end_stream() {
        match body.frame().await {
            // Trailers have no place on QUIC (§5.4).
            Some(frame) => match frame.map_err(StreamError::Body)?.into_data() {
                Ok(data) => send.stream.write_chunk(data).await?,
                Err(_trailers) => break,
            },
            None => break,
        }
    }
    send.finish();
    Ok(())
}

async fn upgrade(
    mut send: Sender,
    response: &Response<()>,
    io: UpgradedIo,
    ahead: Bytes,
    recv: RecvStream,
) -> Result<(), StreamError> {
    send.stream.write_chunk(head(response.status(), response.headers(), None)?.into()).await?;
    let edge = tokio::io::join(io::Cursor::new(ahead).chain(recv), send);
    relay(edge, io).await?;
    Ok(())
}

/// How much body follows a request's head (§5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    None,
    Known(u64),
    Unknown,
}

/// A request's head as HTTP.
#[derive(Debug)]
struct Parsed {
    authority: String,
    request: Request<()>,
    length: Length,
    websocket: bool,
}

impl TryFrom<ConnectRequest> for Parsed {
    type Error = InvalidRequest;

    fn try_from(head: ConnectRequest) -> Result<Self, InvalidRequest> {
        if head.kind == ConnectKind::Tcp {
            return Err(InvalidRequest::Tcp);
        }
        let mut request = Request::new(());
        *request.uri_mut() = origin_form(&head.dest).ok_or(InvalidRequest::Field("destination"))?;
        let (mut method, mut authority) = (None, None);
        for (key, value) in head.metadata {
            if key == HTTP_METHOD {
                let read = Method::from_bytes(&value).ok().filter(|m| *m != Method::CONNECT && method.is_none());
                method = Some(read.ok_or(InvalidRequest::Field("method"))?);
            } else if key == HTTP_HOST {
                let read = std::str::from_utf8(&value).ok().filter(|_| authority.is_none());
                authority = Some(read.ok_or(InvalidRequest::Field("host"))?.to_owned());
            } else if let Some(name) = key.strip_prefix(HTTP_HEADER) {
                let refuse = || InvalidRequest::Header(name.chars().take(64).collect());
                // `HeaderName` takes no colon, so a key of more than two parts is refused here.
                let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse())?;
                let value = HeaderValue::from_maybe_shared(value).map_err(|_| refuse())?;
                request.headers_mut().try_append(name, value).map_err(|_| refuse())?;
            }
        }
        *request.method_mut() = method.ok_or(InvalidRequest::Field("method"))?;
        let websocket = head.kind == ConnectKind::Websocket;
        let length = if websocket { Length::None } else { body_length(request.headers())? };
        // What it says is said by `length` now. The other fields of the hop are the service's to remove, which knows those that
        // nobody may name in `Connection` to be rid of them.
        request.headers_mut().remove(header::TRANSFER_ENCODING);
        if length == Length::Unknown {
            // Chunked wins, and only one of the two may be seen behind us (RFC 9112 §6.3).
            request.headers_mut().remove(header::CONTENT_LENGTH);
        }
        Ok(Self { authority: authority.ok_or(InvalidRequest::Field("host"))?, request, length, websocket })
    }
}

fn body_length(headers: &http::HeaderMap) -> Result<Length, InvalidRequest> {
    let chunked = |value: &HeaderValue| value.as_bytes().to_ascii_lowercase().windows(7).any(|w| w == b"chunked");
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let refuse = || InvalidRequest::Header(header::CONTENT_LENGTH.to_string());
    let first = match lengths.next() {
        None => 0,
        Some(value) => {
            let digits = value.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit())).ok_or_else(refuse)?;
            if lengths.any(|other| other != value) {
                return Err(refuse());
            }
            digits.parse().map_err(|_| refuse())?
        }
    };
    if headers.get_all(header::TRANSFER_ENCODING).iter().any(chunked) {
        return Ok(Length::Unknown);
    }
    Ok(if first == 0 { Length::None } else { Length::Known(first) })
}

/// The path and query of a URL or a path, bytes untouched.
fn origin_form(dest: &str) -> Option<Uri> {
    let dest = dest.split('#').next()?;
    let target = match dest.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('?') => format!("/{}", &rest[at..]),
            Some(at) => rest[at..].to_owned(),
            None => "/".to_owned(),
        },
        _ => dest.to_owned(),
    };
    if !target.starts_with('/') && target != "*" {
        return None;
    }
    PathAndQuery::from_maybe_shared(Bytes::from(target)).ok().map(Uri::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: ConnectKind, dest: &str, pairs: &[(&str, &str)]) -> Result<Parsed, InvalidRequest> {
        let pair = |(k, v): &(&str, &str)| ((*k).to_owned(), Bytes::from((*v).to_owned()));
        Parsed::try_from(ConnectRequest { dest: dest.into(), kind, metadata: pairs.iter().map(pair).collect() })
    }

    const BASE: [(&str, &str); 2] = [("HttpMethod", "POST"), ("HttpHost", "app.example.test")];

    #[test]
    fn a_destination_is_a_url_or_a_path_and_its_bytes_stay() {
        for (dest, target) in [
            ("https://app.example.test/p?q=1", "/p?q=1"),
            ("/ok", "/ok"),
            ("https://[2001:db8::1]:8080/A%2fb//c/../d;x?q=%20&r=http://y/", "/A%2fb//c/../d;x?q=%20&r=http://y/"),
            ("https://app.example.test", "/"),
            ("https://app.example.test?x=/y", "/?x=/y"),
            ("/redirect?to=https://other/", "/redirect?to=https://other/"),
            ("/a#fragment", "/a"),
            ("*", "*"),
        ] {
            assert_eq!(origin_form(dest).map(|u| u.to_string()).as_deref(), Some(target), "{dest}");
        }
        for bad in ["", "no-slash", "/with space", "/new\nline", "host:80"] {
            assert!(origin_form(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn the_body_follows_the_headers() {
        for (headers, length) in [
            (&[][..], Length::None),
            (&[("HttpHeader:Content-Length", "0")], Length::None),
            (&[("HttpHeader:Content-Length", "12")], Length::Known(12)),
            (&[("HttpHeader:Content-Length", "12"), ("HttpHeader:content-length", "12")], Length::Known(12)),
            (&[("HttpHeader:Transfer-Encoding", "gzip, Chunked")], Length::Unknown),
            (&[("HttpHeader:Transfer-Encoding", "chunked"), ("HttpHeader:Content-Length", "5")], Length::Unknown),
        ] {
            let parsed = request(ConnectKind::Http, "/", &[&BASE, headers].concat()).expect("valid");
            assert_eq!(parsed.length, length, "{headers:?}");
            assert!(!parsed.request.headers().contains_key(header::TRANSFER_ENCODING));
            assert!(length != Length::Unknown || !parsed.request.headers().contains_key(header::CONTENT_LENGTH));
        }
        let websocket = request(ConnectKind::Websocket, "/ws", &[&BASE[..], &[("HttpHeader:Upgrade", "websocket")]].concat());
        let websocket = websocket.expect("valid");
        assert!(websocket.websocket && websocket.length == Length::None);
    }

    #[test]
    fn a_bad_head_is_refused() {
        for bad in ["-1", "+1", "1,2", "0x10", "99999999999999999999", ""] {
            let pairs = [&BASE[..], &[("HttpHeader:Content-Length", bad)]].concat();
            assert!(request(ConnectKind::Http, "/", &pairs).is_err(), "{bad}");
        }
        for pair in [
            ("HttpHeader:Content-Length", "1"),
            ("HttpHeader:a:b", "x"),
            ("HttpHeader:", "x"),
            ("HttpHeader:sp ace", "x"),
            ("HttpHeader:x", "a\r\nb"),
        ] {
            let pairs = [&BASE[..], &[("HttpHeader:Content-Length", "2"), pair]].concat();
            assert!(request(ConnectKind::Http, "/", &pairs).is_err(), "{pair:?}");
        }
        assert_eq!(request(ConnectKind::Tcp, "10.0.0.1:22", &BASE).map(drop), Err(InvalidRequest::Tcp));
        assert_eq!(request(ConnectKind::Http, "/", &BASE[..1]).map(drop), Err(InvalidRequest::Field("host")));
        assert_eq!(request(ConnectKind::Http, "/", &BASE[1..]).map(drop), Err(InvalidRequest::Field("method")));
        let connect = [("HttpMethod", "CONNECT"), BASE[1]];
        assert_eq!(request(ConnectKind::Http, "/", &connect).map(drop), Err(InvalidRequest::Field("method")));
        for (i, field) in ["method", "host"].into_iter().enumerate() {
            let twice = [&BASE[..], &BASE[i..=i]].concat();
            assert_eq!(request(ConnectKind::Http, "/", &twice).map(drop), Err(InvalidRequest::Field(field)));
        }
    }
}
