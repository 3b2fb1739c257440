//! What a connection is doing, as far as its time limits care. Written by the byte stream and by requests, read by the task
//! that drives the connection; nothing here acts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Limits;

/// Signs of life of one connection. One thread at a time writes them; atomics, because HTTP/2 requests are tasks of their own.
#[derive(Debug)]
pub(super) struct Activity {
    /// Whether bytes between requests are the head of the next one. Over HTTP/2 they may be anything.
    heads: bool,
    /// Requests whose response has not ended.
    requests: AtomicU32,
    /// Requests so far, wrapping.
    begun: AtomicU32,
    /// Bytes have come since the last request ended.
    head_begun: AtomicBool,
    /// The client takes nothing at the moment.
    stalled: AtomicBool,
    /// Writes that took something, wrapping.
    writes: AtomicU32,
    /// The connection is to end at once.
    cut: AtomicBool,
}

/// A request under way, until dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Activity {
    pub(super) fn new(heads: bool) -> Arc<Self> {
        Arc::new(Self {
            heads,
            requests: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            // A new connection owes a head.
            head_begun: AtomicBool::new(heads),
            stalled: AtomicBool::new(false),
            writes: AtomicU32::new(0),
            cut: AtomicBool::new(false),
        })
    }

    pub(super) fn begin_request(self: &Arc<Self>) -> Busy {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_begun.store(false, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Bytes have come.
    pub(super) fn read(&self) {
        if self.heads && self.requests.load(Ordering::Relaxed) == 0 {
            self.head_begun.store(true, Ordering::Relaxed);
        }
    }

    /// The client has taken some bytes, or none.
    pub(super) fn wrote(&self, some: bool) {
        if some {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        self.stalled.store(!some, Ordering::Relaxed);
    }

    /// Whoever holds the socket is to reset it, not to end it.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn moment(&self) -> Moment {
        let phase = if self.stalled.load(Ordering::Relaxed) {
            Phase::Stalled { writes: self.writes.load(Ordering::Relaxed) }
        } else if self.requests.load(Ordering::Relaxed) > 0 {
            Phase::Busy
        } else if self.head_begun.load(Ordering::Relaxed) {
            Phase::Head
        } else {
            Phase::Idle
        };
        Moment { phase, begun: self.begun.load(Ordering::Relaxed) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.head_begun.store(false, Ordering::Relaxed);
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    phase: Phase,
    begun: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between requests.
    Idle,
    /// Reading the head of a request.
    Head,
    /// Answering: how long that may take is the request path's business.
    Busy,
    /// The client does not read.
    Stalled { writes: u32 },
}

/// What becomes of a connection that stays as it is for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// Nobody would miss it: it ends in good order.
    Finish,
    /// The peer had its time.
    Cut(&'static str),
}

/// Follows an [`Activity`] over time.
#[derive(Debug)]
pub(super) struct Watch {
    last: Moment,
    since: Instant,
}

impl Watch {
    pub(super) fn new(activity: &Activity) -> Self {
        Self { last: activity.moment(), since: Instant::now() }
    }

    /// Looks at the connection, which must be done each time that it has moved. Says when it is late, and what follows then.
    pub(super) fn look(&mut self, activity: &Activity, limits: &Limits, draining: bool) -> Option<(Instant, Late)> {
        let moment = activity.moment();
        if moment != self.last {
            self.last = moment;
            // The clock is read once per change: a busy connection has thousands a second.
            if moment.phase != Phase::Busy {
                self.since = Instant::now();
            }
        }
        let (limit, late): (Duration, _) = match moment.phase {
            Phase::Busy => return None,
            Phase::Head => (limits.head, Late::Cut("the head of a request did not come in time")),
            Phase::Idle if draining => (limits.drain_idle, Late::Finish),
            Phase::Idle => (limits.idle, Late::Finish),
            Phase::Stalled { .. } => (limits.stalled, Late::Cut("the client does not take what is sent to it")),
        };
        Some((self.since + limit, late))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(watch: &mut Watch, activity: &Activity) -> Option<(Duration, Late)> {
        let (at, late) = watch.look(activity, &Limits::default(), false)?;
        Some((at - Instant::now(), late))
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_limit_and_each_change_begins_anew() {
        let limits = Limits::default();
        let activity = Activity::new(true);
        let mut watch = Watch::new(&activity);
        assert!(matches!(late(&mut watch, &activity), Some((after, Late::Cut(_))) if after == limits.head), "the first head");
        let busy = activity.begin_request();
        assert_eq!(late(&mut watch, &activity), None);
        activity.read();
        drop(busy);
        assert_eq!(late(&mut watch, &activity), Some((limits.idle, Late::Finish)), "bytes of a body begin no head");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(late(&mut watch, &activity), Some((limits.idle - Duration::from_secs(5), Late::Finish)));
        activity.read();
        assert!(matches!(late(&mut watch, &activity), Some((after, Late::Cut(_))) if after == limits.head));
        tokio::time::advance(Duration::from_secs(5)).await;
        activity.read();
        let left = limits.head - Duration::from_secs(5);
        assert!(matches!(late(&mut watch, &activity), Some((after, Late::Cut(_))) if after == left), "drops do not prolong it");
        drop(activity.begin_request());
        assert_eq!(late(&mut watch, &activity), Some((limits.idle, Late::Finish)), "a request in one turn counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_something_now_and_then_is_not_stalled() {
        let limits = Limits::default();
        let activity = Activity::new(false);
        let mut watch = Watch::new(&activity);
        let _busy = activity.begin_request();
        for _ in 0..3 {
            activity.wrote(true);
            activity.wrote(false);
            let verdict = late(&mut watch, &activity);
            assert!(matches!(verdict, Some((after, Late::Cut(_))) if after == limits.stalled));
            tokio::time::advance(limits.stalled / 2).await;
        }
        activity.wrote(true);
        assert_eq!(late(&mut watch, &activity), None);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_between_requests_are_no_head() {
        let activity = Activity::new(false);
        let mut watch = Watch::new(&activity);
        activity.read();
        assert_eq!(late(&mut watch, &activity), Some((Limits::default().idle, Late::Finish)));
    }
}
