//! One stream that the edge has opened over HTTP/2: which kind it is (tunnel-protocol §4.2), and its answer (§4.5 to §4.10).

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;

use super::SEND_BUFFER;
use super::io::{StreamIo, poll_room};
use crate::proxy::connector::link::ControlStream;
use crate::proxy::connector::stream::{Answer, HEAD_TIMEOUT, MAX_PUSH, Streams};
use crate::proxy::connector::uploads::{Held, given_up};
use crate::proxy::connector::wire::headers as tunnel;
use crate::proxy::http::relay::relay;
use crate::proxy::http::{Body, BodyError, Serve, UpgradedIo};

/// A last piece up to this size is sent without waiting for the window; `h2` holds it until there is room.
const SMALL: usize = 16 * 1024;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Push,
    Websocket,
    Tcp,
    Control,
    Plain,
}

/// Decides in the order of §4.2; values are compared exactly.
pub(super) fn kind(headers: &HeaderMap) -> Kind {
    let upgrade = headers.get(tunnel::UPGRADE).map(HeaderValue::as_bytes);
    let is = |value: &str| upgrade == Some(value.as_bytes());
    if is(tunnel::UPGRADE_CONFIGURATION) {
        Kind::Push
    } else if is(tunnel::UPGRADE_WEBSOCKET) {
        Kind::Websocket
    } else if headers.get(tunnel::PROXY_SRC).is_some_and(|src| !src.is_empty()) {
        Kind::Tcp
    } else if is(tunnel::UPGRADE_CONTROL_STREAM) {
        Kind::Control
    } else {
        Kind::Plain
    }
}

/// Answers a stream of any kind. `control` takes the control stream, the first time.
pub(super) async fn serve<S: Serve>(
    streams: Arc<Streams<S>>,
    kind: Kind,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    control: Option<oneshot::Sender<ControlStream>>,
) {
    let done = match kind {
        Kind::Push => push(&streams, request.into_body(), &mut respond).await,
        Kind::Control => open_control(request.into_body(), &mut respond, control),
        Kind::Tcp => refuse(&mut respond, StatusCode::BAD_GATEWAY),
        Kind::Plain | Kind::Websocket => forward(&streams, kind == Kind::Websocket, request, &mut respond).await,
    };
    if let Err(error) = done {
        tracing::debug!(conn_index = streams.index, error = %error, "Stream ended early");
    }
}

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the edge reset it: {0}")]
    Reset(Reason),
    #[error(transparent)]
    H2(#[from] h2::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("its backend takes nothing of the upload")]
    Stalled,
    #[error("response body: {0}")]
    Body(BodyError),
    #[error("a second control stream")]
    SecondControl,
}

fn open_control(
    recv: RecvStream,
    respond: &mut SendResponse<Bytes>,
    control: Option<oneshot::Sender<ControlStream>>,
) -> Result<(), StreamError> {
    let Some(control) = control else {
        respond.send_reset(Reason::REFUSED_STREAM);
        return Err(StreamError::SecondControl);
    };
    // The head goes out at once: a peer may wait for it before it reads (§4.3).
    let send = respond.send_response(Response::new(()), false)?;
    // Nobody there to take it: the connection is being given up.
    drop(control.send(Box::new(StreamIo::new(recv, send))));
    Ok(())
}

async fn push<S>(streams: &Streams<S>, mut recv: RecvStream, respond: &mut SendResponse<Bytes>) -> Result<(), StreamError> {
    let read = async {
        let mut body = BytesMut::new();
        while let Some(piece) = recv.data().await {
            let piece = piece?;
            recv.flow_control().release_capacity(piece.len())?;
            if body.len() + piece.len() > MAX_PUSH {
                return Ok(None);
            }
            body.extend_from_slice(&piece);
        }
        Ok::<_, h2::Error>(Some(body))
    };
    let Ok(Some(body)) = tokio::time::timeout(HEAD_TIMEOUT, read).await.unwrap_or(Ok(None)) else {
        respond.send_reset(Reason::CANCEL);
        return Ok(());
    };
    let answer = streams.pushed.apply_json(&body);
    tracing::debug!(conn_index = streams.index, answer, "Acknowledged a configuration push");
    let mut send = respond.send_response(Response::new(()), false)?;
    send.send_data(answer.into(), true)?;
    Ok(())
}

/// The connector's own answer: a status, and who says so.
fn refuse(respond: &mut SendResponse<Bytes>, status: StatusCode) -> Result<(), StreamError> {
    let mut head = Response::new(());
    *head.status_mut() = status;
    head.headers_mut().insert(tunnel::RESPONSE_META, HeaderValue::from_static(tunnel::META_CONNECTOR));
    respond.send_response(head, true)?;
    Ok(())
}

async fn forward<S: Serve>(
    streams: &Streams<S>,
    websocket: bool,
    request: Request<RecvStream>,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), StreamError> {
    let is_head = request.method() == Method::HEAD;
    let Some((authority, mut request, recv)) = split(request, websocket) else {
        return refuse(respond, StatusCode::BAD_REQUEST);
    };
    let upload = match std::mem::take(request.body_mut()) {
        Body::H2(mut stream) => {
            let held = Held::http2(&mut stream);
            let (body, upload) = streams.uploads.watch(Body::H2(stream), held);
            *request.body_mut() = body;
            Some(upload)
        }
        _ => None,
    };
    let answer = tokio::select! {
        biased;
        // The client is gone: dropping the other future cancels the request to the backend (§4.8).
        reset = poll_fn(|cx| respond.poll_reset(cx)) => return Err(StreamError::Reset(reset?)),
        () = given_up(upload.as_deref()) => return refuse(respond, StatusCode::GATEWAY_TIMEOUT),
        answer = streams.answer(authority, websocket, true, request) => answer,
    };
    match (answer, recv) {
        (Answer::Response(response), _) => tokio::select! {
            biased;
            sent = send_response(respond, response, is_head) => sent,
            () = given_up(upload.as_deref()) => Err(StreamError::Stalled),
        },
        (Answer::Upgrade(head, io), Some(recv)) => upgrade(respond, head, io, recv).await,
        (Answer::Upgrade(..), None) => refuse(respond, StatusCode::BAD_GATEWAY),
        (Answer::Refuse(status), _) => refuse(respond, status),
    }
}

