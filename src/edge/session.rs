//! The connections that connectors have registered: which takes the next request, what is under way on each, and what has
//! happened. One lock around plain state; nothing waits while it is held.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::Which;
use super::link::{Command, Link};
use crate::proxy::connector::wire::registration::ConnectionOptions;

/// Most events that are remembered; older ones are forgotten.
const MAX_EVENTS: usize = 1000;

/// What a connection runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// HTTP/2 over TLS over TCP.
    Http2,
    /// QUIC.
    Quic,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http2 => "http2",
            Self::Quic => "quic",
        })
    }
}

/// A snapshot of the edge.
#[derive(Clone, Debug)]
pub struct State {
    /// Registered connections, by index.
    pub sessions: Vec<SessionState>,
    /// What has happened, oldest first; the last thousand.
    pub events: Vec<Event>,
    /// Events ever, so that whoever looks now and then knows how many are new, and whether any was missed.
    pub events_total: u64,
    /// Registrations that succeeded, ever.
    pub registered_total: u64,
    /// Requests of clients that are not finished.
    pub requests_in_flight: usize,
}

impl State {
    /// Connections that take requests.
    pub fn live(&self) -> impl Iterator<Item = &SessionState> {
        self.sessions.iter().filter(|s| !s.draining)
    }
}

/// A registered connection.
#[derive(Clone, Debug)]
pub struct SessionState {
    /// What it runs over.
    pub transport: Transport,
    /// Its far end.
    pub remote: SocketAddr,
    /// Server name that the connector asked for.
    pub sni: Option<String>,
    /// Protocol that was agreed on by ALPN, if any.
    pub alpn: Option<String>,
    /// Which of its connections the connector says this is.
    pub index: u8,
    /// The edge's id of the connection, as told to the connector.
    pub id: Uuid,
    /// The connector.
    pub client_id: Uuid,
    /// The connector's version.
    pub version: String,
    /// The connector's system and architecture.
    pub arch: String,
    /// What the connector can do.
    pub features: Vec<String>,
    /// The address that the connector says it has.
    pub origin_local_ip: Option<IpAddr>,
    /// Tries that the connector says have failed before.
    pub previous_attempts: u8,
    /// Configuration that a locally managed connector told, JSON.
    pub local_config: Option<Bytes>,
    /// The last answer to a configuration.
    pub config_ack: Option<ConfigAck>,
    /// Requests that are not finished.
    pub inflight: usize,
    /// Whether it takes no new requests.
    pub draining: bool,
}

/// What a connector answered to a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigAck {
    /// The version that was sent.
    pub sent: i32,
    /// The version that is in force, or why there is no answer.
    pub applied: Result<i32, String>,
    /// Why the one sent is not in force; empty when it is.
    pub error: String,
}

/// Something that has happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// Since the edge was started.
    pub at: Duration,
    /// What.
    pub kind: EventKind,
}

/// What has happened. Texts of a connector are as it sent them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what their names say, and mean the same in all of them")]
pub enum EventKind {
    /// A connection ended before it had registered.
    HandshakeFailed { transport: Transport, remote: SocketAddr, reason: String },
    /// A registration was refused.
    Refused { transport: Transport, index: u8, cause: String, previous_attempts: u8 },
    /// A connection registered.
    Registered { transport: Transport, index: u8, client_id: Uuid },
    /// A connection unregistered.
    Unregistered { transport: Transport, index: u8, inflight: usize },
    /// A registered connection ended.
    Gone { transport: Transport, index: u8, id: Uuid, reason: String },
    /// A connector answered a configuration, or did not.
    Configuration { transport: Transport, index: u8, ack: ConfigAck },
    /// A connector told its own configuration.
    LocalConfiguration { transport: Transport, index: u8, bytes: usize },
    /// A request found no connection.
    NoConnection,
    /// A request was answered with 502.
    RequestFailed { transport: Transport, index: u8, id: Uuid, reason: String },
    /// A response ended before its end, and its client was cut off.
    ResponseCut { transport: Transport, index: u8, id: Uuid, reason: String },
}

/// Names a session within this edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionKey(u64);

