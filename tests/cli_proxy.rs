//! `serve proxy` as a controller uses it: the real binary, a push over TLS, requests through the built-in edge, a restart without
//! the controller. Loopback only.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cftunnel::edge::{self, Edge};
use cftunnel::gateway::id::{Kind, ObjectRef};
use cftunnel::gateway::ir::{
    Filter, HttpMatch, Listener, ListenerProtocol, Match, PathMatch, Redirect, RedirectPort, Route, RouteConfig, RouteKind, Rule,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const SOON: Duration = Duration::from_secs(20);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// One route that redirects everything: it needs no backend.
fn redirect_to(host: &str) -> RouteConfig {
    let gateway = ObjectRef::new(Kind::Gateway, "shop", "edge");
    let redirect = Redirect { scheme: None, hostname: Some(host.into()), port: RedirectPort::None, path: None, status: 302 };
    RouteConfig {
        listeners: vec![Listener {
            gateway: gateway.clone(),
            source: gateway,
            name: "http".into(),
            port: 80,
            protocol: ListenerProtocol::Http,
            hostname: None,
        }],
        routes: vec![Route {
            object: ObjectRef::new(Kind::HttpRoute, "shop", "web"),
            kind: RouteKind::Http,
            hostnames: Vec::new(),
            listeners: vec![0],
            rules: vec![Rule {
                index: 0,
                name: None,
                matches: vec![Match::Http(HttpMatch {
                    path: PathMatch::Prefix("/".into()),
                    method: None,
                    headers: Vec::new(),
                    query: Vec::new(),
                })],
                filters: vec![Filter::Redirect(redirect)],
                backends: Vec::new(),
                response_timeout_ms: None,
                refusal: None,
            }],
        }],
        ..RouteConfig::empty()
    }
}

/// A running `serve proxy`.
struct Proxy {
    child: Child,
    pushes: SocketAddr,
    probes: SocketAddr,
}

impl Proxy {
    async fn start(folder: &Path, edge: &Edge) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-cftunnel"))
            .env_clear()
            .current_dir(folder)
            .env("TUNNEL_TOKEN", edge.token().encode().as_str())
            .args(["serve", "proxy", "--gateway-uid", "uid-1", "--state-dir", "state", "--config-wait", "6"])
            .args(["--config-listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0", "--edge-ca-file", "edge.pem"])
            .args(["--tls-cert-file", "tls.crt", "--tls-key-file", "tls.key", "--auth-token-file", "auth"])
            .args(["--edge", &edge.tunnel_addr().to_string()])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = |line: &str, name: &str| -> Option<SocketAddr> {
            line.split_whitespace().find_map(|word| word.strip_prefix(name))?.parse().ok()
        };
        loop {
            let line = timeout(SOON, lines.next_line()).await.expect("in time").expect("utf-8").expect("still running");
            if let (Some(pushes), Some(probes)) = (address(&line, "config="), address(&line, "probes=")) {
                // Whoever does not read its log must not block it.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Self { child, pushes, probes };
            }
        }
    }

    async fn stop(mut self) -> Option<i32> {
        let id = self.child.id().expect("runs").to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.expect("kill runs").success());
        timeout(SOON, self.child.wait()).await.expect("in time").expect("a child").code()
    }

    /// Pushes a document; the whole answer.
    async fn push(&self, pem: &str, token: &str, config: &RouteConfig) -> String {
        let mut roots = rustls::RootCertStore::empty();
        let certificate =
            <rustls_pki_types::CertificateDer<'_> as rustls_pki_types::pem::PemObject>::from_pem_slice(pem.as_bytes());
        roots.add(certificate.expect("a certificate")).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.pushes).await.expect("connects");
        let name = "plane".try_into().expect("a name");
        let mut stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.expect("a handshake");
        let body = serde_json::json!({ "gatewayUid": "uid-1", "leaseTransitions": 1, "config": config }).to_string();
        let head = format!(
            "PUT /v1/config HTTP/1.1\r\nHost: plane\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.expect("written");
        let mut answer = String::new();
        // The end without a TLS goodbye is not what is tested.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
    answer
}

/// Asks until the answer holds `text`.
async fn until(address: SocketAddr, path: &str, text: &str) -> String {
    let start = Instant::now();
    loop {
        let answer = get(address, path).await;
        if answer.contains(text) {
            return answer;
        }
        assert!(start.elapsed() < SOON, "{answer}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_configuration_serves_and_survives_a_restart_without_the_controller() {
    // The process of the test has no main that would do it.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let edge = Edge::start(edge::Config { clients: LOOPBACK, tunnel: LOOPBACK, token: None }).await.expect("an edge");
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::generate_simple_self_signed(vec!["plane".to_owned()]).expect("a certificate");
    let pem = key.cert.pem();
    let files = [
        ("tls.crt", pem.clone()),
        ("tls.key", key.signing_key.serialize_pem()),
        ("auth", "let-me-in\n".to_owned()),
        ("edge.pem", edge.ca_pem().to_owned()),
    ];
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("written");
    }

    let proxy = Proxy::start(folder.path(), &edge).await;
    assert!(get(proxy.probes, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(proxy.probes, "/readyz").await.contains(r#""missing":["configuration","connection"]"#));
    assert!(proxy.push(&pem, "guess", &redirect_to("one.example.com")).await.starts_with("HTTP/1.1 401"));
    let answer = proxy.push(&pem, "let-me-in", &redirect_to("one.example.com")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("version"), "{answer}");
    until(proxy.probes, "/readyz", "HTTP/1.1 200").await;
    until(edge.client_addr(), "/a", "location: http://one.example.com/a").await;
    proxy.push(&pem, "let-me-in", &redirect_to("two.example.com")).await;
    until(edge.client_addr(), "/a", "location: http://two.example.com/a").await;
    let metrics = get(proxy.probes, "/metrics").await;
    assert!(
        metrics.contains("cftunnel_proxy_requests_in_flight 0") && metrics.contains("cftunnel_proxy_requests_total"),
        "{metrics}"
    );
    assert_eq!(proxy.stop().await, Some(0));

    let proxy = Proxy::start(folder.path(), &edge).await;
    let ready = until(proxy.probes, "/readyz", "HTTP/1.1 200").await;
    assert!(ready.contains(r#""configStale":true"#), "{ready}");
    until(edge.client_addr(), "/a", "location: http://two.example.com/a").await;
    assert_eq!(proxy.stop().await, Some(0));
}
