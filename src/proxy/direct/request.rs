//! hyper's requests as the service wants them, and its responses as hyper wants them. How connections live is in `connection`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::activity::{Activity, Busy};
use super::{Direct, Place};
use crate::proxy::error::Side;
use crate::proxy::http::relay::relay;
use crate::proxy::http::{Body, BodyError, Inbound, Serve, Upgraded, UpgradedIo, Via};

/// The requests of one connection.
pub(super) struct Requests<S> {
    pub(super) direct: Arc<Direct<S>>,
    /// Held as long as anything of the connection lives, WebSocket sessions included.
    pub(super) _place: Place,
    pub(super) peer: SocketAddr,
    pub(super) tls: bool,
    pub(super) activity: Arc<Activity>,
}

/// How a client asked for WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    /// `Upgrade` (RFC 6455): answered by 101.
    Upgrade,
    /// Extended CONNECT (RFC 8441): answered by 200, without the key and its proof.
    Connect,
}

impl<S: Serve> Requests<S> {
    /// Answers one request. Dropping the future cancels it.
    pub(super) async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Result<Response<ResponseBody>, Infallible> {
        let busy = self.activity.begin_request();
        let http2 = request.version() == Version::HTTP_2;
        let mut response = match admit(&mut request) {
            Ok((authority, handshake)) => self.forward(request, authority, handshake).await,
            Err(status) => refusal(status),
        };
        // What is wrong in itself may not be what it seems: nothing more is read from its sender.
        let wrong = response.extensions().get() == Some(&Side::Downstream);
        let last = wrong || self.direct.draining.is_given();
        if last && !http2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| ResponseBody { body, _busy: busy }))
    }

    async fn forward(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        authority: String,
        handshake: Option<Handshake>,
    ) -> Response<Body> {
        let client = handshake.map(|_| hyper::upgrade::on(&mut request));
        let (head, incoming) = request.into_parts();
        let body = if handshake.is_some() || incoming.is_end_stream() { Body::Empty } else { Body::Hyper(incoming) };
        let via = Via::Direct { peer: self.peer, tls: self.tls };
        let inbound = Inbound { authority, websocket: handshake.is_some(), via };
        let mut response = self.direct.service.serve(inbound, Request::from_parts(head, body)).await;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        let backend = response.extensions_mut().remove::<Upgraded>().and_then(|upgraded| upgraded.take());
        let (Some(client), Some(backend), Some(handshake)) = (client, backend, handshake) else {
            return refusal(StatusCode::BAD_GATEWAY);
        };
        self.direct.tasks.spawn(session(Arc::clone(self), client, backend));
        if handshake == Handshake::Connect {
            *response.status_mut() = StatusCode::OK;
            for name in [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_ACCEPT] {
                response.headers_mut().remove(name);
            }
        }
        response
    }
}

/// Carries a WebSocket session to its end.
async fn session<S: Serve>(requests: Arc<Requests<S>>, client: OnUpgrade, backend: UpgradedIo) {
    let relayed = async {
        // The client went away while the backend switched.
        let Ok(client) = client.await else { return Ok(()) };
        relay(TokioIo::new(client), backend).await
    };
    let ended = tokio::select! {
        ended = relayed => ended,
        () = requests.direct.closing.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %requests.peer, %error, "WebSocket session ended early");
    }
}

/// Checks what only this hop can see, and brings the head into the form that the service wants. Says whom the request is for,
/// and whether it asks for WebSocket.
///
/// # Errors
/// The status to answer.
fn admit(request: &mut Request<Incoming>) -> Result<(String, Option<Handshake>), StatusCode> {
    let authority = authority(request).ok_or(StatusCode::BAD_REQUEST)?;
    check_coding(request.headers())?;
    let handshake = handshake(request);
    if handshake == Some(Handshake::Connect) {
        *request.method_mut() = Method::GET;
        let key = HeaderValue::try_from(STANDARD.encode(rand::random::<[u8; 16]>())).map_err(|_| StatusCode::BAD_GATEWAY)?;
        request.headers_mut().insert(header::SEC_WEBSOCKET_KEY, key);
    }
    // hyper sends the 100 when the backend begins to take the body: nobody behind us is asked for another.
    if request.headers().get(header::EXPECT).is_some_and(|e| e.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        request.headers_mut().remove(header::EXPECT);
    }
    Ok((authority, handshake))
}

/// Whom the request is for: as its target says, else its one `Host` (RFC 9112 §3.2). That both say the same is checked by the
/// service.
fn authority<B>(request: &Request<B>) -> Option<String> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return None;
    }
    match request.uri().authority() {
        Some(authority) => Some(authority.as_str().to_owned()),
        None => Some(host?.to_str().ok()?.to_owned()),
    }
}

/// hyper takes off the last coding of a body, `chunked`; one below it would reach the backend unannounced.
fn check_coding(headers: &HeaderMap) -> Result<(), StatusCode> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(StatusCode::NOT_IMPLEMENTED),
    }
}

fn handshake<B>(request: &Request<B>) -> Option<Handshake> {
    if request.version() == Version::HTTP_2 {
        let protocol = request.extensions().get::<Protocol>()?;
        let websocket = request.method() == Method::CONNECT && protocol.as_str().eq_ignore_ascii_case("websocket");
        return websocket.then_some(Handshake::Connect);
    }
    let names = |name, token: &str| {
        let values = request.headers().get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).any(|t| t.trim().eq_ignore_ascii_case(token))
    };
    let asks = request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && request.headers().contains_key(header::UPGRADE)
        && names(header::UPGRADE, "websocket")
        && names(header::CONNECTION, "upgrade");
    asks.then_some(Handshake::Upgrade)
}

/// An answer of this hop.
fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response.extensions_mut().insert(Side::Downstream);
    response
}

/// The body of a response; the request is over when it is.
pub(super) struct ResponseBody {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
