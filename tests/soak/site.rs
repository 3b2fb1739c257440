//! One tunnel: its edge, the connectors that serve it, its clients and its account.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cftunnel::edge::{self, Edge, EventKind, Transport};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::backend::Seen;
use crate::chance::Chance;
use crate::child::{Folder, Proxy};
use crate::client::Clients;
use crate::ledger::{Ledger, Outcome};
use crate::plan::{Kind, Plan};
use crate::routes;

/// Requests under way at once; more are held back and counted.
const CROWD: usize = 400;
/// How often a configuration is pushed.
const RELOAD: Duration = Duration::from_secs(1);
/// How often the site's route for gRPC comes and goes, and how long it stays.
const MOVE_EVERY: u64 = 28;
const MOVE_STAYS: u64 = 8;

/// A tunnel and everything around it.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) edge: Edge,
    pub(crate) protocol: &'static str,
    pub(crate) ledger: Ledger,
    pub(crate) clients: Clients,
    pub(crate) seen: Arc<Seen>,
    origins: Vec<std::net::SocketAddr>,
    /// Connectors, and the number of the last configuration that all of them have confirmed. Held while one is pushed.
    connectors: Mutex<Connectors>,
    acked: AtomicU64,
    /// Whether clients may make gRPC calls; how many are under way.
    grpc: AtomicBool,
    calls: AtomicUsize,
    next_id: AtomicU64,
    pub(crate) figures: Figures,
    pub(crate) tasks: TaskTracker,
    /// The load ends.
    pub(crate) quiet: CancellationToken,
}

/// What happened, in numbers.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) faults: AtomicU64,
    pub(crate) pushes: AtomicU64,
    pub(crate) moves: AtomicU64,
    pub(crate) replaced: AtomicU64,
}

struct Connectors {
    all: Vec<Proxy>,
    config: routes::Latest,
    chance: Chance,
}

impl Site {
    pub(crate) async fn start(
        name: &'static str,
        protocol: &'static str,
        chance: &Chance,
        folder: &Folder,
    ) -> anyhow::Result<Arc<Self>> {
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let edge = Edge::start(edge::Config { clients: any, tunnel: any, token: None }).await?;
        let seen = Arc::new(Seen::default());
        let origins = crate::backend::start(&chance.fork(1), &seen).await?;
        let clients = Clients::new(edge.client_addr());
        let connectors = Connectors { all: Vec::new(), config: routes::Latest::default(), chance: chance.fork(2) };
        let site = Arc::new(Self {
            name,
            edge,
            protocol,
            ledger: Ledger::new(),
            clients,
            seen,
            origins,
            connectors: Mutex::new(connectors),
            acked: AtomicU64::new(0),
            grpc: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            // Apart from the other site's, and with room for the messages of WebSockets.
            next_id: AtomicU64::new(if protocol == "auto" { 1 << 40 } else { 1 }),
            figures: Figures::default(),
            tasks: TaskTracker::new(),
            quiet: CancellationToken::new(),
        });
        site.push(site.protocol == "http2").await?;
        site.join(folder, name).await?;
        Ok(site)
    }

    /// Starts one more connector and waits until it serves.
    pub(crate) async fn join(&self, folder: &Folder, name: &str) -> anyhow::Result<()> {
        let proxy = Proxy::start(folder, name, &self.edge, self.protocol).await?;
        {
            let mut connectors = self.connectors.lock().await;
            proxy.push(&connectors.config.document).await?;
            connectors.all.push(proxy);
        }
        self.registered(name).await
    }

