//! One connection, from the dial to its end: connect, register, serve, unregister. What comes next is decided in
//! [`state`](super::state); this only reports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::control::{Control, ControlError, Details, RPC_TIMEOUT};
use super::dns::Resolve;
use super::edge::Edge;
use super::link::{ControlStream, Link, LinkError, Rtt};
use super::state::{DialId, Loss, Transport};
use super::stream::{LARGE_HEADS, PushedVersion, Streams};
use super::uploads::Uploads;
use super::wire::registration::{ClientInfo, ConnectionOptions, Registration};
use super::{http2, quic};
use crate::gateway::token::TunnelToken;
use crate::proxy::http::Serve;

/// What the connector can do (tunnel-protocol §6.3).
const FEATURES: [&str; 4] = ["allow_remote_config", "serialized_headers", "support_datagram_v2", "support_quic_eof"];

/// Longest wait for the edge to confirm that it sends no more requests, if the grace allows it. Closing without that loses those
/// that it sends meanwhile; an edge that is dead, not slow, is found out sooner by other means.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// What we tell the edge of a locally managed tunnel: that nothing is routed by its documents.
const LOCAL_CONFIGURATION: &[u8] = br#"{"ingress":[{"service":"http_status:404"}]}"#;

/// What a connection has to say.
pub(super) enum Report {
    /// It is dialing this address.
    Dialing(DialId, SocketAddr),
    /// It is registered.
    Registered(DialId, Details, Arc<Rtt>),
    /// The try failed, or the connection is gone.
    Lost(DialId, Loss, String),
    /// The edge will close it.
    Leaving(DialId),
    /// It gets no new requests.
    Unregistered(DialId),
    /// It was retired and is closed, or given up before it was registered.
    Closed(DialId),
    /// Whether a QUIC handshake succeeded.
    Probed(bool),
}

/// One try.
pub(super) struct Dial {
    pub(super) slot: u8,
    pub(super) id: DialId,
    pub(super) transport: Transport,
    pub(super) rotate: bool,
    pub(super) attempts: u8,
    /// Cancelled when the connection is to be retired, or given up if it is not registering yet.
    pub(super) retire: CancellationToken,
}

/// What every connection needs.
pub(super) struct Dialer<S, R> {
    pub(super) service: Arc<S>,
    pub(super) edge: Edge<R>,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) quic: quic::Settings,
    /// By slot.
    pub(super) sockets: Vec<quic::Sockets>,
    pub(super) token: TunnelToken,
    pub(super) client_id: Uuid,
    pub(super) grace: Duration,
    pub(super) pushed: Arc<PushedVersion>,
    pub(super) reports: mpsc::Sender<Report>,
}

/// Why there is no registered connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("given up for a drain")]
    GivenUp,
}

impl ConnectError {
    fn loss(&self) -> Loss {
        match self {
            Self::Link(LinkError::Edge(_)) => Loss::NoAddress,
            Self::Link(_) => Loss::Dial,
            Self::Control(error) => error.loss(),
            Self::GivenUp => Loss::Ended,
        }
    }

    fn is_permanent(&self) -> bool {
        matches!(self, Self::Control(ControlError::Refused { permanent: true, .. }))
    }
}

impl<S: Serve, R: Resolve> Dialer<S, R> {
    /// Makes a connection and stays with it to its end.
    pub(super) async fn run(self: Arc<Self>, dial: Dial) {
        match self.connect(&dial).await {
            Ok((link, control)) => self.serve(&dial, link, control).await,
            Err(ConnectError::GivenUp) => self.report(Report::Closed(dial.id)).await,
            Err(error) => {
                if error.is_permanent() {
                    tracing::error!(error = %error, "Edge refuses the tunnel; check the token and that the tunnel exists");
                } else {
                    tracing::warn!(error = %error, attempts = dial.attempts, "Connection failed");
                }
                self.report(Report::Lost(dial.id, error.loss(), error.to_string())).await;
            }
        }
    }

