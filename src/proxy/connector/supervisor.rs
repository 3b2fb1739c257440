//! Runs the state machine: turns reports of connections into events, effects into tasks. Decides nothing itself.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::connection::{Dial, Dialer, Report};
use super::dns::Resolve;
use super::state::{DialId, Effect, Event, Life, Loss, State, Transport};
use super::status::{ConnectionState, Entry, Metrics};
use crate::proxy::http::Serve;
use crate::proxy::workers::Workers;

/// A try or connection that has a task.
struct Running {
    slot: u8,
    transport: Transport,
    retire: CancellationToken,
    task: AbortHandle,
    registered: bool,
}

/// The task behind a connector.
pub(super) struct Supervisor<S, R> {
    pub(super) dialer: Arc<Dialer<S, R>>,
    pub(super) state: State,
    pub(super) reports: mpsc::Receiver<Report>,
    pub(super) needs_trailers: watch::Receiver<bool>,
    /// Cancelled when a drain is asked for.
    pub(super) drain: CancellationToken,
    pub(super) registered: watch::Sender<usize>,
    pub(super) metrics: Metrics,
    pub(super) started: Instant,
    /// Where connections live: that of a slot always on the same thread, as its UDP sockets do.
    pub(super) workers: Workers,
}

impl<S: Serve, R: Resolve> Supervisor<S, R> {
    /// Runs until the drain is complete.
    pub(super) async fn run(self) {
        let dialer = Arc::clone(&self.dialer);
        tokio::select! {
            () = Loop::new(self).run() => {}
            () = dialer.edge.keep_fresh() => {}
        }
        for sockets in &dialer.sockets {
            sockets.flush().await;
        }
    }
}

/// The supervisor at work.
struct Loop<S, R> {
    sup: Supervisor<S, R>,
    tasks: JoinSet<()>,
    running: HashMap<DialId, Running>,
    finished: bool,
}

impl<S: Serve, R: Resolve> Loop<S, R> {
    fn new(sup: Supervisor<S, R>) -> Self {
        Self { sup, tasks: JoinSet::new(), running: HashMap::new(), finished: false }
    }

