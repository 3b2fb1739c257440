//! `--demo-backends`: an echo server on loopback for every Service port that a route leads to. Says what arrived: HTTP/1.1, h2c,
//! WebSocket and gRPC. For trying things out; it knows nothing of routes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::gateway::ir::RouteConfig;
use crate::gateway::snapshot::ServicePort;

/// Echo servers that run; dropped, they end.
#[derive(Debug, Default)]
pub(super) struct DemoBackends(BTreeMap<ServicePort, Demo>);

#[derive(Debug)]
struct Demo {
    address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

impl DemoBackends {
    /// Starts a server for every backend of `config` that has none yet and none of the `given` addresses. Those that run stay, so
    /// that a reload keeps every address. The answer is whether any was started.
    ///
    /// # Errors
    /// When no socket can be had.
    pub(super) async fn cover(
        &mut self,
        config: &RouteConfig,
        given: &BTreeMap<ServicePort, Vec<SocketAddr>>,
    ) -> std::io::Result<bool> {
        let before = self.0.len();
        for backend in config.backends.values() {
            let port = ServicePort {
                namespace: backend.object.namespace().to_owned(),
                name: backend.object.name().to_owned(),
                port: backend.port,
            };
            if given.contains_key(&port) || self.0.contains_key(&port) {
                continue;
            }
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let address = listener.local_addr()?;
            let name: Arc<str> = format!("{}/{}:{}", port.namespace, port.name, port.port).into();
            let server = AbortOnDropHandle::new(tokio::spawn(serve(listener, name)));
            self.0.insert(port, Demo { address, _server: server });
        }
        Ok(self.0.len() > before)
    }

    /// Where the servers listen.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (ServicePort, Vec<SocketAddr>)> + '_ {
        self.0.iter().map(|(port, demo)| (port.clone(), vec![demo.address]))
    }
}

async fn serve(listener: TcpListener, name: Arc<str>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: wait for some to be given back.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let name = Arc::clone(&name);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| {
                let name = Arc::clone(&name);
                async move { Ok::<_, Infallible>(answer(&name, request).await) }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            // A client that goes away is no news.
            let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
        });
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(backend: &str, mut request: Request<Incoming>) -> Answer {
    if is_grpc(request.headers()) {
        return grpc(backend, request).await;
    }
    if let Some(key) = websocket_key(&request) {
        tokio::spawn(echo_frames(hyper::upgrade::on(&mut request)));
        return switching(backend, &key);
    }
    let (head, mut body) = request.into_parts();
    let mut bytes: u64 = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, |d| d.len() as u64);
    }
    let mut headers: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    for name in head.headers.keys() {
        let values: Vec<_> =
            head.headers.get_all(name).iter().map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).collect();
        let value = if let [one] = &values[..] { one.as_str().into() } else { values.into() };
        headers.insert(name.to_string(), value);
    }
    let host = head.headers.get(header::HOST).and_then(|h| h.to_str().ok()).or_else(|| head.uri.authority().map(|a| a.as_str()));
    let report = serde_json::json!({
        "backend": backend,
        "method": head.method.as_str(),
        "host": host,
        "path": head.uri.path(),
        "query": head.uri.query(),
        "protocol": if head.version == Version::HTTP_2 { "h2c" } else { "HTTP/1.1" },
        "headers": headers,
        "bodyBytes": bytes,
    });
    let mut text = format!("{report:#}\n");
    if head.method == http::Method::HEAD {
        text.clear();
    }
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    name_backend(&mut response, backend);
    response
}

fn name_backend(response: &mut Answer, backend: &str) {
    if let Ok(value) = HeaderValue::from_str(backend) {
        response.headers_mut().insert("x-demo-backend", value);
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"))
}

/// Sends every message back as it came, and `grpc-status: 0` as a trailer: an echo for any service, without its schema.
async fn grpc(backend: &str, request: Request<Incoming>) -> Answer {
    let content_type = request.headers().get(header::CONTENT_TYPE).cloned();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut body = request.into_body();
    // Through a channel of one, so that messages stream in both directions and nothing is collected.
    let (sender, receiver) = tokio::sync::mpsc::channel::<Frame<Bytes>>(1);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(data) = frame.into_data()
                && sender.send(Frame::data(data)).await.is_err()
            {
                return;
            }
        }
        let _ = sender.send(Frame::trailers(trailers)).await;
    });
    let frames = futures_util::stream::unfold(receiver, |mut r| async move { r.recv().await.map(|f| (Ok(f), r)) });
    let mut response = Response::new(BodyExt::boxed(SyncFrames(std::sync::Mutex::new(Box::pin(frames)))));
    if let Some(value) = content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    name_backend(&mut response, backend);
    response
}

type Frames = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// A stream of frames as a body; the lock only makes it `Sync`, nobody ever waits for it.
struct SyncFrames(std::sync::Mutex<Frames>);

impl hyper::body::Body for SyncFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut().0.get_mut() {
            Ok(frames) => frames.as_mut().poll_next(cx),
            Err(_) => std::task::Poll::Ready(None),
        }
    }
}

fn websocket_key(request: &Request<Incoming>) -> Option<HeaderValue> {
    let upgrade = request.headers().get(header::UPGRADE)?;
    upgrade.as_bytes().eq_ignore_ascii_case(b"websocket").then(|| request.headers().get(header::SEC_WEBSOCKET_KEY).cloned())?
}

