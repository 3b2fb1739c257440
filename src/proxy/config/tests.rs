//! The config API over real TLS, and what happens across restarts.

use std::path::Path;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry;
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use rustls_pki_types::pem::PemObject;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::ir;
use crate::proxy::http::plane;
use crate::proxy::metrics::Metrics;

const UID: &str = "11111111-2222-3333-4444-555555555555";
const TOKEN: &str = "fixture-secret-token";

/// A plane with its config API, as `serve proxy` sets it up.
struct Fixture {
    directory: TempDir,
    plane: Arc<Plane>,
    delivery: Arc<Delivery>,
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn write_certificate(directory: &Path) -> Vec<u8> {
    let certified = rcgen::generate_simple_self_signed(["cf-proxy".to_owned()]).unwrap();
    let pem = certified.cert.pem();
    std::fs::write(directory.join("tls.crt"), &pem).unwrap();
    std::fs::write(directory.join("tls.key"), certified.signing_key.serialize_pem()).unwrap();
    pem.into_bytes()
}

async fn fixture_in(directory: TempDir) -> Fixture {
    let at = |name| directory.path().join(name);
    let files = Files { certificate: at("tls.crt"), key: at("tls.key"), token: at("token") };
    let plane = Plane::new(plane::Options::new(Metrics::register(&mut Registry::default())));
    let credentials = Arc::new(Credentials::read(files).unwrap());
    let last_good = LastGood::new(directory.path(), UID);
    let delivery = Delivery::new(Arc::clone(&plane), UID, credentials, Some(last_good));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    tokio::spawn(serve(listener, Arc::clone(&delivery), shutdown.clone()));
    Fixture { directory, plane, delivery, address, shutdown }
}

async fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    write_certificate(directory.path());
    std::fs::write(directory.path().join("token"), format!("{TOKEN}\n")).unwrap();
    fixture_in(directory).await
}

impl Fixture {
    /// One request on a connection of its own, as the controller sends it.
    async fn send(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: impl Into<Bytes>,
    ) -> Option<(StatusCode, serde_json::Value)> {
        let mut roots = RootCertStore::empty();
        let pem = std::fs::read(self.directory.path().join("tls.crt")).unwrap();
        roots.add(rustls_pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let socket = TcpStream::connect(self.address).await.ok()?;
        let name = ServerName::try_from("cf-proxy").unwrap();
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "cf-proxy")
            .header("authorization", format!("Bearer {token}"))
            .body(Full::new(body.into()))
            .unwrap();
        let response = sender.send_request(request).await.ok()?;
        let status = response.status();
        let closes = response.headers().get("connection").is_some_and(|value| value == "close");
        assert!(closes || status != StatusCode::UNAUTHORIZED, "a stranger keeps no connection");
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some((status, serde_json::from_slice(&body).unwrap()))
    }

    async fn put(&self, envelope: &Envelope) -> (StatusCode, serde_json::Value) {
        self.send("PUT", "/v1/config", TOKEN, serde_json::to_vec(envelope).unwrap()).await.unwrap()
    }
}

fn envelope(lease_transitions: u64, original_host: bool) -> Envelope {
    let mut config = RouteConfig::empty();
    config.options.allow_x_original_host = original_host;
    Envelope { gateway_uid: UID.into(), lease_transitions, config }
}

#[tokio::test]
async fn a_push_is_applied_and_answered_with_its_version() {
    let f = fixture().await;
    assert_eq!(f.send("GET", "/v1/config", TOKEN, "").await.unwrap().1["version"], serde_json::Value::Null);
    let (status, verdict) = f.put(&envelope(1, false)).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(verdict["version"].as_str(), f.plane.version().as_deref());
    assert_eq!(verdict["refusals"], serde_json::json!([]));
    let (_, again) = f.put(&envelope(1, false)).await;
    assert_eq!(again["version"], verdict["version"], "the version is the content");
    let (_, other) = f.put(&envelope(1, true)).await;
    assert_ne!(other["version"], verdict["version"]);
    assert_eq!(f.send("GET", "/v1/config", TOKEN, "").await.unwrap().1, serde_json::json!({ "version": other["version"] }));
}

