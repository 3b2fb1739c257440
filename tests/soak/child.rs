//! The system under test: the real binary as `serve proxy`, in a process of its own, and what can be seen of it from outside.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cftunnel::edge::Edge;
use cftunnel::gateway::ir::RouteConfig;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// Longest wait for what should take milliseconds.
const SOON: Duration = Duration::from_secs(30);
const UID: &str = "soak";
const TOKEN: &str = "let-me-in";

/// What every child of a run needs on disk.
#[derive(Debug)]
pub(crate) struct Folder {
    path: tempfile::TempDir,
    tls: Arc<rustls::ClientConfig>,
}

impl Folder {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let path = tempfile::tempdir()?;
        let key = rcgen::generate_simple_self_signed(vec!["plane".to_owned()])?;
        let pem = key.cert.pem();
        for (name, text) in [("tls.crt", &pem), ("tls.key", &key.signing_key.serialize_pem()), ("auth", &TOKEN.to_owned())] {
            fs::write(path.path().join(name), text)?;
        }
        let mut roots = rustls::RootCertStore::empty();
        roots.add(rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { path, tls: Arc::new(tls) })
    }
}

/// A running `serve proxy`.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) name: String,
    child: Child,
    log: PathBuf,
    pushes: SocketAddr,
    probes: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
}

impl Proxy {
    /// Starts one and waits until it listens. It registers once it has a configuration.
    pub(crate) async fn start(folder: &Folder, name: &str, edge: &Edge, protocol: &str) -> anyhow::Result<Self> {
        let dir = folder.path.path();
        let (ca, log) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.log")));
        fs::write(&ca, edge.ca_pem())?;
        let binary = std::env::var_os("SOAK_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_kubectl-cftunnel").into());
        let child = Command::new(&binary)
            .env_clear()
            .current_dir(dir)
            .env("TUNNEL_TOKEN", edge.token().encode().as_str())
            .args(["serve", "proxy", "--gateway-uid", UID, "--tunnel-protocol", protocol])
            .args(["--config-listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0", "--edge-ca-file"])
            .arg(&ca)
            .args(["--tls-cert-file", "tls.crt", "--tls-key-file", "tls.key", "--auth-token-file", "auth"])
            .args(["--state-dir", &format!("state-{name}"), "--edge", &edge.tunnel_addr().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(&log)?;
            let address = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok());
            if let (Some(pushes), Some(probes)) = (address("config="), address("probes=")) {
                return Ok(Self { name: name.to_owned(), child, log, pushes, probes, tls: folder.tls.clone() });
            }
            ensure!(start.elapsed() < SOON, "{name} does not listen:\n{text}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Pushes a configuration and makes sure that it is the one in force.
    pub(crate) async fn push(&self, config: &RouteConfig) -> anyhow::Result<()> {
        let answer = timeout(SOON, self.put(config)).await.context("no answer to a push in time")??;
        let expected = hex(&Sha256::digest(serde_json::to_vec(config)?));
        ensure!(answer.starts_with("HTTP/1.1 200") && answer.contains(&expected), "a push was answered with {answer:?}");
        ensure!(answer.contains(r#""refusals":[]"#), "a pushed configuration is refused in part: {answer:?}");
        Ok(())
    }

    async fn put(&self, config: &RouteConfig) -> anyhow::Result<String> {
        let stream = TcpStream::connect(self.pushes).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls));
        let mut stream = connector.connect("plane".try_into()?, stream).await?;
        let body = serde_json::json!({ "gatewayUid": UID, "leaseTransitions": 1, "config": config }).to_string();
        let head = format!(
            "PUT /v1/config HTTP/1.1\r\nHost: plane\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await?;
        let mut answer = Vec::new();
        // The end may come without a TLS goodbye.
        let _ = stream.read_to_end(&mut answer).await;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// One of its own figures.
    pub(crate) async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let scrape = async {
            let mut stream = TcpStream::connect(self.probes).await?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: plane\r\nConnection: close\r\n\r\n").await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            anyhow::Ok(text)
        };
        let text = timeout(SOON, scrape).await.context("no metrics in time")??;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.with_context(|| format!("no {name} in the metrics"))?.parse().context("a figure")
    }

    /// Waits until a figure is what it should be.
    pub(crate) async fn wait_for(&self, name: &str, ready: impl Fn(f64) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let value = self.metric(name).await?;
            if ready(value) {
                return Ok(());
            }
            ensure!(start.elapsed() < SOON, "{name} of {} is {value} after {SOON:?}", self.name);
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// What the system says of the process.
    pub(crate) fn sample(&self) -> anyhow::Result<Sample> {
        self.look().with_context(|| format!("{} is gone; its last words:\n{}", self.name, last_lines(&self.log, 20)))
    }

    fn look(&self) -> anyhow::Result<Sample> {
        let id = self.child.id().context("the process has ended")?;
        let root = PathBuf::from(format!("/proc/{id}"));
        let status = fs::read_to_string(root.join("status"))?;
        let rollup = fs::read_to_string(root.join("smaps_rollup"))?;
        Ok(Sample {
            rss: field(&status, "VmRSS:")?,
            pss: field(&rollup, "Pss:")?,
            threads: field(&status, "Threads:")?,
            fds: fs::read_dir(root.join("fd"))?.count() as f64,
        })
    }

    /// Asks it to end.
    pub(crate) async fn terminate(&self) -> anyhow::Result<()> {
        let id = self.child.id().context("the process has ended before it was told to")?.to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().await.context("cannot run kill")?;
        ensure!(sent.success(), "kill failed");
        Ok(())
    }

    /// Waits for its end, which must be a good one.
    pub(crate) async fn ended(mut self, limit: Duration) -> anyhow::Result<()> {
        let Ok(status) = timeout(limit, self.child.wait()).await else {
            bail!("{} has not ended {limit:?} after SIGTERM", self.name);
        };
        let status = status?;
        ensure!(status.code() == Some(0), "{} ended with {status} after SIGTERM", self.name);
        self.check_log()
    }

    /// Looks for panics.
    pub(crate) fn check_log(&self) -> anyhow::Result<()> {
        let text = fs::read_to_string(&self.log)?;
        let panic = text.lines().find(|line| line.contains("panicked"));
        panic.map_or(Ok(()), |line| bail!("{}: {line}", self.name))
    }
}

fn last_lines(path: &Path, n: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

/// Sizes in KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) rss: f64,
    pub(crate) pss: f64,
    pub(crate) threads: f64,
    pub(crate) fds: f64,
}

fn field(text: &str, name: &str) -> anyhow::Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name} in /proc"))?;
    line.split_whitespace().next().context("a number")?.parse().context("a number")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
