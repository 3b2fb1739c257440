//! What a backend answers, over a real socket: nothing panics, the answer is the same however its bytes are cut, and none of them
//! is ever taken for the answer to another request.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use cftunnel::gateway::ir::RouteConfig;
use cftunnel::proxy::http::plane::Options;
use cftunnel::proxy::http::{Body, Inbound, Plane, Serve, Via};
use cftunnel::proxy::metrics::Metrics;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

const SAFE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsafe";
/// How long the backend keeps a connection for another request, and how long it waits at a cut.
const PATIENCE: Duration = Duration::from_millis(3);
const PAUSE: Duration = Duration::from_millis(1);

/// What the backend answers to `/fuzz`.
#[derive(Clone, Default)]
struct Script {
    pieces: Vec<Vec<u8>>,
    closes: bool,
}

struct Site {
    runtime: Runtime,
    plane: Arc<Plane>,
    script: Arc<Mutex<Script>>,
}

static SITE: LazyLock<Mutex<Site>> = LazyLock::new(|| Mutex::new(Site::new()));

impl Site {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let script = Arc::new(Mutex::new(Script::default()));
        let scripted = Arc::clone(&script);
        let plane = runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            tokio::spawn(async move {
                loop {
                    let (socket, _) = listener.accept().await.expect("a connection");
                    tokio::spawn(backend(socket, Arc::clone(&scripted)));
                }
            });
            let object = |kind: &str| serde_json::json!({"kind": kind, "namespace": "n", "name": "o"});
            let config: RouteConfig = serde_json::from_value(serde_json::json!({
                "format": 1,
                "listeners": [{"gateway": object("Gateway"), "source": object("Gateway"), "name": "l", "port": 80, "protocol": "HTTP"}],
                "routes": [{"object": object("HTTPRoute"), "kind": "HTTP", "listeners": [0], "rules": [{
                    "index": 0, "matches": [{"http": {"path": {"prefix": "/"}}}], "responseTimeoutMs": 2000,
                    "backends": [{"index": 0, "weight": 1, "target": {"backend": "b"}}],
                }]}],
                "backends": {"b": {"object": object("Service"), "port": 80, "protocol": "http1", "endpoints": [address]}},
            }))
            .expect("a document");
            let plane = Plane::new(Options::new(Metrics::register(&mut Registry::default())));
            plane.apply(&config).expect("applied");
            plane
        });
        Self { runtime, plane, script }
    }

    fn ask(&self, method: Method, path: &'static str) -> Answer {
        let inbound = Inbound { authority: "h".to_owned(), websocket: false, via: Via::Tunnel { connection: 0, trailers: true } };
        let mut request = Request::new(Body::Empty);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        self.runtime.block_on(async {
            let serving = tokio::time::timeout(Duration::from_secs(10), self.plane.serve(inbound, request));
            let (head, mut body) = serving.await.expect("an answer in time").into_parts();
            let mut answer = Answer { status: head.status, headers: head.headers, body: Vec::new(), trailers: None, whole: true };
            while let Some(frame) = tokio::time::timeout(Duration::from_secs(10), body.frame()).await.expect("a frame in time") {
                match frame.map(|frame| frame.into_data()) {
                    Err(_) => {
                        answer.whole = false;
                        break;
                    }
                    Ok(Ok(data)) => answer.body.extend_from_slice(&data),
                    Ok(Err(frame)) => answer.trailers = frame.into_trailers().ok(),
                }
            }
            answer
        })
    }
}

/// What a client gets.
#[derive(Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    whole: bool,
}

/// A backend that answers `/safe` as it should and everything else by the script.
async fn backend(mut socket: TcpStream, script: Arc<Mutex<Script>>) {
    let mut read = Vec::new();
    let mut first = true;
    loop {
        while !read.ends_with(b"\r\n\r\n") {
            let wait = if first { Duration::from_secs(5) } else { PATIENCE };
            match tokio::time::timeout(wait, socket.read_buf(&mut read)).await {
                Ok(Ok(n)) if n > 0 => {}
                _ => return,
            }
        }
        first = false;
        let safe = read.windows(6).any(|w| w == b" /safe");
        read.clear();
        let Script { pieces, closes } = if safe {
            Script { pieces: vec![SAFE.to_vec()], closes: false }
        } else {
            script.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        for (i, piece) in pieces.iter().enumerate() {
            if i > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            if socket.write_all(piece).await.is_err() {
                return;
            }
        }
        if closes {
            return;
        }
    }
}

/// The first byte says how the backend and the client behave, the second where the bytes are cut.
pub(crate) fn target(data: &[u8]) {
    let [flags, cut, bytes @ ..] = data else { return };
    let closes = flags & 1 != 0;
    let method = if flags & 2 != 0 { Method::HEAD } else { Method::GET };
    // One after the other: libFuzzer has one thread, the replay of the corpus may have more.
    let site = SITE.lock().unwrap_or_else(PoisonError::into_inner);
    let (left, right) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let mut answers = Vec::new();
    for pieces in [vec![bytes.to_vec()], vec![left.to_vec(), right.to_vec()]] {
        *site.script.lock().unwrap_or_else(PoisonError::into_inner) = Script { pieces, closes };
        answers.push(site.ask(method.clone(), "/fuzz"));
        let safe = site.ask(Method::GET, "/safe");
        assert_eq!((safe.status, &*safe.body, safe.whole), (StatusCode::OK, &b"safe"[..], true), "another request's answer");
    }
    assert_eq!(answers[0], answers[1], "the cut decides what an answer says");
}
