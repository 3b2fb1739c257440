//! What can be seen of the connections from outside: a status per connection, and metrics. Decides nothing.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use super::link::Rtt;
use super::state::{Loss, Transport};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Waits for its next try.
    Waiting,
    /// Connects and registers.
    Connecting,
    /// Registered: the edge sends requests.
    Registered,
    /// Unregistering; it is dialed again at once, unless all are drained.
    Draining,
    /// Drained.
    Stopped,
}

impl ConnectionState {
    /// One word, lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Connecting => "connecting",
            Self::Registered => "registered",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One connection, as it is now.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The connection index.
    pub index: u8,
    /// Over what it is connected or being connected.
    pub transport: Option<Transport>,
    /// What it is doing.
    pub state: ConnectionState,
    /// The edge's address, when one was dialed.
    pub address: Option<SocketAddr>,
    /// Code of the data centre, while registered.
    pub location: Option<String>,
    /// Round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// When it began to do what it does.
    pub since: Instant,
    /// Why the last try failed or the last connection ended; `None` once registered.
    pub last_error: Option<String>,
}

/// The part of a status that the state machine does not know.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) status: ConnectionStatus,
    pub(super) rtt: Option<Arc<Rtt>>,
}

/// Counts what connections do, and shows them. Clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    entries: Arc<Mutex<Vec<Entry>>>,
    dials: Family<Over, Counter>,
    registrations: Family<Registered, Counter>,
    losses: Family<Lost, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Over {
    transport: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Registered {
    transport: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lost {
    transport: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Connection {
    connection: u8,
    transport: &'static str,
    state: &'static str,
    location: String,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Index {
    connection: u8,
}

impl Metrics {
    /// Adds the connector's metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("cftunnel_connector_dials", "Tries to connect to the edge", metrics.dials.clone());
        registry.register(
            "cftunnel_connector_registrations",
            "Registrations of tunnel connections, by outcome: success, refused, duplicate or failed",
            metrics.registrations.clone(),
        );
        registry.register(
            "cftunnel_connector_losses",
            "Established tunnel connections that were lost and dialed again, by reason: silent or ended",
            metrics.losses.clone(),
        );
        registry.register_collector(Box::new(Connections(Arc::clone(&metrics.entries))));
        metrics
    }

    /// Every connection, as it is now, by index.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.entries().iter().map(Entry::read).collect()
    }

    pub(super) fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Entries are replaced field by field and never depend on each other.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dialed(&self, transport: Transport) {
        self.dials.get_or_create(&Over { transport: transport.as_str() }).inc();
    }

    pub(super) fn registered(&self, transport: Transport) {
        self.count_registration(transport, "success");
    }

    /// A try that failed before it was registered.
    pub(super) fn failed(&self, transport: Transport, loss: Loss) {
        self.count_registration(
            transport,
            match loss {
                Loss::Refused { duplicate: true, .. } => "duplicate",
                Loss::Refused { .. } => "refused",
                _ => "failed",
            },
        );
    }

    /// An established connection that is gone.
    pub(super) fn lost(&self, transport: Transport, loss: Loss) {
        let reason = if loss == Loss::Silent { "silent" } else { "ended" };
        self.losses.get_or_create(&Lost { transport: transport.as_str(), reason }).inc();
    }

    fn count_registration(&self, transport: Transport, outcome: &'static str) {
        self.registrations.get_or_create(&Registered { transport: transport.as_str(), outcome }).inc();
    }
}

impl Entry {
    pub(super) fn new(index: u8, now: Instant) -> Self {
        let status = ConnectionStatus {
            index,
            transport: None,
            state: ConnectionState::Waiting,
            address: None,
            location: None,
            rtt: None,
            since: now,
            last_error: None,
        };
        Self { status, rtt: None }
    }

    fn read(&self) -> ConnectionStatus {
        ConnectionStatus { rtt: self.rtt.as_ref().and_then(|rtt| rtt.get()), ..self.status.clone() }
    }
}

/// Gauges that are read off the connections at each scrape, so that no label of an earlier state is left behind.
#[derive(Debug)]
struct Connections(Arc<Mutex<Vec<Entry>>>);

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all: Vec<_> = self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Entry::read).collect();
        let registered = all.iter().filter(|c| c.state == ConnectionState::Registered).count();
        let count = encoder.encode_descriptor(
            "cftunnel_connector_connections_registered",
            "Tunnel connections that are registered",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::try_from(registered).unwrap_or(i64::MAX)).encode(count)?;
        let mut info = encoder.encode_descriptor(
            "cftunnel_connector_connection",
            "One for each tunnel connection: its transport, state and data centre",
            None,
            MetricType::Gauge,
        )?;
        for c in &all {
            let labels = Connection {
                connection: c.index,
                transport: c.transport.map_or("", Transport::as_str),
                state: c.state.as_str(),
                location: c.location.clone().unwrap_or_default(),
            };
            ConstGauge::new(1).encode(info.encode_family(&labels)?)?;
        }
        let mut rtt = encoder.encode_descriptor(
            "cftunnel_connector_rtt",
            "Round-trip time of each registered tunnel connection",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        for c in all.iter().filter(|c| c.state == ConnectionState::Registered) {
            if let Some(time) = c.rtt {
                ConstGauge::new(time.as_secs_f64()).encode(rtt.encode_family(&Index { connection: c.index })?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scrape_shows_connections_as_they_are() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.dialed(Transport::Quic);
        metrics.registered(Transport::Quic);
        metrics.failed(Transport::Http2, Loss::Refused { duplicate: true, retry_after: None });
        metrics.lost(Transport::Quic, Loss::Silent);
        let mut entry = Entry::new(2, Instant::now());
        entry.status.state = ConnectionState::Registered;
        entry.status.transport = Some(Transport::Quic);
        entry.status.location = Some("ams01".into());
        let rtt = Arc::new(Rtt::default());
        rtt.set(Duration::from_millis(20));
        entry.rtt = Some(rtt);
        metrics.entries().push(entry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        for line in [
            r#"cftunnel_connector_dials_total{transport="quic"} 1"#,
            r#"cftunnel_connector_registrations_total{transport="http2",outcome="duplicate"} 1"#,
            r#"cftunnel_connector_losses_total{transport="quic",reason="silent"} 1"#,
            "cftunnel_connector_connections_registered 1",
            r#"cftunnel_connector_connection{connection="2",transport="quic",state="registered",location="ams01"} 1"#,
            r#"cftunnel_connector_rtt_seconds{connection="2"} 0.02"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
