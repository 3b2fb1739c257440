//! What became of every request. A request may be lost only for a reason of this run that the protocol leaves no way around;
//! every other loss is a violation.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cftunnel::edge::Transport;
use tokio::time::Instant;
use uuid::Uuid;

/// Why a request was lost, and might be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Cause {
    /// The edge cut the connection that carried it.
    Cut,
    /// The same, but what the edge had to say to the client did not arrive: a head that was not written yet when the body broke,
    /// or an answer in the middle of an upload.
    CutUnread,
    /// Its connection fell silent until both ends gave it up.
    Silence,
    /// No connection was up, because all had been cut or taken out of service a moment before.
    NoConnection,
    /// It had a body, and went out on a connection that the backend was closing at that moment: nobody may send it again
    /// (RFC 9110 §9.2.2).
    IdleClose,
}

impl Cause {
    pub(crate) const ALL: [(Self, &str); 5] = [
        (Self::Cut, "cut"),
        (Self::CutUnread, "cut-unread"),
        (Self::Silence, "silence"),
        (Self::NoConnection, "no-connection"),
        (Self::IdleClose, "idle-close"),
    ];
}

/// How far a lost request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The edge had no connection for it.
    Unassigned,
    /// The edge answered that the connection failed.
    Edge,
    /// The proxy answered that it failed.
    Proxy,
    /// The client got no head.
    Head,
    /// The body broke off.
    Body,
}

/// A request that did not end as it should.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) id: u64,
    pub(crate) what: String,
    pub(crate) stage: Stage,
    pub(crate) connection: Option<Uuid>,
    pub(crate) upload: bool,
    pub(crate) text: String,
    pub(crate) at: Instant,
}

/// How a request ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// All of it right.
    Fine,
    /// Broken off where the backend broke it off.
    Broken,
    /// The client walked away.
    Canceled,
    Lost(Box<Loss>),
    /// Something arrived that is not what was sent.
    Wrong(String),
}

/// How long a loss waits for its explanation: the end of its connection is noticed in its own time.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long after the end of a connection the harness may be the reason that its slot is not up again: first wait, refusals,
/// a registration that is answered late.
const RECOVERY: Duration = Duration::from_secs(10);
/// A silence that ends connections: they live for 5 s without a sign of the peer, which they ask for each second.
const SURVIVED: Duration = Duration::from_secs(4);
/// Violations that are told in full.
const TOLD: usize = 20;

/// One site's account.
#[derive(Debug)]
pub(crate) struct Ledger(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: Counts,
    suspects: Vec<Loss>,
    /// Why connections ended.
    ended: HashMap<Uuid, Ended>,
    /// When the connections of each index were last cut or taken out of service by the harness.
    hit: [Option<Instant>; 4],
    /// When the last silence began and ended.
    silence: Option<(Instant, Instant)>,
    /// Connections on which the edge saw a request end early, lately.
    early: Vec<(Instant, Uuid)>,
    /// Why connections end is not taken note of: to see that losses are noticed.
    forgetful: bool,
    /// Violations that nobody has read yet, and how many there have been.
    told: Vec<String>,
    tellings: usize,
}

#[derive(Debug)]
struct Ended {
    transport: Transport,
    reason: String,
    at: Instant,
}

/// The account in figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) offered: u64,
    /// Not sent, because too many were under way.
    pub(crate) held_back: u64,
    pub(crate) fine: u64,
    pub(crate) broken: u64,
    pub(crate) canceled: u64,
    pub(crate) lost: BTreeMap<Cause, u64>,
    pub(crate) unexplained: u64,
    pub(crate) wrong: u64,
    /// Anything else that must not be.
    pub(crate) failures: u64,
}

impl Counts {
    pub(crate) fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    pub(crate) fn violations(&self) -> u64 {
        self.unexplained + self.wrong + self.failures
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.held_back += other.held_back;
        self.fine += other.fine;
        self.broken += other.broken;
        self.canceled += other.canceled;
        self.unexplained += other.unexplained;
        self.wrong += other.wrong;
        self.failures += other.failures;
        for (cause, n) in &other.lost {
            *self.lost.entry(*cause).or_default() += n;
        }
    }
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    /// Losses that are not judged yet.
    pub(crate) fn open(&self) -> usize {
        self.lock().suspects.len()
    }

