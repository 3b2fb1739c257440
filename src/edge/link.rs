//! One exchange over a connection, whatever its transport: head out, body out while the answer comes in. Which connection, and
//! what the client sees, is decided elsewhere.

use bytes::{Bytes, BytesMut};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use tokio::sync::mpsc;

use crate::proxy::connector::wire::message::Limits;
use crate::proxy::connector::wire::stream::{self, ConnectKind, ConnectRequest, ConnectResponse};
use crate::proxy::connector::wire::{WireError, headers};
use crate::proxy::http::Body;
use crate::proxy::http::body::QuicBody;

/// Where requests are sent, and the way to the task that owns the connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) channel: Channel,
    commands: mpsc::UnboundedSender<Command>,
}

#[derive(Clone, Debug)]
pub(super) enum Channel {
    Http2(h2::client::SendRequest<Bytes>),
    Quic(quinn::Connection),
}

/// What the task that owns a connection is told to do.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// Cut it now, for this reason.
    Close(String),
    /// Cut it when what is written has had time to get out.
    CloseSoon,
    /// Say that no requests will come.
    GoAway,
    /// Send these bytes.
    Inject(Bytes),
}

/// Why there is no answer from the far end of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the connection failed: {0}")]
    Http2(#[from] h2::Error),
    #[error("the connection failed: {0}")]
    Quic(#[from] quinn::ConnectionError),
    #[error("the stream failed: {0}")]
    Read(#[from] quinn::ReadError),
    #[error("the stream failed: {0}")]
    Write(#[from] quinn::WriteError),
    #[error("the stream ended before its head")]
    NoHead,
    #[error("the request cannot be expressed: {0}")]
    Request(#[from] http::Error),
    #[error("the answer is malformed: {0}")]
    Wire(#[from] WireError),
    #[error("the answer has no valid status")]
    Status,
    #[error("the connector says: {0}")]
    Connector(String),
}

/// A request's head, without what belongs to the client's hop.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) authority: Authority,
    pub(super) target: PathAndQuery,
    pub(super) headers: HeaderMap,
    pub(super) body: Length,
    pub(super) websocket: bool,
}

/// How much body a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    None,
    Known(u64),
    Unknown,
}

/// An exchange that has begun.
#[derive(Debug)]
pub(super) struct Exchange {
    /// For the body; `None` when there is none.
    pub(super) upload: Option<Upload>,
    pub(super) answer: Answer,
}

/// The way to the far end for bytes. Dropped before [`Upload::finish`] it resets the stream, so that what is cut does not look
/// complete: quinn would finish it, and h2 would leave it open as long as the answer is being read.
#[derive(Debug)]
pub(super) struct Upload {
    stream: UploadStream,
    finished: bool,
}

#[derive(Debug)]
enum UploadStream {
    Http2(h2::SendStream<Bytes>),
    Quic(quinn::SendStream),
}

/// The answer's head, to come.
#[derive(Debug)]
pub(super) enum Answer {
    Http2(h2::client::ResponseFuture),
    Quic { stream: quinn::RecvStream, head_only: bool },
}

/// What the far end answered.
#[derive(Debug)]
pub(super) struct TunnelResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// Whether the far end has switched to WebSocket.
    pub(super) switched: bool,
}

impl Link {
    pub(super) fn new(channel: Channel, commands: mpsc::UnboundedSender<Command>) -> Self {
        Self { channel, commands }
    }

    /// Tells the owner of the connection. Without effect when the connection is gone.
    pub(super) fn command(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Sends a request's head.
    pub(super) async fn begin(&self, head: Head) -> Result<Exchange, LinkError> {
        match &self.channel {
            Channel::Http2(channel) => begin_http2(channel.clone(), head).await,
            Channel::Quic(connection) => begin_quic(connection, head).await,
        }
    }
}

async fn begin_http2(channel: h2::client::SendRequest<Bytes>, head: Head) -> Result<Exchange, LinkError> {
    let uri = Uri::builder().scheme(Scheme::HTTP).authority(head.authority).path_and_query(head.target).build()?;
    let mut request = Request::builder().method(head.method).uri(uri).body(())?;
    *request.headers_mut() = head.headers;
    if let Length::Known(length) = head.body {
        request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    if head.websocket {
        request.headers_mut().insert(headers::UPGRADE, HeaderValue::from_static(headers::UPGRADE_WEBSOCKET));
    }
    let no_body = head.body == Length::None && !head.websocket;
    let (answer, upload) = channel.ready().await?.send_request(request, no_body)?;
    Ok(Exchange { upload: (!no_body).then(|| Upload::http2(upload)), answer: Answer::Http2(answer) })
}

async fn begin_quic(connection: &quinn::Connection, head: Head) -> Result<Exchange, LinkError> {
    let head_only = head.method == Method::HEAD;
    let text = |s: &str| Bytes::copy_from_slice(s.as_bytes());
    let mut metadata = vec![
        (stream::HTTP_METHOD.to_owned(), text(head.method.as_str())),
        (stream::HTTP_HOST.to_owned(), text(head.authority.as_str())),
    ];
    let mut add = |name: &str, value: &[u8]| {
        metadata.push((format!("{}{name}", stream::HTTP_HEADER), Bytes::copy_from_slice(value)));
    };
    for (name, value) in &head.headers {
        add(name.as_str(), value.as_bytes());
    }
    // By these two the connector knows whether there is a body (tunnel-protocol §5.3).
    match head.body {
        Length::Known(length) => add("Content-Length", length.to_string().as_bytes()),
        Length::Unknown if !head.websocket => add("Transfer-Encoding", b"chunked"),
        Length::Unknown | Length::None => {}
    }
    let kind = if head.websocket { ConnectKind::Websocket } else { ConnectKind::Http };
    let request = ConnectRequest { dest: format!("http://{}{}", head.authority, head.target), kind, metadata };
    let bytes = request.encode()?;
    let (send, stream) = connection.open_bi().await?;
    let mut upload = Upload::quic(send);
    upload.send(bytes.into()).await?;
    let mut upload = Some(upload);
    if head.body == Length::None
        && !head.websocket
        && let Some(upload) = upload.take()
    {
        upload.finish();
    }
    Ok(Exchange { upload, answer: Answer::Quic { stream, head_only } })
}

impl Upload {
    pub(super) fn http2(stream: h2::SendStream<Bytes>) -> Self {
        Self { stream: UploadStream::Http2(stream), finished: false }
    }

    pub(super) fn quic(stream: quinn::SendStream) -> Self {
        Self { stream: UploadStream::Quic(stream), finished: false }
    }

    /// Sends bytes when the far end has room for them.
    pub(super) async fn send(&mut self, mut bytes: Bytes) -> Result<(), LinkError> {
        match &mut self.stream {
            UploadStream::Quic(stream) => stream.write_chunk(bytes).await?,
            UploadStream::Http2(stream) => {
                while !bytes.is_empty() {
                    stream.reserve_capacity(bytes.len());
                    let Some(room) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.transpose()? else {
                        return Err(h2::Error::from(h2::Reason::CANCEL).into());
                    };
                    stream.send_data(bytes.split_to(room.min(bytes.len())), false)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the body. That the far end wants no more of it is its affair, and no error.
    pub(super) fn finish(mut self) {
        self.finished = true;
        match &mut self.stream {
            UploadStream::Http2(stream) => drop(stream.send_data(Bytes::new(), true)),
            UploadStream::Quic(stream) => drop(stream.finish()),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Not after the finish: that would take back what is still under way.
        if !self.finished {
            match &mut self.stream {
                UploadStream::Http2(stream) => stream.send_reset(h2::Reason::CANCEL),
                UploadStream::Quic(stream) => drop(stream.reset(0_u32.into())),
            }
        }
    }
}

impl Answer {
    /// Waits for the head.
    pub(super) async fn head(self) -> Result<TunnelResponse, LinkError> {
        match self {
            Self::Http2(answer) => {
                let (parts, stream) = answer.await?.into_parts();
                http2_head(&parts, stream)
            }
            Self::Quic { stream, head_only } => quic_head(stream, head_only).await,
        }
    }
}

fn http2_head(parts: &http::response::Parts, stream: h2::RecvStream) -> Result<TunnelResponse, LinkError> {
    let mut passed_on = match parts.headers.get(headers::RESPONSE_HEADERS) {
        Some(value) => headers::parse(value.as_bytes())?,
        None => HeaderMap::new(),
    };
    if let Some(length) = parts.headers.get(header::CONTENT_LENGTH) {
        // In both places (tunnel-protocol §4.5); some connectors fill only the plain one.
        passed_on.entry(header::CONTENT_LENGTH).or_insert_with(|| length.clone());
    }
    // HTTP/2 has no 101: a 200 with the handshake's answer stands for it.
    let switched = parts.status == StatusCode::OK && passed_on.contains_key(header::SEC_WEBSOCKET_ACCEPT);
    Ok(TunnelResponse { status: parts.status, headers: passed_on, body: Body::H2(stream), switched })
}

async fn quic_head(mut stream: quinn::RecvStream, head_only: bool) -> Result<TunnelResponse, LinkError> {
    let mut buffer = BytesMut::new();
    let head = loop {
        if let Some(head) = ConnectResponse::take(&mut buffer, &Limits::DEFAULT)? {
            break head;
        }
        match stream.read_chunk(64 * 1024, true).await? {
            Some(chunk) => buffer.extend_from_slice(&chunk.bytes),
            None => return Err(LinkError::NoHead),
        }
    };
    if !head.error.is_empty() {
        return Err(LinkError::Connector(head.error));
    }
    let (mut status, mut headers) = (None, HeaderMap::new());
    for (key, value) in head.metadata {
        if key == stream::HTTP_STATUS {
            status = StatusCode::from_bytes(&value).ok();
        } else if let Some(name) = key.strip_prefix(stream::HTTP_HEADER)
            && let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value))
        {
            headers.try_append(name, value).map_err(|_| WireError::Malformed("more headers than a map holds"))?;
        }
    }
    let status = status.ok_or(LinkError::Status)?;
    let switched = status == StatusCode::SWITCHING_PROTOCOLS;
    let body = if head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        Body::Empty
    } else {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        Body::Quic(QuicBody::after(buffer.freeze(), stream, length))
    };
    Ok(TunnelResponse { status, headers, body, switched })
}