    /// Waits until a connector has a connection.
    async fn registered(&self, name: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let up = {
                let connectors = self.connectors.lock().await;
                match connectors.all.iter().find(|p| p.name == name) {
                    Some(proxy) => proxy.metric("cftunnel_connector_connections_registered").await?,
                    None => anyhow::bail!("{name} is no connector"),
                }
            };
            if up >= 2.0 {
                return Ok(());
            }
            anyhow::ensure!(start.elapsed() < Duration::from_secs(60), "{name} does not register");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Takes a connector out and ends it, as a rollout does.
    pub(crate) async fn leave(&self, name: &str) -> anyhow::Result<()> {
        let proxy = {
            let mut connectors = self.connectors.lock().await;
            let at = connectors.all.iter().position(|p| p.name == name);
            at.map(|at| connectors.all.remove(at))
        };
        let proxy = proxy.ok_or_else(|| anyhow::anyhow!("{name} is no connector"))?;
        proxy.terminate().await?;
        proxy.ended(Duration::from_secs(45)).await
    }

    /// Something of one connector.
    pub(crate) async fn with<T>(&self, name: &str, look: impl AsyncFnOnce(&Proxy) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let connectors = self.connectors.lock().await;
        let proxy = connectors.all.iter().find(|p| p.name == name);
        look(proxy.ok_or_else(|| anyhow::anyhow!("{name} is no connector"))?).await
    }

    /// Pushes the next configuration to every connector.
    async fn push(&self, grpc: bool) -> anyhow::Result<()> {
        let mut connectors = self.connectors.lock().await;
        let Connectors { all, config, chance } = &mut *connectors;
        config.number += 1;
        config.document = routes::config(config.number, grpc, &self.origins, chance)?;
        let pushes = all.iter().map(|proxy| proxy.push(&config.document));
        for pushed in futures_util::future::join_all(pushes).await {
            pushed?;
        }
        self.acked.store(config.number, Ordering::SeqCst);
        self.figures.pushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A configuration every second; on `auto`, the route for gRPC comes and goes, and the connections move after it.
    pub(crate) async fn reload(self: Arc<Self>) {
        let pinned = self.protocol == "http2";
        let mut ticks = interval(RELOAD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut second = 0;
        let mut route = pinned;
        while !self.quiet.is_cancelled() {
            ticks.tick().await;
            let wanted = pinned || second % MOVE_EVERY >= MOVE_EVERY - MOVE_STAYS;
            if route && !wanted {
                // Calls that would find no route any more have to be over before it goes.
                self.grpc.store(false, Ordering::SeqCst);
                while self.calls.load(Ordering::SeqCst) > 0 {
                    sleep(Duration::from_millis(20)).await;
                }
            }
            if let Err(error) = self.push(wanted).await {
                self.ledger.failed(&format!("{}: configuration: {error:#}", self.name));
            }
            route = wanted;
            let carried = self.edge.state().sessions.iter().all(|s| s.transport == Transport::Http2);
            self.grpc.store(route && carried, Ordering::SeqCst);
            second += 1;
        }
    }

    /// Sends `rate` requests a second, whatever becomes of them.
    pub(crate) async fn load(self: Arc<Self>, rate: u64, mut chance: Chance) {
        let places = Arc::new(Semaphore::new(CROWD));
        let start = Instant::now();
        let mut n = 0;
        while !self.quiet.is_cancelled() {
            sleep_until(start + Duration::from_nanos(n * 1_000_000_000 / rate)).await;
            n += 1;
            let id = self.next_id.fetch_add(16, Ordering::Relaxed);
            let plan = Plan::draw(id, &mut chance, self.grpc.load(Ordering::SeqCst));
            let place = Arc::clone(&places).try_acquire_owned().ok();
            self.ledger.offered(place.is_some());
            if let Some(place) = place {
                let site = Arc::clone(&self);
                self.tasks.spawn(async move {
                    site.ask(plan).await;
                    drop(place);
                });
            }
        }
    }

    /// One request, into the account.
    pub(crate) async fn ask(&self, plan: Plan) {
        let call = plan.kind == Kind::Grpc;
        if call {
            self.calls.fetch_add(1, Ordering::SeqCst);
            if !self.grpc.load(Ordering::SeqCst) {
                // The route is about to go.
                self.calls.fetch_sub(1, Ordering::SeqCst);
                self.ledger.ended(Outcome::Canceled);
                return;
            }
        }
        let acked = self.acked.load(Ordering::SeqCst);
        let outcome = self.clients.run(&plan, acked).await;
        if call {
            self.calls.fetch_sub(1, Ordering::SeqCst);
        }
        self.ledger.ended(outcome);
    }

    /// An id that no other request has.
    pub(crate) fn id(&self) -> u64 {
        self.next_id.fetch_add(16, Ordering::Relaxed)
    }

    /// Follows the edge's events, and judges losses by them.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut known = 0;
        let mut last: HashMap<(Uuid, u8), Transport> = HashMap::new();
        loop {
            let state = self.edge.state();
            let fresh = usize::try_from(state.events_total - known).unwrap_or(usize::MAX);
            known = state.events_total;
            if fresh > state.events.len() {
                self.ledger.failed("events of the edge were missed; the harness is too slow to judge");
            }
            for event in &state.events[state.events.len().saturating_sub(fresh)..] {
                match &event.kind {
                    EventKind::Gone { transport, index, id, reason } => {
                        self.ledger.connection_ended(*id, *transport, *index, reason.clone());
                    }
                    EventKind::RequestFailed { id, .. } | EventKind::ResponseCut { id, .. } => self.ledger.request_ended(*id),
                    EventKind::Registered { transport, index, client_id } => {
                        let moved = last.insert((*client_id, *index), *transport).is_some_and(|before| before != *transport);
                        self.figures.moves.fetch_add(u64::from(moved), Ordering::Relaxed);
                    }
                    _ => {}
                }
            }
            self.ledger.judge(|id| self.seen.has(id));
            for what in self.seen.take_wrong() {
                self.ledger.ended(Outcome::Wrong(what));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}