/// Makes the request as the service wants it: target in origin form, the tunnel's own headers gone. A WebSocket's stream is
/// kept apart: it is no body.
fn split(request: Request<RecvStream>, websocket: bool) -> Option<(String, Request<Body>, Option<RecvStream>)> {
    let (mut parts, recv) = request.into_parts();
    let authority = match parts.uri.authority() {
        Some(authority) => authority.as_str().to_owned(),
        None => parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned(),
    };
    let target: PathAndQuery = parts.uri.path_and_query().cloned().filter(|_| parts.method != Method::CONNECT)?;
    parts.uri = Uri::from(target);
    parts.extensions.clear();
    parts.headers.remove(tunnel::UPGRADE);
    parts.headers.remove(tunnel::PROXY_SRC);
    if websocket {
        return Some((authority, Request::from_parts(parts, Body::Empty), Some(recv)));
    }
    let body = if recv.is_end_stream() { Body::Empty } else { Body::H2(recv) };
    Some((authority, Request::from_parts(parts, body), None))
}

/// The head as the edge wants it (§4.5). `length` is the body's, when it is known and the response does not say it itself.
fn head(status: StatusCode, headers: &HeaderMap, length: Option<u64>) -> Response<()> {
    let mut serialised = Vec::with_capacity(headers.len() * 64);
    tunnel::append_all(&mut serialised, headers);
    let length = length.map(HeaderValue::from);
    if let Some(length) = &length {
        tunnel::append(&mut serialised, header::CONTENT_LENGTH.as_str().as_bytes(), length.as_bytes());
    }
    let mut head = Response::new(());
    // HTTP/2 has no 101.
    *head.status_mut() = if status == StatusCode::SWITCHING_PROTOCOLS { StatusCode::OK } else { status };
    let out = head.headers_mut();
    if let Ok(mut value) = HeaderValue::from_maybe_shared(Bytes::from(serialised)) {
        // Different for every response: it must not churn the peer's compression table.
        value.set_sensitive(true);
        out.insert(tunnel::RESPONSE_HEADERS, value);
    }
    out.insert(tunnel::RESPONSE_META, HeaderValue::from_static(tunnel::META_ORIGIN));
    if let Some(length) = length.or_else(|| headers.get(header::CONTENT_LENGTH).cloned()) {
        out.insert(header::CONTENT_LENGTH, length);
    }
    head
}

async fn send_response(respond: &mut SendResponse<Bytes>, response: Response<Body>, is_head: bool) -> Result<(), StreamError> {
    let (mut parts, body) = response.into_parts();
    if parts.status == StatusCode::NO_CONTENT {
        // Not allowed there (RFC 9110 §8.6), and some peers take it for a promise.
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let no_body = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let says_length = parts.headers.contains_key(header::CONTENT_LENGTH);
    let length = body.size_hint().exact().filter(|_| !no_body && !says_length);
    let empty = no_body || body.is_end_stream();
    let mut send = respond.send_response(head(parts.status, &parts.headers, length), empty)?;
    if empty {
        return Ok(());
    }
    let sent = send_body(&mut send, body).await;
    if matches!(sent, Err(StreamError::Body(_))) {
        // The client must be able to tell that this is not all of it (§4.5).
        send.send_reset(Reason::INTERNAL_ERROR);
    }
    sent
}

/// Sends a body frame by frame, each as soon as it is there, and as fast as the edge's window allows.
async fn send_body(send: &mut SendStream<Bytes>, mut body: Body) -> Result<(), StreamError> {
    loop {
        let frame = tokio::select! {
            biased;
            reset = poll_fn(|cx| send.poll_reset(cx)) => return Err(StreamError::Reset(reset?)),
            frame = body.frame() => frame,
        };
        let Some(frame) = frame else {
            send.send_data(Bytes::new(), true)?;
            return Ok(());
        };
        match frame.map_err(StreamError::Body)?.into_data().map_err(Frame::into_trailers) {
            Ok(data) => {
                let end = body.is_end_stream();
                send_data(send, data, end).await?;
                if end {
                    return Ok(());
                }
            }
            Err(Ok(trailers)) => {
                send.send_trailers(trailers)?;
                return Ok(());
            }
            Err(Err(_)) => {}
        }
    }
}

async fn send_data(send: &mut SendStream<Bytes>, mut data: Bytes, end: bool) -> Result<(), StreamError> {
    if end && data.len() <= SMALL {
        send.send_data(data, true)?;
        return Ok(());
    }
    while !data.is_empty() {
        // No more than can be buffered: what is reserved is taken from the other streams of the connection.
        let room = poll_fn(|cx| poll_room(send, data.len().min(SEND_BUFFER), cx)).await?;
        let piece = data.split_to(room);
        let last = end && data.is_empty();
        send.send_data(piece, last)?;
    }
    Ok(())
}

async fn upgrade(
    respond: &mut SendResponse<Bytes>,
    response: Response<()>,
    io: UpgradedIo,
    recv: RecvStream,
) -> Result<(), StreamError> {
    let send = respond.send_response(head(response.status(), response.headers(), None), false)?;
    relay(StreamIo::new(recv, send), io).await?;
    Ok(())
}
