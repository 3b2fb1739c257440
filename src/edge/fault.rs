//! What goes wrong on demand. Only values; whoever serves asks for them at the right moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Faults, all off at first. Each can be changed while the edge runs.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<FaultState>,
    silent_udp: Arc<AtomicBool>,
    reject_quic: AtomicBool,
    reject_http2: AtomicBool,
    locally_managed: AtomicBool,
}

/// Registrations to refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// How many.
    pub times: u32,
    /// What to say; `EDUPCONN` means something to connectors.
    pub cause: String,
    /// Whether to say that another try makes sense.
    pub should_retry: bool,
    /// After how long, if that is to be said.
    pub retry_after: Option<Duration>,
}

/// Connections to cut in the middle of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// How many.
    pub times: u32,
    /// After how many bytes of a response's body.
    pub after: u64,
}

#[derive(Debug, Default)]
struct FaultState {
    refusal: Option<Refusal>,
    registration_delay: Duration,
    request_delay: Duration,
    kill: Option<Kill>,
}

impl Faults {
    /// Refuses the next registrations.
    pub fn refuse(&self, refusal: Refusal) {
        self.lock().refusal = Some(refusal);
    }

    /// Answers registrations late.
    pub fn delay_registrations(&self, by: Duration) {
        self.lock().registration_delay = by;
    }

    /// Holds each client's request before it enters the tunnel.
    pub fn delay_requests(&self, by: Duration) {
        self.lock().request_delay = by;
    }

    /// Cuts the connection during the next responses.
    pub fn kill_mid_body(&self, kill: Kill) {
        self.lock().kill = Some(kill);
    }

    /// Receives datagrams and drops them, and sends none: a firewall that eats UDP.
    pub fn silence_udp(&self, on: bool) {
        self.silent_udp.store(on, Ordering::Relaxed);
    }

    /// Refuses QUIC connections with a clear answer.
    pub fn reject_quic(&self, on: bool) {
        self.reject_quic.store(on, Ordering::Relaxed);
    }

    /// Closes TCP connections as soon as they are made.
    pub fn reject_http2(&self, on: bool) {
        self.reject_http2.store(on, Ordering::Relaxed);
    }

    /// Tells connectors that registered afterwards that the tunnel has its configuration from them.
    pub fn locally_managed(&self, on: bool) {
        self.locally_managed.store(on, Ordering::Relaxed);
    }

    /// The refusal for this registration, if it is refused.
    pub(super) fn take_refusal(&self) -> Option<Refusal> {
        let mut state = self.lock();
        let refusal = state.refusal.as_mut().filter(|r| r.times > 0)?;
        refusal.times -= 1;
        Some(refusal.clone())
    }

    /// After how many bytes this response is cut, if it is.
    pub(super) fn take_kill(&self) -> Option<u64> {
        let mut state = self.lock();
        let kill = state.kill.as_mut().filter(|k| k.times > 0)?;
        kill.times -= 1;
        Some(kill.after)
    }

    pub(super) fn registration_delay(&self) -> Duration {
        self.lock().registration_delay
    }

    pub(super) fn request_delay(&self) -> Duration {
        self.lock().request_delay
    }

    pub(super) fn silent_udp(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.silent_udp)
    }

    pub(super) fn rejects_quic(&self) -> bool {
        self.reject_quic.load(Ordering::Relaxed)
    }

    pub(super) fn rejects_http2(&self) -> bool {
        self.reject_http2.load(Ordering::Relaxed)
    }

    pub(super) fn is_locally_managed(&self) -> bool {
        self.locally_managed.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
