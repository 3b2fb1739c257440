//! Backends: HTTP/1.1 and h2c on one port, each request answered as its plan says. They check every upload, close connections
//! while these are idle, and notice a request that must not come twice and does.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::body::{self, Check, Way};
use crate::chance::{Chance, mix};
use crate::plan::{End, Plan};

type Out = UnsyncBoxBody<Bytes, io::Error>;
type Answer = Response<Out>;

/// Number of backends.
const COUNT: usize = 4;
/// Bytes of a piece of a response, and of what a slow backend reads between two pauses.
const PIECE: usize = 16 * 1024;
/// How long requests are remembered, in two generations.
const MEMORY: Duration = Duration::from_secs(120);

/// What the backends have seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    recent: Mutex<Recent>,
    /// Bodies that were wrong, and requests that came twice, which their client may never learn.
    wrong: Mutex<Vec<String>>,
    pub(crate) closed_idle: AtomicU64,
    /// Answers with a wrong byte now and then: to see whether this is noticed.
    pub(crate) corrupt: AtomicBool,
}

#[derive(Debug, Default)]
struct Recent {
    /// How often each request came.
    young: HashMap<u64, u32>,
    old: HashMap<u64, u32>,
    /// Requests that were broken off before an answer.
    broken: HashSet<u64>,
}

impl Seen {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request has come, ever so recently.
    pub(crate) fn has(&self, id: u64) -> bool {
        let recent = self.recent();
        recent.young.contains_key(&id) || recent.old.contains_key(&id)
    }

    /// Counts a request; how often it has come.
    fn count(&self, id: u64) -> u32 {
        let mut recent = self.recent();
        let before = recent.young.get(&id).or_else(|| recent.old.get(&id)).copied().unwrap_or(0);
        recent.young.insert(id, before + 1);
        before + 1
    }