    /// The violations since the last call; the first ones only.
    pub(crate) fn take_told(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().told)
    }

    pub(crate) fn offered(&self, sent: bool) {
        let mut inner = self.lock();
        inner.counts.offered += 1;
        inner.counts.held_back += u64::from(!sent);
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        let mut inner = self.lock();
        match outcome {
            Outcome::Fine => inner.counts.fine += 1,
            Outcome::Broken => inner.counts.broken += 1,
            Outcome::Canceled => inner.counts.canceled += 1,
            Outcome::Lost(loss) => inner.suspects.push(*loss),
            Outcome::Wrong(what) => {
                inner.counts.wrong += 1;
                inner.tell(format!("WRONG {what}"));
            }
        }
    }

    /// Something else that must not be.
    pub(crate) fn failed(&self, what: &str) {
        let mut inner = self.lock();
        inner.counts.failures += 1;
        inner.tell(format!("FAILED {what}"));
    }

    /// Accepts no cut as a reason from now on.
    pub(crate) fn forget_cuts(&self) {
        self.lock().forgetful = true;
    }

    /// The harness takes the connections with this index out of service.
    pub(crate) fn hits(&self, index: u8) {
        if let Some(hit) = self.lock().hit.get_mut(usize::from(index)) {
            *hit = Some(Instant::now());
        }
    }

    /// Datagrams go nowhere from now on, for so long. What a connection survives is no reason to lose anything.
    pub(crate) fn silenced(&self, length: Duration) {
        let now = Instant::now();
        if length >= SURVIVED {
            self.lock().silence = Some((now, now + length));
        }
    }

    /// A connection ended.
    pub(crate) fn connection_ended(&self, id: Uuid, transport: Transport, index: u8, reason: String) {
        let mut inner = self.lock();
        let now = Instant::now();
        if inner.forgetful {
            return;
        }
        let ours = is_cut(&reason) || reason == "drained" || inner.in_silence(now);
        if ours && let Some(hit) = inner.hit.get_mut(usize::from(index)) {
            *hit = Some(now);
        }
        inner.ended.insert(id, Ended { transport, reason, at: now });
    }

    /// The edge saw a request on this connection end early.
    pub(crate) fn request_ended(&self, connection: Uuid) {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.early.retain(|(at, _)| *at + 5 * PATIENCE > now);
        inner.early.push((now, connection));
    }

    /// Judges the losses that have waited long enough. `seen` tells whether a backend has seen a request.
    pub(crate) fn judge(&self, seen: impl Fn(u64) -> bool) {
        let mut inner = self.lock();
        let now = Instant::now();
        let (due, waiting) = inner.suspects.drain(..).partition(|loss| loss.at + PATIENCE <= now);
        inner.suspects = waiting;
        let due: Vec<Loss> = due;
        for loss in due {
            match inner.explain(&loss, &seen) {
                Some(cause) => *inner.counts.lost.entry(cause).or_default() += 1,
                None => {
                    inner.counts.unexplained += 1;
                    let end = match loss.connection.and_then(|id| inner.ended.get(&id)) {
                        Some(end) => {
                            let before = loss.at.saturating_duration_since(end.at).as_millis();
                            format!("its connection ended {before} ms before: {}", end.reason)
                        }
                        None => "its connection is up, or none was named".to_owned(),
                    };
                    inner.tell(format!("LOST {} at {:?}: {}; {end}", loss.what, loss.stage, loss.text));
                }
            }
        }
    }
}

/// Whether the edge ended a connection because the harness told it so.
fn is_cut(reason: &str) -> bool {
    reason == "dropped on demand" || reason == "killed in the middle of a body"
}

impl Inner {
    fn tell(&mut self, what: String) {
        self.tellings += 1;
        if self.tellings <= TOLD {
            self.told.push(what);
        }
    }

    fn in_silence(&self, at: Instant) -> bool {
        self.silence.is_some_and(|(from, to)| from <= at && at <= to + RECOVERY)
    }

    /// Whether the edge saw a request end early about then, on a connection that was cut.
    fn was_cut_near(&self, then: Instant) -> bool {
        let second = Duration::from_secs(1);
        let near = |at: Instant| at <= then + second && then <= at + second;
        self.early.iter().any(|(at, id)| near(*at) && self.ended.get(id).is_some_and(|end| is_cut(&end.reason)))
    }

    fn explain(&self, loss: &Loss, seen: impl Fn(u64) -> bool) -> Option<Cause> {
        let ended = loss.connection.and_then(|id| self.ended.get(&id));
        match (loss.stage, ended) {
            (Stage::Unassigned, _) => {
                let hit = |hit: &&Option<Instant>| hit.is_some_and(|at| at + RECOVERY >= loss.at);
                (self.hit.iter().filter(hit).count() == self.hit.len()).then_some(Cause::NoConnection)
            }
            (Stage::Edge | Stage::Body, Some(end)) if is_cut(&end.reason) => Some(Cause::Cut),
            (Stage::Edge | Stage::Body, Some(end)) if end.transport == Transport::Quic && self.in_silence(end.at) => {
                Some(Cause::Silence)
            }
            (Stage::Head, _) if self.was_cut_near(loss.at) => Some(Cause::CutUnread),
            (Stage::Head, _) if loss.upload && !seen(loss.id) => Some(Cause::IdleClose),
            (Stage::Proxy, _) if loss.upload && loss.text.contains("closed the connection") && !seen(loss.id) => {
                Some(Cause::IdleClose)
            }
            _ => None,
        }
    }
}
