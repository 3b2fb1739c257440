//! The order of death: not ready, no new requests, the old ones finish, everything stops. What each step does is passed in;
//! nothing here knows a connection or a signal.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every request finished.
    Finished,
    /// The grace ran out first; what was left has been cut.
    Cut,
}

/// The steps of a drain.
#[derive(Debug)]
pub struct Steps<Unregister, Idle, Stop> {
    /// Tells peers to send no new requests, and returns when they know. A peer that does not answer only costs its time.
    pub unregister: Unregister,
    /// Resolves when nothing is in flight.
    pub idle: Idle,
    /// Closes what is left.
    pub stop: Stop,
}

/// Sets `draining`, so that readiness fails, and runs the steps. Together the first two take no longer than `grace`.
pub async fn drain(
    draining: &watch::Sender<bool>,
    grace: Duration,
    steps: Steps<impl Future<Output = ()>, impl Future<Output = ()>, impl Future<Output = ()>>,
) -> Outcome {
    let deadline = Instant::now() + grace;
    draining.send_replace(true);
    tracing::info!(grace_seconds = grace.as_secs(), "Draining");
    if timeout_at(deadline, steps.unregister).await.is_err() {
        tracing::warn!("Unregistering took longer than the grace");
    }
    let outcome = match timeout_at(deadline, steps.idle).await {
        Ok(()) => Outcome::Finished,
        Err(_) => Outcome::Cut,
    };
    steps.stop.await;
    match outcome {
        Outcome::Finished => tracing::info!("Drained"),
        Outcome::Cut => tracing::warn!("Cut requests that outlived the grace"),
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::sleep;

    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    /// A step, whether the plane was draining, and the second in which the step ended.
    type Entry = (&'static str, bool, u64);

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<Entry>>>);

    impl Log {
        async fn step(self, name: &'static str, took: u64, ready: watch::Receiver<bool>, start: Instant) {
            sleep(Duration::from_secs(took)).await;
            self.0.lock().unwrap().push((name, *ready.borrow(), start.elapsed().as_secs()));
        }
    }

    async fn run(unregister: u64, idle: u64) -> (Outcome, Vec<Entry>) {
        let (draining, seen) = watch::channel(false);
        let log = Log::default();
        let start = Instant::now();
        let step = |name, took| log.clone().step(name, took, seen.clone(), start);
        let steps = Steps { unregister: step("unregister", unregister), idle: step("idle", idle), stop: step("stop", 0) };
        let outcome = drain(&draining, GRACE, steps).await;
        let log = log.0.lock().unwrap().clone();
        (outcome, log)
    }

    #[tokio::test(start_paused = true)]
    async fn the_steps_run_in_order_and_not_ready() {
        let (outcome, log) = run(1, 5).await;
        assert_eq!(outcome, Outcome::Finished);
        assert_eq!(log, [("unregister", true, 1), ("idle", true, 6), ("stop", true, 6)]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_outlive_the_grace_are_cut() {
        let (outcome, log) = run(1, 300).await;
        assert_eq!(outcome, Outcome::Cut);
        assert_eq!(log, [("unregister", true, 1), ("stop", true, 30)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_cannot_hold_up_the_end() {
        let (outcome, log) = run(300, 0).await;
        assert_eq!(outcome, Outcome::Finished, "nothing was in flight");
        assert_eq!(log, [("idle", true, 30), ("stop", true, 30)]);
    }
}