    /// Finds out whether QUIC works, without touching the connections.
    pub(super) async fn probe(self: Arc<Self>) {
        let usable = match (self.edge.any_address(), self.sockets.first()) {
            (Some(address), Some(sockets)) => match quic::probe(address, &self.quic, sockets).await {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(error = %error, "QUIC probe failed");
                    false
                }
            },
            _ => false,
        };
        self.report(Report::Probed(usable)).await;
    }

    async fn report(&self, report: Report) {
        // Nobody listens only when the connector is gone.
        drop(self.reports.send(report).await);
    }

    async fn connect(&self, dial: &Dial) -> Result<(Link, Control<ControlStream>), ConnectError> {
        let address = unless_given_up(dial, self.edge.address(dial.slot, dial.rotate)).await?.map_err(LinkError::from)?;
        self.report(Report::Dialing(dial.id, address)).await;
        let connected = self.connect_to(dial, address).await;
        let spoken = !matches!(&connected, Err(error) if error.loss() == Loss::Dial);
        self.edge.dialed(address, spoken);
        let (link, control, details) = connected?;
        self.report(Report::Registered(dial.id, details, Arc::clone(&link.rtt))).await;
        Ok((link, control))
    }

    async fn connect_to(
        &self,
        dial: &Dial,
        address: SocketAddr,
    ) -> Result<(Link, Control<ControlStream>, Details), ConnectError> {
        let streams = Streams {
            service: Arc::clone(&self.service),
            index: dial.slot,
            requests: TaskTracker::new(),
            pushed: Arc::clone(&self.pushed),
            uploads: Uploads::new(),
            large_heads: Semaphore::new(LARGE_HEADS),
        };
        let established = async {
            let mut link = match (dial.transport, self.sockets.get(usize::from(dial.slot))) {
                (Transport::Quic, Some(sockets)) => quic::dial(address, &self.quic, sockets, streams).await?,
                _ => http2::dial(address, Arc::clone(&self.tls), streams).await?,
            };
            let stream = link.control_stream().await?;
            Ok::<_, LinkError>((link, stream))
        };
        let (link, stream) = unless_given_up(dial, established).await??;
        let registration = self.registration(dial, &link);
        let (mut control, details) = Control::register(stream, &registration).await?;
        tracing::info!(address = %address, location = details.location, connection_id = %details.uuid, "Connection registered");
        if !details.remotely_managed && dial.slot == 0 {
            control.push_local_configuration(LOCAL_CONFIGURATION)?;
        }
        Ok((link, control, details))
    }

    fn registration(&self, dial: &Dial, link: &Link) -> Registration {
        Registration {
            account_tag: self.token.account_tag.clone(),
            tunnel_secret: self.token.secret.clone(),
            tunnel_id: self.token.tunnel_id,
            conn_index: dial.slot,
            options: ConnectionOptions {
                client: ClientInfo {
                    client_id: self.client_id,
                    features: FEATURES.map(str::to_owned).to_vec(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    arch: arch(),
                },
                origin_local_ip: link.local,
                num_previous_attempts: dial.attempts,
                ..ConnectionOptions::default()
            },
        }
    }

    async fn serve(&self, dial: &Dial, mut link: Link, mut control: Control<ControlStream>) {
        let mut announced = false;
        let leaving = link.leaving.clone();
        let (loss, error) = loop {
            tokio::select! {
                () = dial.retire.cancelled() => return self.retire(dial, link, control).await,
                error = control.ended() => break (Loss::Ended, error.to_string()),
                error = link.ended() => break (error.loss(), error.to_string()),
                () = leaving.cancelled(), if !announced => {
                    announced = true;
                    tracing::info!("Edge is closing the connection");
                    self.report(Report::Leaving(dial.id)).await;
                }
            }
        };
        tracing::warn!(error, "Connection lost");
        self.report(Report::Lost(dial.id, loss, error)).await;
    }

    async fn retire(&self, dial: &Dial, mut link: Link, mut control: Control<ControlStream>) {
        let limit = self.grace.clamp(RPC_TIMEOUT, UNREGISTER_TIMEOUT);
        let unregistered = tokio::select! {
            result = control.unregister(limit) => result,
            error = link.ended() => {
                tracing::debug!(error = %error, "Connection ended before it was unregistered");
                return self.report(Report::Closed(dial.id)).await;
            }
        };
        if let Err(error) = unregistered {
            tracing::warn!(error = %error, "Unregistration failed");
        }
        self.report(Report::Unregistered(dial.id)).await;
        let deadline = tokio::time::Instant::now() + self.grace;
        let idle = link.idle();
        let ended = tokio::select! {
            _ = link.ended() => true,
            () = idle => false,
            () = tokio::time::sleep_until(deadline) => {
                tracing::warn!("Grace period is over, cutting the requests that are left");
                false
            }
        };
        drop(control);
        if !ended {
            // No request is under way, but the last bytes of one may still wait for a slow client.
            link.close(deadline.saturating_duration_since(tokio::time::Instant::now())).await;
        }
        tracing::info!("Connection closed");
        self.report(Report::Closed(dial.id)).await;
    }
}

/// `step` of a try, unless the try is given up before it is done.
async fn unless_given_up<T>(dial: &Dial, step: impl Future<Output = T>) -> Result<T, ConnectError> {
    tokio::select! {
        biased;
        () = dial.retire.cancelled() => Err(ConnectError::GivenUp),
        done = step => Ok(done),
    }
}

/// The platform as the edge knows it, which is Go's way to name it.
fn arch() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}_{arch}", std::env::consts::OS)
}
