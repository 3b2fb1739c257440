//! The head of a request, from bytes to a backend: nothing panics, and whatever reaches the backend is one request that every
//! parser reads alike: one host, one length or chunked, no byte behind it.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cftunnel::gateway::ir::RouteConfig;
use cftunnel::proxy::http::plane::Options;
use cftunnel::proxy::http::{Body, Inbound, Plane, Serve, Via};
use cftunnel::proxy::metrics::Metrics;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

struct Site {
    runtime: Runtime,
    plane: Arc<Plane>,
}

static SITE: LazyLock<Mutex<Site>> = LazyLock::new(|| Mutex::new(Site::new()));

impl Site {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let plane = runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            tokio::spawn(async move {
                loop {
                    let (socket, _) = listener.accept().await.expect("a connection");
                    tokio::spawn(backend(socket));
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
        Self { runtime, plane }
    }
}

/// A backend that is strict: it ends the process over a request that could be read in two ways.
async fn backend(mut socket: TcpStream) {
    let mut read = Vec::new();
    loop {
        let (used, closes) = loop {
            match request(&read) {
                Ok(Some(whole)) => break whole,
                Ok(None) => {}
                Err(why) => {
                    eprintln!("a backend was sent {why}: {:?}", String::from_utf8_lossy(&read));
                    std::process::abort();
                }
            }
            let mut chunk = [0; 4096];
            match socket.read(&mut chunk).await {
                // A request that is broken off is no request.
                Ok(0) | Err(_) => return,
                Ok(n) => read.extend_from_slice(&chunk[..n]),
            }
        };
        if read.len() > used {
            eprintln!("a backend was sent bytes behind a request: {:?}", String::from_utf8_lossy(&read));
            std::process::abort();
        }
        read.clear();
        if socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() || closes {
            return;
        }
    }
}

/// The length of the request that `bytes` begin with, when it is all there.
fn request(bytes: &[u8]) -> Result<Option<(usize, bool)>, &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut fields);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err("something that is no request"),
    };
    let all = |name: &str| head.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value).collect::<Vec<_>>();
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    if all("host").len() != 1 {
        return Err("not exactly one host");
    }
    if lengths.len() > 1 || codings.len() > 1 || (!lengths.is_empty() && !codings.is_empty()) {
        return Err("more than one length");
    }
    if bytes[..start].contains(&0) {
        return Err("a control character");
    }
    let closes = all("connection").iter().any(|v| v.eq_ignore_ascii_case(b"close"));
    if let [coding] = codings[..] {
        if coding != b"chunked" {
            return Err("a coding that is not chunked");
        }
        return Ok(chunks(&bytes[start..])?.map(|body| (start + body, closes)));
    }
    let length: usize = match lengths[..] {
        [length] => std::str::from_utf8(length).ok().and_then(|l| l.parse().ok()).ok_or("a length that is no number")?,
        _ => 0,
    };
    Ok((bytes.len() >= start + length).then_some((start + length, closes)))
}

fn chunks(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut at = 0;
    loop {
        let (line, size) = match httparse::parse_chunk_size(&bytes[at..]) {
            Ok(httparse::Status::Complete(read)) => read,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err("a chunk without a size"),
        };
        let end = at + line + usize::try_from(size).map_err(|_| "a chunk that is too large")?;
        let Some(tail) = bytes.get(end..end + 2) else { return Ok(None) };
        if tail != b"\r\n" {
            return Err("a chunk without an end");
        }
        at = end + 2;
        if size == 0 {
            return Ok(Some(at));
        }
    }
}

/// What a transport would make of the bytes: the first line is method, target and authority, then fields, then the body.
fn inbound(data: &[u8]) -> Option<(Inbound, Request<Body>)> {
    let (flags, data) = data.split_first()?;
    let (head, body) = match data.windows(2).position(|w| w == b"\n\n") {
        Some(at) => (&data[..at], &data[at + 2..]),
        None => (data, &data[data.len()..]),
    };
    let mut lines = head.split(|b| *b == b'\n');
    let mut first = lines.next()?.splitn(3, |b| *b == b' ');
    let method = Method::from_bytes(first.next()?).ok()?;
    let target = first.next().and_then(|t| Uri::try_from(t).ok())?;
    let authority = String::from_utf8_lossy(first.next().unwrap_or(b"a.example.com")).into_owned();
    let mut request = Request::new(if body.is_empty() { Body::Empty } else { Body::Full(Bytes::copy_from_slice(body)) });
    *request.method_mut() = method;
    *request.uri_mut() = target;
    for line in lines {
        let mut halves = line.splitn(2, |b| *b == b':');
        if let (Some(Ok(name)), Some(Ok(value))) =
            (halves.next().map(HeaderName::from_bytes), halves.next().map(HeaderValue::from_bytes))
        {
            request.headers_mut().append(name, value);
        }
    }
    let via = match flags & 1 {
        0 => Via::Tunnel { connection: 0, trailers: flags & 2 == 0 },
        _ => Via::Direct { peer: ([192, 0, 2, 1], 7).into(), tls: flags & 2 == 0 },
    };
    Some((Inbound { authority, websocket: flags & 12 == 12, via }, request))
}

pub(crate) fn target(data: &[u8]) {
    let Some((inbound, request)) = inbound(data) else { return };
    // One after the other: libFuzzer has one thread, the replay of the corpus may have more.
    let site = SITE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    site.runtime.block_on(async {
        let serving = tokio::time::timeout(Duration::from_secs(10), site.plane.serve(inbound, request));
        let response = serving.await.expect("an answer in time");
        let body = http_body_util::BodyExt::collect(response.into_body());
        let _ = tokio::time::timeout(Duration::from_secs(10), body).await.expect("a body in time");
    });
}
