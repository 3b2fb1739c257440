//! Direct listeners: clients on real sockets, the request path, a backend. No tunnel.

mod drain;
mod limits;
mod protocols;
mod strict;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use cftunnel::proxy::direct::tls::{Identity, Resumption};
use cftunnel::proxy::direct::{self, Direct, Limits};
use cftunnel::proxy::http::Plane;
use cftunnel::proxy::http::plane::Options;
use cftunnel::proxy::metrics::Metrics;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use super::support::client::within;
use super::support::origin::Origin;
use super::support::{SOON, routes};

/// A plane behind a direct listener.
struct Listening {
    addr: SocketAddr,
    direct: Arc<Direct<Plane>>,
    plane: Arc<Plane>,
    origin: Origin,
}

impl Listening {
    async fn start(limits: Limits) -> Self {
        Self::with(limits, None).await
    }

    async fn with(limits: Limits, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let origin = Origin::start().await;
        let plane = Plane::new(Options::new(Metrics::register(&mut Registry::default())));
        plane.apply(&routes(origin.addr, true)).unwrap();
        let direct = Direct::new(Arc::clone(&plane), limits);
        let socket = direct::bind(([127, 0, 0, 1], 0).into(), 1).unwrap().remove(0);
        let addr = socket.local_addr().unwrap();
        tokio::spawn(Arc::clone(&direct).serve(TcpListener::from_std(socket).unwrap(), tls));
        Self { addr, direct, plane, origin }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Sends bytes on a connection of their own; all that comes back until its end.
    async fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut socket = self.connect().await;
        socket.write_all(bytes.as_ref()).await.unwrap();
        rest(&mut socket).await
    }

    fn requests(&self) -> usize {
        self.origin.seen.requests.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Everything up to the end of a connection, which must come; a reset is an end, too.
async fn rest(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        match within(SOON, socket.read(&mut piece)).await {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&answer).into_owned(),
            Ok(n) => answer.extend_from_slice(&piece[..n]),
        }
    }
}

/// Everything up to `end`.
async fn until(socket: &mut TcpStream, end: &str) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(end.as_bytes()) {
        let byte = within(SOON, socket.read_u8()).await;
        answer.push(byte.unwrap_or_else(|e| panic!("{e} after {:?}", String::from_utf8_lossy(&answer))));
    }
    String::from_utf8(answer).unwrap()
}

/// A certificate for `app.example.test`, and its key, in a folder.
struct Certificate {
    pem: String,
    identity: Identity,
    _folder: tempfile::TempDir,
}

impl Certificate {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["app.example.test".to_owned()]).unwrap();
        let pem = made.cert.pem();
        let write = |name: &str, text: &str| {
            let path = Path::new(folder.path()).join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let identity = Identity::read(write("tls.crt", &pem), write("tls.key", &made.signing_key.serialize_pem())).unwrap();
        Self { pem, identity, _folder: folder }
    }

    fn server(&self, resumption: Resumption) -> Arc<rustls::ServerConfig> {
        self.identity.server_config(resumption).unwrap()
    }

    fn client(&self, alpn: &[&str]) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        let certificate =
            <rustls_pki_types::CertificateDer<'_> as rustls_pki_types::pem::PemObject>::from_pem_slice(self.pem.as_bytes());
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

async fn connect_tls(addr: SocketAddr, config: &Arc<rustls::ClientConfig>) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(addr).await.unwrap();
    let name = "app.example.test".try_into().unwrap();
    within(SOON, tokio_rustls::TlsConnector::from(Arc::clone(config)).connect(name, tcp)).await.unwrap()
}
