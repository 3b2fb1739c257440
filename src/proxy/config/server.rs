//! The config API over the network: TLS, HTTP/1.1, `PUT` and `GET /v1/config`. Who may speak is decided before anything is
//! read that they sent.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::credential::provider;
use super::{Delivery, Envelope, MAX_DOCUMENT, Rejected};

/// Connections at once.
const MAX_CONNECTIONS: usize = 64;
/// Longest TLS handshake, and longest wait for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a whole document.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How often certificate, key and token are read again.
const RELOAD: Duration = Duration::from_secs(10);

/// Answers until `shutdown`, and follows the files of the credentials meanwhile. A connection that fails ends alone.
///
/// # Errors
/// When TLS cannot be set up at all.
pub async fn serve(listener: TcpListener, delivery: Arc<Delivery>, shutdown: CancellationToken) -> Result<(), rustls::Error> {
    let acceptor = acceptor(&delivery)?;
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accept = async {
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((socket, peer)) => {
                    let (acceptor, delivery, shutdown) = (acceptor.clone(), Arc::clone(&delivery), shutdown.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = shutdown.cancelled() => {}
                            ended = connection(socket, acceptor, delivery) => if let Err(error) = ended {
                                tracing::debug!(%peer, %error, "Config connection ended");
                            },
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "Cannot accept a config connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = accept => {}
        () = delivery.credentials.follow(RELOAD) => {}
    }
    Ok(())
}

fn acceptor(delivery: &Delivery) -> Result<TlsAcceptor, rustls::Error> {
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(delivery.credentials.resolver());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}

#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("no TLS handshake within {} seconds", HEAD_TIMEOUT.as_secs())]
    Slow,
    #[error("tls: {0}")]
    Tls(#[from] std::io::Error),
    #[error("http: {0}")]
    Http(#[from] hyper::Error),
}

async fn connection(socket: TcpStream, acceptor: TlsAcceptor, delivery: Arc<Delivery>) -> Result<(), ConnectionError> {
    let stream = timeout(HEAD_TIMEOUT, acceptor.accept(socket)).await.map_err(|_| ConnectionError::Slow)??;
    let service = service_fn(|request| {
        let delivery = Arc::clone(&delivery);
        async move { Ok::<_, Infallible>(answer(request, &delivery).await.unwrap_or_else(Failure::into_response)) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

/// A request that is not answered as its sender hoped.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the bearer token is missing or wrong")]
    Unauthorized,
    #[error("there is only /v1/config")]
    NotFound,
    #[error("only GET and PUT")]
    Method,
    #[error("the document has more than {MAX_DOCUMENT} bytes")]
    TooLarge,
    #[error("the document did not arrive within {} seconds", BODY_TIMEOUT.as_secs())]
    Slow,
    #[error("the document broke off")]
    Broken,
    #[error("the document is malformed: {}", locate(.0))]
    Malformed(serde_json::Error),
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

impl Failure {
    fn status(&self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken | Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Rejected(Rejected::Gateway { .. } | Rejected::Lease { .. }) => StatusCode::CONFLICT,
            Self::Rejected(Rejected::Compile(_)) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Rejected(Rejected::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        tracing::warn!(error = %self, "Config request refused");
        let mut response = answer_json(self.status(), &json!({ "error": self.to_string() }));
        let headers = response.headers_mut();
        match self {
            Self::Unauthorized => {
                // A stranger does not keep one of the places.
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            Self::Method => headers.insert(header::ALLOW, HeaderValue::from_static("GET, PUT")),
            // What is left of the document is not read.
            Self::TooLarge | Self::Slow => headers.insert(header::CONNECTION, HeaderValue::from_static("close")),
            _ => None,
        };
        response
    }
}

/// Where the document is malformed. What serde says may quote the document, and the document may hold keys; only the names of
/// fields are safe.
fn locate(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if text.starts_with("unknown field") || text.starts_with("missing field") {
        text
    } else {
        format!("line {} column {}", error.line(), error.column())
    }
}

async fn answer(request: Request<Incoming>, delivery: &Arc<Delivery>) -> Result<Response<Full<Bytes>>, Failure> {
    if !authorized(&request, delivery) {
        return Err(Failure::Unauthorized);
    }
    if request.uri().path() != "/v1/config" {
        return Err(Failure::NotFound);
    }
    match *request.method() {
        Method::GET => Ok(answer_json(StatusCode::OK, &json!({ "version": delivery.plane.version() }))),
        Method::PUT => {
            let _reading = delivery.reading.acquire().await;
            let document = read_document(request.into_body()).await?;
            let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice::<Envelope>(&document)).await;
            let envelope = parsed.map_err(|_| Rejected::Internal)?.map_err(|error| {
                delivery.plane.metrics().config_rejected.inc();
                Failure::Malformed(error)
            })?;
            Ok(answer_json(StatusCode::OK, &delivery.push(envelope).await?))
        }
        _ => Err(Failure::Method),
    }
}

fn authorized<B>(request: &Request<B>, delivery: &Delivery) -> bool {
    let Some(value) = request.headers().get(header::AUTHORIZATION) else { return false };
    let Some((scheme, token)) = value.as_bytes().split_at_checked(7) else { return false };
    scheme.eq_ignore_ascii_case(b"bearer ") && delivery.credentials.token().matches(token.trim_ascii())
}

async fn read_document(body: Incoming) -> Result<Bytes, Failure> {
    if body.size_hint().lower() > MAX_DOCUMENT as u64 {
        return Err(Failure::TooLarge);
    }
    let collected = timeout(BODY_TIMEOUT, Limited::new(body, MAX_DOCUMENT).collect()).await.map_err(|_| Failure::Slow)?;
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::TooLarge),
        Err(_) => Err(Failure::Broken),
    }
}

fn answer_json(status: StatusCode, value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