#[derive(Debug)]
pub(super) struct Sessions {
    inner: Mutex<Inner>,
    /// Counts changes, for those who wait for one.
    changes: watch::Sender<u64>,
    started: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    live: Vec<Live>,
    /// Where the search for the next connection starts.
    next: usize,
    next_key: u64,
    events: VecDeque<Event>,
    events_total: u64,
    registered_total: u64,
    in_flight: usize,
    config: Option<(i32, Bytes)>,
}

#[derive(Debug)]
struct Live {
    key: SessionKey,
    link: Link,
    state: SessionState,
}

/// What is known of a connection before it registers.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) transport: Transport,
    pub(super) remote: SocketAddr,
    pub(super) sni: Option<String>,
    pub(super) alpn: Option<String>,
}

/// A request that is under way on a session. Counts it until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    shared: Arc<super::Shared>,
    pub(super) key: SessionKey,
    pub(super) link: Link,
    pub(super) transport: Transport,
    pub(super) index: u8,
    /// The edge's id of the connection.
    pub(super) id: Uuid,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { inner: Mutex::default(), changes: watch::Sender::default(), started: Instant::now() }
    }
}

impl Sessions {
    pub(super) fn state(&self) -> State {
        let inner = self.lock();
        let mut sessions: Vec<_> = inner.live.iter().map(|l| l.state.clone()).collect();
        sessions.sort_by_key(|s| s.index);
        State {
            sessions,
            events: inner.events.iter().cloned().collect(),
            events_total: inner.events_total,
            registered_total: inner.registered_total,
            requests_in_flight: inner.in_flight,
        }
    }

    /// Wakes at every change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn record(&self, kind: EventKind) {
        self.lock().record(self.started, kind);
        self.touch();
    }

    /// Makes a registered connection take requests.
    pub(super) fn add(&self, origin: Origin, link: Link, index: u8, id: Uuid, options: ConnectionOptions) -> SessionKey {
        let mut inner = self.lock();
        let key = SessionKey(inner.next_key);
        inner.next_key += 1;
        inner.registered_total += 1;
        let client_id = options.client.client_id;
        inner.record(self.started, EventKind::Registered { transport: origin.transport, index, client_id });
        let state = SessionState {
            transport: origin.transport,
            remote: origin.remote,
            sni: origin.sni,
            alpn: origin.alpn,
            index,
            id,
            client_id,
            version: options.client.version,
            arch: options.client.arch,
            features: options.client.features,
            origin_local_ip: options.origin_local_ip,
            previous_attempts: options.num_previous_attempts,
            local_config: None,
            config_ack: None,
            inflight: 0,
            draining: false,
        };
        inner.live.push(Live { key, link, state });
        drop(inner);
        self.touch();
        key
    }

    pub(super) fn remove(&self, key: SessionKey, reason: String) {
        let mut inner = self.lock();
        let Some(at) = inner.live.iter().position(|l| l.key == key) else { return };
        let state = inner.live.remove(at).state;
        inner.record(self.started, EventKind::Gone { transport: state.transport, index: state.index, id: state.id, reason });
        drop(inner);
        self.touch();
    }

    /// Takes a connection out of service; it is cut once nothing is under way on it. Returns whether it was in service.
    pub(super) fn unregister(&self, key: SessionKey) -> bool {
        let mut inner = self.lock();
        let Some(live) = inner.live.iter_mut().find(|l| l.key == key) else { return false };
        let was_live = !std::mem::replace(&mut live.state.draining, true);
        let (transport, index, inflight) = (live.state.transport, live.state.index, live.state.inflight);
        if inflight == 0 {
            live.link.command(Command::CloseSoon);
        }
        inner.record(self.started, EventKind::Unregistered { transport, index, inflight });
        drop(inner);
        self.touch();
        was_live
    }

    pub(super) fn is_draining(&self, key: SessionKey) -> bool {
        self.lock().live.iter().any(|l| l.key == key && l.state.draining)
    }

    /// Takes connections out of service from this side.
    pub(super) fn drain(&self, which: Which) -> usize {
        let mut inner = self.lock();
        let mut n = 0;
        for live in inner.live.iter_mut().filter(|l| which.matches(l.state.index) && !l.state.draining) {
            live.state.draining = true;
            live.link.command(Command::GoAway);
            if live.state.inflight == 0 {
                live.link.command(Command::CloseSoon);
            }
            n += 1;
        }
        drop(inner);
        self.touch();
        n
    }

    pub(super) fn command(&self, which: Which, command: impl Fn() -> Command) -> usize {
        let inner = self.lock();
        let mut n = 0;
        for live in inner.live.iter().filter(|l| which.matches(l.state.index)) {
            live.link.command(command());
            n += 1;
        }
        n
    }

    pub(super) fn set_config(&self, version: i32, json: Bytes) {
        self.lock().config = Some((version, json));
    }

    pub(super) fn config(&self) -> Option<(i32, Bytes)> {
        self.lock().config.clone()
    }

    /// All connections, for a push.
    pub(super) fn links(&self) -> Vec<(SessionKey, Link)> {
        self.lock().live.iter().map(|l| (l.key, l.link.clone())).collect()
    }

    pub(super) fn set_config_ack(&self, key: SessionKey, ack: ConfigAck) {
        let mut inner = self.lock();
        let Some(live) = inner.live.iter_mut().find(|l| l.key == key) else { return };
        live.state.config_ack = Some(ack.clone());
        let (transport, index) = (live.state.transport, live.state.index);
        inner.record(self.started, EventKind::Configuration { transport, index, ack });
        drop(inner);
        self.touch();
    }

    pub(super) fn set_local_config(&self, key: SessionKey, config: Vec<u8>) {
        let mut inner = self.lock();
        let Some(live) = inner.live.iter_mut().find(|l| l.key == key) else { return };
        let (transport, index) = (live.state.transport, live.state.index);
        let event = EventKind::LocalConfiguration { transport, index, bytes: config.len() };
        live.state.local_config = Some(config.into());
        inner.record(self.started, event);
        drop(inner);
        self.touch();
    }

    fn touch(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn record(&mut self, started: Instant, kind: EventKind) {
        tracing::debug!(event = ?kind, "Edge event");
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { at: started.elapsed(), kind });
        self.events_total += 1;
    }
}

