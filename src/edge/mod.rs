//! The built-in edge: the other end of the tunnel, on loopback. For `serve local` and for tests, with faults on demand.
//!
//! It does to a connector what Cloudflare's edge does (tunnel-protocol §4 to §8), for ours and for others. It knows nothing of
//! routes and backends, and keeps nothing in memory but what is under way and a bounded list of events.

mod certificate;
mod client;
mod control;
mod fault;
mod http2;
mod inject;
mod link;
mod quic;
mod relay;
mod session;
mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::gateway::token::{TunnelSecret, TunnelToken};

pub use fault::{Faults, Kill, Refusal};
pub use session::{ConfigAck, Event, EventKind, SessionState, State, Transport};

/// Where to listen and for which tunnel.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients come in: HTTP/1.1, h2c, WebSocket, gRPC. Port 0 takes any.
    pub clients: SocketAddr,
    /// Where connectors come in: TCP and UDP on one port. Port 0 takes any that is free for both.
    pub tunnel: SocketAddr,
    /// The tunnel that connectors may register. `None` makes one up.
    pub token: Option<TunnelToken>,
}

/// Why the edge cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// A port that cannot be bound.
    #[error("cannot listen on {address} for {what}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Whom for.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// No certificate.
    #[error("cannot make the edge's certificate")]
    Certificate(#[from] rcgen::Error),
    /// No TLS with it.
    #[error("cannot set up the edge's tls")]
    Tls(#[from] rustls::Error),
    /// No TLS for QUIC with it.
    #[error("cannot set up the edge's tls for quic")]
    QuicTls(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

/// Which connections an act is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those with this index: one per connector.
    Index(u8),
}

/// A running edge. Dropping it stops it at once; [`Edge::shutdown`] lets clients finish.
#[derive(Debug)]
pub struct Edge {
    shared: Arc<Shared>,
    ca_pem: String,
    client_addr: SocketAddr,
    tunnel_addr: SocketAddr,
    endpoint: Option<quinn::Endpoint>,
    /// Lives until the UDP port is free again.
    udp: Weak<socket::MutableSocket>,
}

/// What every task of the edge has at hand.
#[derive(Debug)]
struct Shared {
    token: TunnelToken,
    faults: Faults,
    sessions: session::Sessions,
    tasks: TaskTracker,
    /// No new clients and connectors.
    closing: CancellationToken,
    /// Everything ends.
    stop: CancellationToken,
}

/// How long clients have to finish at shutdown.
const GRACE: Duration = Duration::from_secs(2);

impl Edge {
    /// Binds the ports and starts to serve. Needs a tokio runtime.
    ///
    /// # Errors
    /// When a port is taken, or TLS cannot be set up.
    pub async fn start(config: Config) -> Result<Self, EdgeError> {
        let certificates = certificate::Certificates::generate()?;
        let faults = Faults::default();
        let (tunnel, endpoint, udp) = bind_tunnel(config.tunnel, &certificates, &faults).await?;
        let clients = TcpListener::bind(config.clients).await.map_err(|source| EdgeError::Bind {
            address: config.clients,
            what: "clients",
            source,
        })?;
        let address = |l: &TcpListener, wanted| l.local_addr().unwrap_or(wanted);
        let (client_addr, tunnel_addr) = (address(&clients, config.clients), address(&tunnel, config.tunnel));
        let shared = Arc::new(Shared {
            token: config.token.unwrap_or_else(made_up_token),
            faults,
            sessions: session::Sessions::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let acceptor = certificates.acceptor()?;
        shared.tasks.spawn(client::listen(Arc::clone(&shared), clients));
        shared.tasks.spawn(http2::listen(Arc::clone(&shared), tunnel, acceptor));
        shared.tasks.spawn(quic::listen(Arc::clone(&shared), endpoint.clone()));
        Ok(Self { shared, ca_pem: certificates.ca_pem, client_addr, tunnel_addr, endpoint: Some(endpoint), udp })
    }

    /// The token that connectors register with.
    pub fn token(&self) -> &TunnelToken {
        &self.shared.token
    }

    /// The certificate that connectors have to trust. Made at each start.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Where clients come in.
    pub fn client_addr(&self) -> SocketAddr {
        self.client_addr
    }

    /// Where connectors come in, over TCP and UDP.
    pub fn tunnel_addr(&self) -> SocketAddr {
        self.tunnel_addr
    }

    /// What goes wrong, and can be changed while the edge runs.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// The connections, and what has happened.
    pub fn state(&self) -> State {
        self.shared.sessions.state()
    }

    /// Waits until `ready` holds of the state; false after `limit`.
    pub async fn wait_until(&self, limit: Duration, mut ready: impl FnMut(&State) -> bool) -> bool {
        let mut changes = self.shared.sessions.changes();
        let wait = async {
            while !ready(&self.state()) {
                // The sender lives as long as the edge.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }

    /// Makes `json` the tunnel's configuration: pushed to every connection, and to new ones as they register.
    /// What they answer is in [`SessionState::config_ack`].
    pub fn push_config(&self, version: i32, json: impl Into<bytes::Bytes>) {
        self.shared.sessions.set_config(version, json.into());
        control::push_config_to_all(&self.shared);
    }

    /// Cuts connections. Returns how many.
    pub fn drop_connections(&self, which: Which) -> usize {
        self.shared.sessions.command(which, || link::Command::Close("dropped on demand".into()))
    }

    /// Takes connections out of service: no new requests, GOAWAY on HTTP/2, cut when idle. Returns how many.
    pub fn goaway(&self, which: Which) -> usize {
        self.shared.sessions.drain(which)
    }

    /// Sends bytes that no edge would send: between two frames of an HTTP/2 connection, or on a new stream of a QUIC one.
    /// Returns to how many.
    pub fn send_garbage(&self, which: Which, bytes: impl Into<bytes::Bytes>) -> usize {
        let bytes = bytes.into();
        self.shared.sessions.command(which, || link::Command::Inject(bytes.clone()))
    }

    /// Stops: no new clients, a short grace for those that are being served, then everything is cut.
    pub async fn shutdown(mut self) {
        self.shared.closing.cancel();
        let _ = self.wait_until(GRACE, |state| state.requests_in_flight == 0).await;
        // What the last request has left in a socket's buffer needs a moment to be taken.
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.shared.stop.cancel();
        self.shared.tasks.close();
        // Sockets are closed by their tasks; a task that hangs must not hang the process.
        let _ = tokio::time::timeout(GRACE, self.shared.tasks.wait()).await;
        self.close_endpoint();
        // The endpoint's own task says goodbye to the connectors and then lets go of the port.
        let free = async {
            while self.udp.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(GRACE, free).await;
    }

    fn close_endpoint(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close(0_u32.into(), b"");
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.shared.closing.cancel();
        self.shared.stop.cancel();
        self.close_endpoint();
    }
}

/// Tries that a free port is looked for under which TCP and UDP are both free.
const PORT_TRIES: usize = 32;

async fn bind_tunnel(
    wanted: SocketAddr,
    certificates: &certificate::Certificates,
    faults: &Faults,
) -> Result<(TcpListener, quinn::Endpoint, Weak<socket::MutableSocket>), EdgeError> {
    let error = |source| EdgeError::Bind { address: wanted, what: "connectors", source };
    let mut tries = if wanted.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let tcp = TcpListener::bind(wanted).await.map_err(error)?;
        let address = tcp.local_addr().map_err(error)?;
        match std::net::UdpSocket::bind(address) {
            Ok(udp) => {
                let (endpoint, udp) = quic::endpoint(udp, certificates, faults)?;
                return Ok((tcp, endpoint, udp));
            }
            Err(source) if tries == 0 || source.kind() != io::ErrorKind::AddrInUse => return Err(error(source)),
            Err(_) => {}
        }
    }
}

/// A tunnel of nobody's account, different at each start.
fn made_up_token() -> TunnelToken {
    let random = || *Uuid::new_v4().as_bytes();
    TunnelToken {
        account_tag: Uuid::new_v4().simple().to_string(),
        tunnel_id: Uuid::new_v4(),
        secret: TunnelSecret::new([random(), random()].concat()),
        endpoint: None,
    }
}