    async fn run(mut self) {
        let (mut draining, mut watching) = (false, true);
        self.step(Event::Tick);
        while !self.finished {
            let wake = self.sup.state.wake_at().map(|at| self.sup.started + at);
            let timer = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(report) = self.sup.reports.recv() => self.take(report),
                changed = self.sup.needs_trailers.changed(), if watching => {
                    // Without its sender the last word stands.
                    watching = changed.is_ok();
                    let needed = *self.sup.needs_trailers.borrow_and_update();
                    self.step(Event::NeedsTrailers(needed));
                }
                () = self.sup.drain.cancelled(), if !draining => {
                    draining = true;
                    self.step(Event::Drain);
                }
                Some(ended) = self.tasks.join_next_with_id() => if let Err(error) = ended {
                    self.died(error.id());
                },
                () = timer => self.step(Event::Tick),
            }
        }
    }

    /// A task ended without a report: it panicked.
    fn died(&mut self, task: tokio::task::Id) {
        match self.running.iter().find(|(_, r)| r.task.id() == task).map(|(dial, _)| *dial) {
            Some(dial) => {
                tracing::error!("Connection task panicked");
                self.take(Report::Lost(dial, Loss::Ended, "a task of the connection panicked".to_owned()));
            }
            None => {
                tracing::error!("QUIC probe panicked");
                self.take(Report::Probed(false));
            }
        }
    }

    fn take(&mut self, report: Report) {
        let event = match report {
            Report::Dialing(dial, address) => {
                self.update(dial, |entry| entry.status.address = Some(address));
                return;
            }
            Report::Registered(dial, details, rtt) => {
                if let Some(running) = self.running.get_mut(&dial) {
                    running.registered = true;
                    self.sup.metrics.registered(running.transport);
                }
                self.update(dial, |entry| {
                    entry.status.location = Some(details.location);
                    entry.status.last_error = None;
                    entry.rtt = Some(rtt);
                });
                Event::Registered(dial)
            }
            Report::Lost(dial, loss, error) => {
                self.update(dial, |entry| entry.status.last_error = Some(error));
                if let Some(running) = self.running.remove(&dial) {
                    if running.registered {
                        self.sup.metrics.lost(running.transport, loss);
                    } else {
                        self.sup.metrics.failed(running.transport, loss);
                    }
                }
                Event::Lost(dial, loss)
            }
            Report::Leaving(dial) => Event::Leaving(dial),
            Report::Unregistered(dial) => Event::Unregistered(dial),
            Report::Closed(dial) => {
                self.running.remove(&dial);
                Event::Closed(dial)
            }
            Report::Probed(usable) => Event::Probed { usable },
        };
        self.step(event);
    }

    fn step(&mut self, event: Event) {
        let before = self.sup.state.transport();
        let (state, effects) = self.sup.state.clone().step(event, self.sup.started.elapsed());
        self.sup.state = state;
        for effect in effects {
            self.perform(effect);
        }
        let after = self.sup.state.transport();
        if before != after {
            tracing::info!(transport = %after, "Transport changed");
        }
        self.publish();
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { slot, dial, transport, rotate, attempts } => {
                self.sup.metrics.dialed(transport);
                let retire = CancellationToken::new();
                let span = tracing::info_span!("connection", conn_index = slot, transport = %transport);
                let try_ = Dial { slot, id: dial, transport, rotate, attempts, retire: retire.clone() };
                let worker = self.sup.workers.nth(usize::from(slot));
                let task = self.tasks.spawn_on(Arc::clone(&self.sup.dialer).run(try_).instrument(span), worker);
                self.running.insert(dial, Running { slot, transport, retire, task, registered: false });
            }
            Effect::Retire(dial) | Effect::Abort(dial) => {
                if let Some(running) = self.running.get(&dial) {
                    running.retire.cancel();
                }
            }
            Effect::Probe => {
                let probe = Arc::clone(&self.sup.dialer).probe();
                drop(self.tasks.spawn_on(probe, self.sup.workers.nth(0)));
            }
            Effect::Finished => self.finished = true,
        }
    }

    /// Changes the entry of the slot that `dial` belongs to, unless the slot has gone on to another one.
    fn update(&self, dial: DialId, change: impl FnOnce(&mut Entry)) {
        let Some(running) = self.running.get(&dial) else { return };
        let current = self.sup.state.slots().nth(usize::from(running.slot)).map(|(life, ..)| life);
        let is_current = matches!(
            current,
            Some(Life::Dialing { dial: d, .. } | Life::Up { dial: d, .. } | Life::Retiring { dial: d, .. }) if d == dial
        );
        if is_current && let Some(entry) = self.sup.metrics.entries().get_mut(usize::from(running.slot)) {
            change(entry);
        }
    }

    /// Shows the new state.
    fn publish(&self) {
        for (entry, (life, since, _)) in self.sup.metrics.entries().iter_mut().zip(self.sup.state.slots()) {
            let status = &mut entry.status;
            (status.state, status.transport) = match life {
                Life::Waiting { .. } => (ConnectionState::Waiting, None),
                Life::Dialing { transport, .. } => (ConnectionState::Connecting, Some(transport)),
                Life::Up { transport, .. } => (ConnectionState::Registered, Some(transport)),
                Life::Retiring { transport, .. } => (ConnectionState::Draining, Some(transport)),
                Life::Stopped => (ConnectionState::Stopped, None),
            };
            status.since = self.sup.started + since;
            if !matches!(life, Life::Up { .. } | Life::Retiring { .. }) {
                status.location = None;
                entry.rtt = None;
            }
        }
        let count = self.sup.state.registered_count();
        self.sup.registered.send_if_modified(|known| std::mem::replace(known, count) != count);
    }
}