impl Which {
    fn matches(self, index: u8) -> bool {
        match self {
            Self::All => true,
            Self::Index(wanted) => wanted == index,
        }
    }
}

impl InFlight {
    /// Takes the next connection in turn; `None` when none takes requests.
    pub(super) fn begin(shared: &Arc<super::Shared>) -> Option<Self> {
        let mut inner = shared.sessions.lock();
        let len = inner.live.len();
        let at = (0..len).map(|i| inner.next.wrapping_add(i) % len).find(|at| !inner.live[*at].state.draining)?;
        inner.next = at + 1;
        inner.in_flight += 1;
        let live = &mut inner.live[at];
        live.state.inflight += 1;
        let (key, link) = (live.key, live.link.clone());
        let (transport, index, id) = (live.state.transport, live.state.index, live.state.id);
        drop(inner);
        Some(Self { shared: Arc::clone(shared), key, link, transport, index, id })
    }

    /// Remembers an event of this request.
    pub(super) fn failed(&self, reason: String) {
        let Self { transport, index, id, .. } = *self;
        self.shared.sessions.record(EventKind::RequestFailed { transport, index, id, reason });
    }

    /// Remembers that the response was cut.
    pub(super) fn cut(&self, reason: String) {
        let Self { transport, index, id, .. } = *self;
        self.shared.sessions.record(EventKind::ResponseCut { transport, index, id, reason });
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut inner = self.shared.sessions.lock();
        inner.in_flight = inner.in_flight.saturating_sub(1);
        if let Some(live) = inner.live.iter_mut().find(|l| l.key == self.key) {
            live.state.inflight = live.state.inflight.saturating_sub(1);
            if live.state.draining && live.state.inflight == 0 {
                live.link.command(Command::CloseSoon);
            }
        }
        drop(inner);
        self.shared.sessions.touch();
    }
}
