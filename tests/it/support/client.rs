//! Clients of the edge.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::SOON;

pub(crate) type Out = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// A response whose body has been read.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<http::HeaderMap>,
}

impl Whole {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) fn no_body() -> Out {
    Empty::new().boxed_unsync()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Out {
    Full::new(bytes.into()).boxed_unsync()
}

/// A request to `app.example.test`.
pub(crate) fn to(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "app.example.test")
}

/// Sends over an HTTP/1.1 connection of its own.
pub(crate) async fn send(edge: SocketAddr, request: Request<Out>) -> Result<Response<Incoming>, hyper::Error> {
    let tcp = TcpStream::connect(edge).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await?;
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await
}

/// Sends over an h2c connection of its own.
pub(crate) async fn send_h2c(edge: SocketAddr, request: Request<Out>) -> Result<Response<Incoming>, hyper::Error> {
    let tcp = TcpStream::connect(edge).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

pub(crate) async fn read(response: Response<Incoming>) -> Result<Whole, hyper::Error> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    Ok(Whole { status: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes(), trailers })
}

/// A request and its whole response, in time or not at all.
pub(crate) async fn ask(edge: SocketAddr, request: Request<Out>) -> Whole {
    within(SOON * 3, async { read(send(edge, request).await.unwrap()).await.unwrap() }).await
}

pub(crate) async fn get(edge: SocketAddr, path: &str) -> Whole {
    ask(edge, to("GET", path).body(no_body()).unwrap()).await
}

pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("not within {limit:?}"))
}