#[tokio::test]
async fn refusals_name_route_and_rule() {
    let f = fixture().await;
    let mut pushed = envelope(1, false);
    pushed.config.routes.push(ir::Route {
        object: ObjectRef::new(Kind::HttpRoute, "shop", "web"),
        kind: ir::RouteKind::Http,
        hostnames: Vec::new(),
        listeners: Vec::new(),
        rules: vec![ir::Rule {
            index: 3,
            name: None,
            matches: vec![ir::Match::Http(ir::HttpMatch {
                path: ir::PathMatch::Regex("(".into()),
                method: None,
                headers: Vec::new(),
                query: Vec::new(),
            })],
            filters: Vec::new(),
            backends: Vec::new(),
            response_timeout_ms: None,
            refusal: None,
        }],
    });
    let (status, verdict) = f.put(&pushed).await;
    assert_eq!(status, StatusCode::OK);
    let refusal = &verdict["refusals"][0];
    assert_eq!(refusal["rule"], 3);
    assert!(refusal["route"].to_string().contains("shop") && refusal["reason"].is_string(), "{verdict}");
}

#[tokio::test]
async fn only_the_bearer_of_the_token_is_heard() {
    let f = fixture().await;
    let body = serde_json::to_vec(&envelope(1, false)).unwrap();
    for wrong in ["", "fixture-secret-toke", "fixture-secret-token2", "x"] {
        let (status, answer) = f.send("PUT", "/v1/config", wrong, body.clone()).await.unwrap();
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(!answer.to_string().contains("fixture-secret"));
    }
    assert_eq!(f.send("PUT", "/nowhere", "x", "").await.unwrap().0, StatusCode::UNAUTHORIZED, "paths are not told to strangers");
    assert_eq!(f.plane.version(), None);
    assert_eq!(f.send("PUT", "/nowhere", TOKEN, "").await.unwrap().0, StatusCode::NOT_FOUND);
    assert_eq!(f.send("POST", "/v1/config", TOKEN, body).await.unwrap().0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_deposed_leader_and_a_stranger_are_refused() {
    let f = fixture().await;
    f.put(&envelope(5, false)).await;
    let version = f.plane.version();
    let (status, answer) = f.put(&envelope(4, true)).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(answer["error"].as_str().unwrap().contains("lost the lease"), "{answer}");
    let stranger = Envelope { gateway_uid: "other".into(), ..envelope(9, true) };
    assert_eq!(f.put(&stranger).await.0, StatusCode::CONFLICT);
    assert_eq!(f.plane.version(), version);
    assert_eq!(f.put(&envelope(6, true)).await.0, StatusCode::OK, "a refused push does not raise the count");
}

#[tokio::test]
async fn a_bad_document_keeps_what_serves() {
    let f = fixture().await;
    f.put(&envelope(1, false)).await;
    let version = f.plane.version();
    let put = |body: Vec<u8>| f.send("PUT", "/v1/config", TOKEN, body);
    let good = serde_json::to_string(&envelope(1, true)).unwrap();
    let half = good.as_bytes()[..good.len() / 2].to_vec();
    let unknown = good.replacen("gatewayUid", "gatewayUId", 1).into_bytes();
    for bad in [Vec::new(), b"null".to_vec(), vec![b'['; 100_000], half, unknown, b"\xff\xfe".to_vec()] {
        let (status, answer) = put(bad).await.unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    }
    let mut format = envelope(1, true);
    format.config.format = 99;
    assert_eq!(f.put(&format).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let large = put(vec![b' '; MAX_DOCUMENT + 1]).await;
    assert!(large.is_none_or(|(status, _)| status == StatusCode::PAYLOAD_TOO_LARGE));
    assert_eq!(f.plane.version(), version);
}

#[tokio::test]
async fn plain_text_is_no_way_in() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let f = fixture().await;
    let mut socket = TcpStream::connect(f.address).await.unwrap();
    socket.write_all(b"GET /v1/config HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    assert_eq!(f.send("GET", "/v1/config", TOKEN, "").await.unwrap().0, StatusCode::OK, "others are not disturbed");
}

#[tokio::test]
async fn changed_files_are_read_again_and_bad_ones_are_not() {
    let f = fixture().await;
    let path = |name| f.directory.path().join(name);
    write_certificate(f.directory.path());
    std::fs::write(path("token"), "second-token").unwrap();
    assert!(f.send("GET", "/v1/config", TOKEN, "").await.is_none(), "the new certificate is not in use yet");
    f.delivery.credentials.reload().unwrap();
    assert_eq!(f.send("GET", "/v1/config", TOKEN, "").await.unwrap().0, StatusCode::UNAUTHORIZED);
    assert_eq!(f.send("GET", "/v1/config", "second-token", "").await.unwrap().0, StatusCode::OK);

    for (name, bad) in [("token", " \n"), ("tls.key", "nonsense")] {
        let good = std::fs::read(path(name)).unwrap();
        std::fs::write(path(name), bad).unwrap();
        let error = f.delivery.credentials.reload().unwrap_err().to_string();
        assert!(error.contains(name) && !error.contains("nonsense"), "{error}");
        assert_eq!(f.send("GET", "/v1/config", "second-token", "").await.unwrap().0, StatusCode::OK, "{name}");
        std::fs::write(path(name), good).unwrap();
    }
    // A certificate that is not the key's own.
    let key = std::fs::read(path("tls.key")).unwrap();
    let certificate = std::fs::read(path("tls.crt")).unwrap();
    write_certificate(f.directory.path());
    std::fs::write(path("tls.key"), key).unwrap();
    assert!(matches!(f.delivery.credentials.reload(), Err(CredentialError::Key { .. })));
    std::fs::write(path("tls.crt"), certificate).unwrap();
    assert_eq!(f.send("GET", "/v1/config", "second-token", "").await.unwrap().0, StatusCode::OK);
}

#[tokio::test]
async fn a_restarted_plane_serves_by_the_stored_document_until_a_push() {
    let mut f = fixture().await;
    let (_, verdict) = f.put(&envelope(7, true)).await;
    f.shutdown.cancel();
    let directory = std::mem::replace(&mut f.directory, tempfile::tempdir().unwrap());

    let restarted = fixture_in(directory).await;
    let stale = restarted.delivery.stale();
    assert!(restarted.delivery.restore_unless_pushed(Duration::from_millis(10)).await);
    assert_eq!(restarted.plane.version().as_deref(), verdict["version"].as_str());
    assert!(*stale.borrow());
    assert_eq!(restarted.put(&envelope(6, false)).await.0, StatusCode::CONFLICT, "the lease count survives");
    assert!(*stale.borrow());
    assert_eq!(restarted.put(&envelope(7, false)).await.0, StatusCode::OK);
    assert!(!*stale.borrow());
}

#[tokio::test]
async fn a_stored_document_never_replaces_a_pushed_one_or_serves_another_token() {
    let mut f = fixture().await;
    f.put(&envelope(7, true)).await;
    let version = f.plane.version();
    assert!(!f.delivery.restore_unless_pushed(Duration::from_millis(10)).await);
    assert_eq!(f.plane.version(), version);
    let directory = std::mem::replace(&mut f.directory, tempfile::tempdir().unwrap());

    std::fs::write(directory.path().join("token"), "another").unwrap();
    let other = fixture_in(directory).await;
    assert!(!other.delivery.restore_unless_pushed(Duration::from_millis(10)).await);
    assert_eq!(other.plane.version(), None);
}

#[test]
fn nothing_shows_the_token() {
    let token = Token::new(TOKEN.as_bytes().to_vec()).unwrap();
    assert!(!format!("{token:?}").contains("fixture"));
    assert!(Token::new(b" \n".to_vec()).is_none());
    assert!(token.matches(TOKEN.as_bytes()) && !token.matches(b""));
}
