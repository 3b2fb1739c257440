//! Backends: one that echoes what it was sent, and one that says and does whatever a test writes down.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Where a backend listens, and how many connections it has accepted.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Backend {
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn listen<F>(each: impl Fn(usize, TcpStream) -> F + Send + 'static) -> Backend
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Backend { address: listener.local_addr().unwrap(), accepted: Arc::default() };
    let accepted = Arc::clone(&backend.accepted);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(each(accepted.fetch_add(1, Ordering::SeqCst), socket));
        }
    });
    backend
}

/// Answers with JSON of what it got: method, path, headers as a list, body. HTTP/1.1 and h2c.
pub(super) async fn echo(name: &'static str) -> Backend {
    listen(move |_, socket| async move {
        let service = service_fn(move |request: Request<Incoming>| async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                return Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())));
            };
            let trailers = body.trailers().map(|t| format!("{t:?}"));
            let headers: Vec<_> = head.headers.iter().map(|(n, v)| [n.as_str(), v.to_str().unwrap_or("?")]).collect();
            let echo = json!({
                "name": name, "method": head.method.as_str(), "path": head.uri.path_and_query().map(|p| p.as_str()),
                "authority": head.uri.authority().map(|a| a.as_str()), "version": format!("{:?}", head.version),
                "headers": headers, "body": String::from_utf8_lossy(&body.to_bytes()), "trailers": trailers,
            });
            Ok(Response::new(Full::new(Bytes::from(echo.to_string()))))
        });
        let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
    })
    .await
}

/// The value of a header in the echo; panics when it came more than once.
pub(super) fn echoed<'e>(echo: &'e Value, name: &str) -> Option<&'e str> {
    let mut values = echo["headers"].as_array().unwrap().iter().filter(|pair| pair[0] == name);
    let value = values.next()?[1].as_str();
    assert!(values.next().is_none(), "{name} more than once in {echo}");
    value
}

/// A connection to a backend that a test scripts.
pub(super) struct Wire {
    socket: TcpStream,
    /// Bytes read and not yet used.
    rest: Vec<u8>,
}

impl Wire {
    /// The head of the next request; `None` when the peer has closed.
    pub(super) async fn head(&mut self) -> Option<String> {
        self.until(b"\r\n\r\n").await
    }

    /// Reads up to and including `mark`.
    pub(super) async fn until(&mut self, mark: &[u8]) -> Option<String> {
        loop {
            if let Some(at) = self.rest.windows(mark.len()).position(|w| w == mark) {
                let rest = self.rest.split_off(at + mark.len());
                return Some(String::from_utf8(std::mem::replace(&mut self.rest, rest)).unwrap());
            }
            if self.socket.read_buf(&mut self.rest).await.ok()? == 0 {
                return None;
            }
        }
    }

    pub(super) async fn write(&mut self, text: &str) {
        self.try_write(text).await;
    }

    /// Whether the peer still takes bytes.
    pub(super) async fn try_write(&mut self, text: &str) -> bool {
        self.socket.write_all(text.as_bytes()).await.is_ok()
    }

    /// Reads to the end, however it comes, and gives what was left.
    pub(super) async fn drain(&mut self) -> String {
        while matches!(self.socket.read_buf(&mut self.rest).await, Ok(n) if n > 0) {}
        String::from_utf8_lossy(&self.rest).into_owned()
    }

    /// Closes with a reset instead of an end.
    pub(super) fn reset(self) {
        socket2::SockRef::from(&self.socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}

/// Runs `script` on each connection, numbered from 0.
pub(super) async fn scripted<F>(script: impl Fn(usize, Wire) -> F + Send + 'static) -> Backend
where
    F: Future<Output = ()> + Send + 'static,
{
    listen(move |n, socket| script(n, Wire { socket, rest: Vec::new() })).await
}

/// Gives `response` to every request on every connection.
pub(super) async fn saying(response: &'static str) -> Backend {
    scripted(move |_, mut wire| async move {
        while wire.head().await.is_some() {
            wire.write(response).await;
        }
    })
    .await
}

/// Gives `response` to the first request of every connection, then closes.
pub(super) async fn saying_once(response: &'static str) -> Backend {
    scripted(move |_, mut wire| async move {
        wire.head().await;
        wire.write(response).await;
    })
    .await
}

/// An address where nothing listens.
pub(super) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// An address where connecting takes for ever: a queue that nobody accepts from, and that is full.
pub(super) struct BlackHole {
    pub(super) address: SocketAddr,
    _listener: socket2::Socket,
    _waiting: Vec<TcpStream>,
}

pub(super) async fn black_hole() -> BlackHole {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    let patience = std::time::Duration::from_millis(200);
    while let Ok(socket) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        waiting.push(socket.unwrap());
    }
    BlackHole { address, _listener: listener, _waiting: waiting }
}

/// An HTTP/2 backend that a test scripts.
pub(super) async fn scripted_h2<F>(
    script: impl Fn(Request<h2::RecvStream>, h2::server::SendResponse<Bytes>) -> F + Clone + Send + Sync + 'static,
) -> Backend
where
    F: Future<Output = ()> + Send + 'static,
{
    listen(move |_, socket| {
        let script = script.clone();
        async move {
            let Ok(mut connection) = h2::server::handshake(socket).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(script(request, respond));
            }
        }
    })
    .await
}

/// An HTTP/2 backend that answers 200 and says GOAWAY after every `requests` requests of a connection.
pub(super) async fn leaving_h2(requests: usize) -> Backend {
    listen(move |_, socket| async move {
        let Ok(mut connection) = h2::server::handshake(socket).await else { return };
        let mut served = 0;
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            served += 1;
            if served == requests {
                connection.graceful_shutdown();
            }
            tokio::spawn(async move {
                let mut body = request.into_body();
                while let Some(Ok(chunk)) = body.data().await {
                    let _ = body.flow_control().release_capacity(chunk.len());
                }
                let _ = respond.send_response(Response::new(()), true);
            });
        }
    })
    .await
}
