//! A backend that can do everything a test asks for by path. HTTP/1.1 and h2c on one port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

type Out = UnsyncBoxBody<Bytes, std::io::Error>;
type Answer = Response<Out>;

#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) addr: SocketAddr,
    pub(crate) seen: Arc<Seen>,
}

/// What the backend has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// Requests whose handling or body was dropped before its end.
    pub(crate) canceled: AtomicUsize,
    /// Uploads that ended in an error.
    pub(crate) broken_uploads: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    /// Head of the last request.
    pub(crate) last: Mutex<Option<http::request::Parts>>,
}

/// Counts as canceled unless it is told that all went well.
struct Watch(Option<Arc<Seen>>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(seen) = self.0.take() {
            seen.canceled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Origin {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let seen = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| answer(Arc::clone(&seen), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(tcp), service).await;
                });
            }
        });
        Self { addr, seen }
    }

    pub(crate) fn last(&self) -> http::request::Parts {
        self.seen.last.lock().unwrap().clone().expect("a request")
    }

    pub(crate) fn canceled(&self) -> usize {
        self.seen.canceled.load(Ordering::SeqCst)
    }
}

/// The byte at `at` of every body that the backend makes.
pub(crate) fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect::<Vec<_>>().into()
}

pub(crate) fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

async fn answer(seen: Arc<Seen>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let (parts, body) = request.into_parts();
    *seen.last.lock().unwrap() = Some(parts.clone());
    let mut words = path.trim_start_matches('/').split('/');
    let (what, arg) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let number = arg.parse().unwrap_or(0);
    Ok(match what {
        "bytes" => plain(pattern(number)),
        "chunked" => streamed(chunks(pattern(number), None)),
        "upload" => upload(&seen, body).await,
        "status" => Response::builder().status(number as u16).header("x-origin", "yes").body(empty()).unwrap(),
        "sleep" => {
            let mut watch = Watch(Some(seen));
            tokio::time::sleep(Duration::from_millis(number as u64)).await;
            watch.0 = None;
            plain("slept")
        }
        "stall" => streamed(stall(seen, number)),
        "early" => {
            // Answers first and reads on, as a server does that lingers.
            tokio::spawn(body.collect());
            plain(pattern(number))
        }
        "cut" => {
            let pieces = [Ok(Frame::data(pattern(number))), Err(std::io::ErrorKind::ConnectionReset.into())];
            // A moment, so that the head and the piece are out before the cut.
            let stream = futures_util::stream::iter(pieces).then(|piece| async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                piece
            });
            let mut response = Response::new(StreamBody::new(stream).boxed_unsync());
            if words.next() == Some("length") {
                response.headers_mut().insert(header::CONTENT_LENGTH, (2 * number).into());
            }
            response
        }
        "duplex" => streamed(duplex(body)),
        "sse" => {
            let mut response = streamed(ticks(number));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response
        }
        "trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-checksum", HeaderValue::from_static("42"));
            streamed(chunks(pattern(100), Some(trailers)))
        }
        "headers" => {
            let mut response = plain("ok");
            for (name, value) in [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("cf-int-secret", "1"), ("x-latin", "caf\u{e9}")]
            {
                let value = HeaderValue::from_bytes(&value.chars().map(|c| c as u8).collect::<Vec<_>>()).unwrap();
                response.headers_mut().append(name, value);
            }
            response
        }
        "ws" => websocket(parts, body),
        "test.Echo" => grpc(arg, body).await,
        _ => plain(format!("{} {}", parts.method, parts.uri)),
    })
}

fn plain(bytes: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync())
}

fn empty() -> Out {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

type Frames = mpsc::Receiver<Frame<Bytes>>;

fn streamed(frames: Frames) -> Answer {
    let stream = futures_util::stream::unfold(frames, |mut frames| async {
        let frame = frames.recv().await?;
        Some((Ok::<_, std::io::Error>(frame), frames))
    });
    Response::new(StreamBody::new(stream).boxed_unsync())
}

fn chunks(bytes: Bytes, trailers: Option<HeaderMap>) -> Frames {
    let (send, frames) = mpsc::channel(1);
    tokio::spawn(async move {
        for start in (0..bytes.len()).step_by(10_000) {
            let chunk = bytes.slice(start..(start + 10_000).min(bytes.len()));
            if send.send(Frame::data(chunk)).await.is_err() {
                return;
            }
        }
        if let Some(trailers) = trailers {
            let _ = send.send(Frame::trailers(trailers)).await;
        }
    });
    frames
}

/// `len` bytes, and then nothing more, for ever.
fn stall(seen: Arc<Seen>, len: usize) -> Frames {
    let (send, frames) = mpsc::channel(1);
    tokio::spawn(async move {
        let _watch = Watch(Some(seen));
        let _ = send.send(Frame::data(pattern(len))).await;
        send.closed().await;
    });
    frames
}

/// The request's body, back as it comes.
fn duplex(mut body: Incoming) -> Frames {
    let (send, frames) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(data) = frame.into_data()
                && send.send(Frame::data(data)).await.is_err()
            {
                return;
            }
        }
    });
    frames
}

/// Five events, `millis` apart.
fn ticks(millis: usize) -> Frames {
    let (send, frames) = mpsc::channel(1);
    tokio::spawn(async move {
        for i in 0..5 {
            if send.send(Frame::data(format!("data: {i}\n\n").into())).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(millis as u64)).await;
        }
    });
    frames
}

async fn upload(seen: &Seen, mut body: Incoming) -> Answer {
    let (mut len, mut hash) = (0, Sha256::new());
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            seen.broken_uploads.fetch_add(1, Ordering::SeqCst);
            return plain("broken");
        };
        if let Ok(data) = frame.into_data() {
            len += data.len();
            hash.update(&data);
        }
    }
    let hash: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    plain(format!("{len} {hash}"))
}

/// Switches and echoes every message.
fn websocket(mut parts: http::request::Parts, body: Incoming) -> Answer {
    let Some(key) = parts.headers.get(header::SEC_WEBSOCKET_KEY) else {
        return Response::builder().status(StatusCode::BAD_REQUEST).body(empty()).unwrap();
    };
    let accept = derive_accept_key(key.as_bytes());
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    drop(body);
    tokio::spawn(async move {
        let Some(Ok(upgraded)) = futures_util::future::OptionFuture::from(upgrade).await else { return };
        let mut ws = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        while let Some(Ok(message)) = ws.next().await {
            let vanish = message.to_text().is_ok_and(|text| text == "vanish");
            if vanish || message.is_close() || ws.send(message).await.is_err() {
                break;
            }
        }
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .body(empty())
        .unwrap()
}

/// A gRPC service of two methods: `Say` sends the message back, `Fail` answers NOT_FOUND after it.
async fn grpc(method: &str, body: Incoming) -> Answer {
    let message = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(if method == "Fail" { "5" } else { "0" }));
    let mut response = streamed(chunks(message, Some(trailers)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
