//! The tunnel connector: our connections to the edge (tunnel-protocol).
//!
//! ```text
//! state (pure)  <-events--  supervisor  --dial, retire-->  connection  -->  http2 | quic  -->  Serve
//!               --effects->             <----reports-----             -->  control (registration)
//! ```
//!
//! It carries requests to a [`Serve`] and knows nothing of routes; of a tunnel's pushed configuration it only acknowledges the
//! version. What a connection does next is decided in [`state`] and nowhere else.

pub mod backoff;
mod connection;
mod control;
pub mod dns;
pub mod edge;
mod http2;
mod link;
mod quic;
pub mod state;
mod status;
mod stream;
mod supervisor;
pub mod tls;
mod uploads;
pub mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use self::connection::Dialer;
use self::dns::{Resolve, SystemResolver};
use self::edge::Edge;
pub use self::edge::{EdgeAddress, EdgeSource, IpVersion};
pub use self::state::{Protocol, Transport};
use self::state::{Settings, State};
use self::status::Entry;
pub use self::status::{ConnectionState, ConnectionStatus, Metrics};
use self::supervisor::Supervisor;
pub use self::tls::Roots;
use self::tls::TlsError;
use super::http::Serve;
use super::workers::Workers;
use crate::gateway::token::TunnelToken;

/// Reports that may wait for the supervisor; connections have a handful each.
const REPORTS: usize = 64;

/// What a connector is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which tunnel, and the right to serve it.
    pub token: TunnelToken,
    /// This process, the same on all of its connections; shown in the dashboard.
    pub client_id: Uuid,
    /// Where the edge is. [`EdgeSource::of`] is the usual one.
    pub edge: EdgeSource,
    /// Who may vouch for the edge.
    pub roots: Roots,
    /// Over what.
    pub protocol: Protocol,
    /// Number of connections; 4 is what the edge expects, 0 counts as 1.
    pub connections: u8,
    /// Longest time that a drained connection waits for its requests.
    pub grace: Duration,
    /// Address families to use.
    pub ip_version: IpVersion,
    /// Prefer X25519MLKEM768 in TLS.
    pub post_quantum: bool,
    /// Where to count; [`Metrics::register`] adds them to a registry.
    pub metrics: Metrics,
    /// The threads that the connections live on, each on one of them; `None` is the runtime of the caller.
    pub workers: Option<Workers>,
}

impl Config {
    /// The usual settings: the edge found by DNS, system roots, four connections, 30 s of grace.
    ///
    /// # Errors
    /// When there are no roots.
    pub fn new(token: TunnelToken) -> Result<Self, TlsError> {
        Ok(Self {
            edge: EdgeSource::of(&token),
            token,
            client_id: Uuid::new_v4(),
            roots: Roots::system()?,
            protocol: Protocol::Auto,
            connections: 4,
            grace: Duration::from_secs(30),
            ip_version: IpVersion::Auto,
            post_quantum: true,
            metrics: Metrics::default(),
            workers: None,
        })
    }
}

/// Starts the connections; they come up by themselves, and come back whenever they are lost.
///
/// Start it when there is a configuration to serve: a registered connection gets requests at once. `needs_trailers` says
/// whether any route needs them (a GRPCRoute does); with [`Protocol::Auto`] that decides the transport, now and on each change.
///
/// # Errors
/// When TLS cannot be set up.
pub fn spawn<S: Serve>(config: Config, service: Arc<S>, needs_trailers: watch::Receiver<bool>) -> Result<Connector, TlsError> {
    spawn_with(config, service, needs_trailers, SystemResolver::new())
}

/// [`spawn`] with a resolver of one's own.
///
/// # Errors
/// When TLS cannot be set up.
pub fn spawn_with<S: Serve, R: Resolve>(
    config: Config,
    service: Arc<S>,
    needs_trailers: watch::Receiver<bool>,
    resolver: R,
) -> Result<Connector, TlsError> {
    let (report, reports) = mpsc::channel(REPORTS);
    let (registered, registered_seen) = watch::channel(0);
    let state = State::new(Settings {
        connections: config.connections,
        protocol: config.protocol,
        needs_trailers: *needs_trailers.borrow(),
        seed: rand::random(),
    });
    let started = Instant::now();
    *config.metrics.entries() = (0..config.connections.max(1)).map(|index| Entry::new(index, started)).collect();
    let dialer = Dialer {
        service,
        edge: Edge::new(config.edge, config.ip_version, resolver),
        tls: Arc::new(tls::client_config(Transport::Http2, &config.roots, config.post_quantum)?),
        quic: quic::Settings::new(&config.roots, config.post_quantum)?,
        sockets: state.slots().map(|_| quic::Sockets::default()).collect(),
        token: config.token,
        client_id: config.client_id,
        grace: config.grace,
        pushed: Arc::default(),
        reports: report,
    };
    let drain = CancellationToken::new();
    let supervisor = Supervisor {
        dialer: Arc::new(dialer),
        state,
        reports,
        needs_trailers,
        drain: drain.clone(),
        registered,
        metrics: config.metrics.clone(),
        started,
        workers: config.workers.unwrap_or_else(Workers::here),
    };
    let stop = CancellationToken::new();
    let (outcome, outcome_seen) = watch::channel(None);
    let stopped = stop.clone();
    tokio::spawn(async move {
        let mut task = tokio::spawn(supervisor.run());
        let ended = tokio::select! {
            ended = &mut task => ended,
            () = stopped.cancelled() => {
                task.abort();
                return;
            }
        };
        outcome.send_replace(Some(ended.map_err(ConnectorError::from)));
    });
    Ok(Connector {
        registered: registered_seen,
        metrics: config.metrics,
        drain,
        outcome: outcome_seen,
        _stop: Arc::new(stop.drop_guard()),
    })
}

/// Why a connector ended that should not have.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectorError {
    /// A bug: its task panicked.
    #[error("the tunnel connector stopped: {0}")]
    Stopped(String),
}

impl From<JoinError> for ConnectorError {
    fn from(error: JoinError) -> Self {
        Self::Stopped(error.to_string())
    }
}

/// The running connections. Dropping the last clone cuts them; [`Self::drain`] ends them in good order.
#[derive(Clone, Debug)]
pub struct Connector {
    registered: watch::Receiver<usize>,
    metrics: Metrics,
    drain: CancellationToken,
    outcome: watch::Receiver<Option<Result<(), ConnectorError>>>,
    _stop: Arc<DropGuard>,
}

impl Connector {
    /// Every connection, as it is now, by index.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.metrics.connections()
    }

    /// The number of registered connections, now and on each change.
    pub fn registered(&self) -> watch::Receiver<usize> {
        self.registered.clone()
    }

    /// Unregisters every connection, lets the requests in flight end within the grace period, closes. Returns when all is
    /// done; a second call waits for the same.
    pub async fn drain(&self) {
        self.drain.cancel();
        let mut outcome = self.outcome.clone();
        // An error is the sender's end, and with it the connector's.
        drop(outcome.wait_for(Option::is_some).await);
    }

    /// Waits for the connector to end by itself, which it never should: the process has to end with this error. Does not
    /// return after a drain.
    pub async fn failed(&self) -> ConnectorError {
        let mut outcome = self.outcome.clone();
        match outcome.wait_for(Option::is_some).await.map(|o| o.clone()) {
            Ok(Some(Err(error))) => error,
            Ok(_) => std::future::pending().await,
            Err(_) => ConnectorError::Stopped("its watcher is gone".to_owned()),
        }
    }
}