    /// True once for each request.
    fn breaks(&self, id: u64) -> bool {
        self.recent().broken.insert(id)
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// What was wrong since the last call.
    pub(crate) fn take_wrong(&self) -> Vec<String> {
        std::mem::take(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets what is long over.
    pub(crate) async fn forget(&self) {
        loop {
            tokio::time::sleep(MEMORY).await;
            let mut recent = self.recent();
            recent.old = std::mem::take(&mut recent.young);
            recent.broken.clear();
        }
    }
}

/// Starts the backends; where they are.
pub(crate) async fn start(chance: &Chance, seen: &Arc<Seen>) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for n in 0..COUNT {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        addresses.push(listener.local_addr()?);
        tokio::spawn(listen(listener, chance.fork(n as u64), Arc::clone(seen)));
    }
    Ok(addresses)
}

async fn listen(listener: TcpListener, mut chance: Chance, seen: Arc<Seen>) {
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => {
                let life = Duration::from_millis(chance.between(500, 10_000));
                tokio::spawn(serve(tcp, life, Arc::clone(&seen)));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Serves a connection. After its life it is closed: at once when it is idle, whatever may be on its way.
async fn serve(tcp: TcpStream, life: Duration, seen: Arc<Seen>) {
    let _ = tcp.set_nodelay(true);
    let service = hyper::service::service_fn({
        let seen = Arc::clone(&seen);
        move |request| answer(Arc::clone(&seen), request)
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tcp), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        () = tokio::time::sleep(life) => connection.as_mut().graceful_shutdown(),
    }
    seen.closed_idle.fetch_add(1, Ordering::Relaxed);
    let _ = connection.await;
}

async fn answer(seen: Arc<Seen>, request: Request<Incoming>) -> io::Result<Answer> {
    let (parts, body) = request.into_parts();
    let id = parts.headers.get("x-soak-id").and_then(|v| v.to_str().ok()?.parse().ok());
    let id: u64 = id.ok_or(io::ErrorKind::InvalidData)?;
    let times = seen.count(id);
    if parts.method == http::Method::POST && times > 1 {
        seen.wrong(format!("request {id}, not idempotent, came {times} times"));
    }
    let mut answer = match parts.uri.path() {
        "/ws" => websocket(parts, body),
        "/soak.Echo/Say" => grpc(&seen, id, body).await?,
        _ => {
            let plan = parts.uri.query().and_then(|query| Plan::read(&parts.method, query));
            let plan = plan.filter(|plan| plan.id == id).ok_or(io::ErrorKind::InvalidData)?;
            plain(&seen, &plan, body).await?
        }
    };
    answer.headers_mut().insert("x-soak-id", id.into());
    Ok(answer)
}

async fn plain(seen: &Seen, plan: &Plan, body: Incoming) -> io::Result<Answer> {
    if plan.end == End::BeforeHead && seen.breaks(plan.id) {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let upload = read_upload(seen, plan, body).await;
    tokio::time::sleep(plan.head_pause).await;
    let mut bytes = body::body(plan.id, Way::Down, plan.down);
    if seen.corrupt.load(Ordering::Relaxed) && mix(plan.id).is_multiple_of(200) && !bytes.is_empty() {
        let mut wrong = bytes.to_vec();
        wrong[plan.down / 2] ^= 1;
        bytes = wrong.into();
    }
    let mut response = Response::new(match (plan.method, plan.down) {
        ("HEAD", _) | (_, 0) => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        _ if !plan.chunked && plan.drip.is_zero() && plan.end == End::Whole => {
            Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
        }
        _ => streamed(bytes, plan.drip, plan.end == End::Midway),
    });
    *response.status_mut() = StatusCode::from_u16(plan.status).map_err(|_| io::ErrorKind::InvalidData)?;
    if !plan.chunked && !matches!(plan.status, 204 | 304) {
        response.headers_mut().insert(header::CONTENT_LENGTH, plan.down.into());
    }
    if let Some(verdict) = upload {
        response.headers_mut().insert("x-soak-upload", HeaderValue::from_static(verdict));
    }
    Ok(response)
}

/// Reads and checks the request's body; what is to be told about it.
async fn read_upload(seen: &Seen, plan: &Plan, mut body: Incoming) -> Option<&'static str> {
    let len = plan.upload.as_ref().map_or(0, |u| u.len);
    let (mut check, mut read) = (Check::new(plan.id, Way::Up, len), 0);
    while let Some(frame) = body.frame().await {
        // Broken off: the client left or the connection was cut, and it shows as what it is.
        let Ok(frame) = frame else { return Some("broken") };
        let Ok(data) = frame.into_data() else { continue };
        if let Err(error) = check.take(&data) {
            seen.wrong(format!("upload of {}: {error}", plan.describe()));
            return Some("wrong");
        }
        // By bytes, for a frame may be ever so small.
        read += data.len();
        while !plan.read_pause.is_zero() && read >= PIECE {
            read -= PIECE;
            tokio::time::sleep(plan.read_pause).await;
        }
    }
    if let Err(error) = check.end() {
        seen.wrong(format!("upload of {}: {error}", plan.describe()));
        return Some("wrong");
    }
    plan.upload.as_ref().map(|_| "right")
}

/// A body in pieces; half of it and then a break, if it is to break.
fn streamed(bytes: Bytes, pause: Duration, breaks: bool) -> Out {
    let most = if breaks { bytes.len() / 2 } else { bytes.len() };
    let pieces = futures_util::stream::unfold(0, move |at| {
        let bytes = bytes.clone();
        async move {
            if at >= most {
                // A moment, so that what was sent before arrives before the break.
                tokio::time::sleep(Duration::from_millis(if breaks { 20 } else { 0 })).await;
                return (breaks && at < usize::MAX).then(|| (Err(io::ErrorKind::ConnectionReset.into()), usize::MAX));
            }
            if at > 0 && !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let end = (at + PIECE).min(most);
            Some((Ok(Frame::data(bytes.slice(at..end))), end))
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Switches and echoes every message.
fn websocket(mut parts: http::request::Parts, body: Incoming) -> Answer {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    let (Some(key), Some(upgrade)) =
        (parts.headers.get(header::SEC_WEBSOCKET_KEY), parts.extensions.remove::<hyper::upgrade::OnUpgrade>())
    else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    let accept = derive_accept_key(key.as_bytes());
    drop(body);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut ws = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        while let Some(Ok(message)) = ws.next().await {
            if !message.is_close() && ws.send(message).await.is_err() {
                break;
            }
        }
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::try_from(accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// Sends the message back, and says in the trailers that all is well and whose answer it is.
async fn grpc(seen: &Seen, id: u64, body: Incoming) -> io::Result<Answer> {
    let message = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut check = Check::new(id, Way::Up, message.len().saturating_sub(5));
    if let Err(error) = check.take(message.get(5..).unwrap_or_default()) {
        seen.wrong(format!("message of gRPC call {id}: {error}"));
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("x-soak-id", id.into());
    let pieces = (0..message.len()).step_by(PIECE).map(|at| message.slice(at..(at + PIECE).min(message.len())));
    let frames: Vec<_> = pieces.map(Frame::data).chain([Frame::trailers(trailers)]).map(Ok).collect();
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}