/// The handshake of RFC 6455 §4.2.2.
fn switching(backend: &str, key: &HeaderValue) -> Answer {
    let mut text = key.as_bytes().to_vec();
    text.extend_from_slice(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &text));
    let mut response = Response::new(Full::default().boxed());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    name_backend(&mut response, backend);
    response
}

/// Longest frame that is echoed, bytes.
const MAX_FRAME: u64 = 1024 * 1024;

/// Sends every frame back unmasked; a ping as a pong, a close as a close, and then ends (RFC 6455 §5.2).
async fn echo_frames(upgrade: hyper::upgrade::OnUpgrade) {
    let Ok(upgraded) = upgrade.await else { return };
    let mut io = TokioIo::new(upgraded);
    // Ends with the first error: the peer is gone.
    while let Ok(true) = echo_frame(&mut io).await {}
}

async fn echo_frame(io: &mut TokioIo<hyper::upgrade::Upgraded>) -> std::io::Result<bool> {
    const PING: u8 = 0x9;
    const PONG: u8 = 0xA;
    const CLOSE: u8 = 0x8;
    let mut head = [0; 2];
    io.read_exact(&mut head).await?;
    let length = match head[1] & 0x7F {
        126 => u64::from(io.read_u16().await?),
        127 => io.read_u64().await?,
        short => u64::from(short),
    };
    if length > MAX_FRAME {
        return Ok(false);
    }
    let mut mask = [0; 4];
    if head[1] & 0x80 != 0 {
        io.read_exact(&mut mask).await?;
    }
    let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
    io.read_exact(&mut payload).await?;
    for (byte, key) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
    let opcode = head[0] & 0x0F;
    if opcode == PONG {
        return Ok(true);
    }
    let first = if opcode == PING { (head[0] & 0xF0) | PONG } else { head[0] };
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..126 => frame.push(u8::try_from(len).unwrap_or(0)),
        len => match u16::try_from(len) {
            Ok(len) => {
                frame.push(126);
                frame.extend_from_slice(&len.to_be_bytes());
            }
            Err(_) => {
                frame.push(127);
                frame.extend_from_slice(&(len as u64).to_be_bytes());
            }
        },
    }
    frame.extend_from_slice(&payload);
    io.write_all(&frame).await?;
    io.flush().await?;
    Ok(opcode != CLOSE)
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::Message;

    use super::*;
    use crate::gateway::id::{Kind, ObjectRef};
    use crate::gateway::ir::{Backend, BackendKey, BackendProtocol};

    async fn demo() -> (DemoBackends, SocketAddr) {
        let object = ObjectRef::new(Kind::Service, "shop", "web");
        let backend = Backend { object, port: 80, protocol: BackendProtocol::Http1, websocket: false, endpoints: Vec::new() };
        let backends = BTreeMap::from([(BackendKey("shop/web:80/http1".into()), backend)]);
        let config = RouteConfig { backends, ..RouteConfig::empty() };
        let mut demo = DemoBackends::default();
        demo.cover(&config, &BTreeMap::new()).await.expect("a socket");
        demo.cover(&config, &BTreeMap::new()).await.expect("nothing to do");
        let addresses: Vec<_> = demo.addresses().collect();
        assert_eq!(addresses.len(), 1);
        let address = addresses[0].1[0];
        (demo, address)
    }

    #[tokio::test]
    async fn a_service_whose_address_is_given_needs_no_server() {
        let (demo, address) = demo().await;
        let given: BTreeMap<_, _> = demo.addresses().collect();
        assert_eq!(given.values().next(), Some(&vec![address]));
        assert!(address.ip().is_loopback());
    }

    #[tokio::test]
    async fn websocket_messages_of_every_length_come_back() {
        let (_demo, address) = demo().await;
        let stream = tokio::net::TcpStream::connect(address).await.expect("connects");
        let (mut socket, response) = tokio_tungstenite::client_async("ws://web/chat", stream).await.expect("a handshake");
        assert_eq!(response.headers()["x-demo-backend"], "shop/web:80");
        for length in [0, 1, 125, 126, 65_535, 65_536] {
            let message = Message::text("x".repeat(length));
            socket.send(message.clone()).await.expect("sent");
            assert_eq!(socket.next().await.expect("open").expect("a frame"), message);
        }
        socket.send(Message::Ping("p".into())).await.expect("sent");
        assert_eq!(socket.next().await.expect("open").expect("a frame"), Message::Pong("p".into()));
        socket.close(None).await.expect("sent");
        assert!(matches!(socket.next().await, Some(Ok(Message::Close(_)))));
    }

    #[tokio::test]
    async fn grpc_messages_come_back_with_a_status_in_the_trailers() {
        let (_demo, address) = demo().await;
        let stream = tokio::net::TcpStream::connect(address).await.expect("connects");
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("a handshake");
        tokio::spawn(connection);
        let message = Bytes::from_static(b"\0\0\0\0\x02hi");
        let request = Request::post("http://web/demo.Echo/Say")
            .header("content-type", "application/grpc+proto")
            .body(Full::new(message.clone()))
            .expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "application/grpc+proto");
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.trailers().and_then(|t| t.get("grpc-status")).map(HeaderValue::as_bytes), Some(&b"0"[..]));
        assert_eq!(body.to_bytes(), message);
    }
}
