//! A connection to the edge as the rest of the connector sees it: the same over both transports. Its tasks live in
//! [`http2`](super::http2) and [`quic`](super::quic).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::control::RPC_TIMEOUT;
use super::state::Loss;
use crate::proxy::http::Duplex;

/// How often a drain looks whether requests are under way, and how long there must have been none: a request that the edge
/// sent before it answered the unregistration can arrive after the answer.
const IDLE_CHECK: Duration = Duration::from_millis(50);
const IDLE_CHECKS: u32 = 4;

/// Tells how often the peer was heard of. Only of a transport on which what was sent earlier may arrive later.
pub(super) type Heard = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The control stream of either transport.
pub(super) type ControlStream = Box<dyn Duplex>;

/// Why a connection could not be made or has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// There is nothing to dial.
    #[error(transparent)]
    Edge(#[from] super::edge::EdgeError),
    /// The TCP connection, TLS or the UDP socket failed.
    #[error("cannot connect to the edge at {address}: {source}")]
    Connect {
        /// The edge.
        address: std::net::SocketAddr,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The QUIC handshake failed.
    #[error("quic connection failed: {0}")]
    Quic(#[from] quinn::ConnectionError),
    /// QUIC cannot be started.
    #[error("quic connection cannot be started: {0}")]
    QuicStart(#[from] quinn::ConnectError),
    /// Something took too long.
    #[error("no {what} within {limit:?}")]
    Timeout {
        /// What did not come.
        what: &'static str,
        /// How long it may take.
        limit: Duration,
    },
    /// HTTP/2 failed.
    #[error("http/2 connection failed: {0}")]
    Http2(#[from] h2::Error),
    /// The peer does not answer PINGs.
    #[error("the edge has fallen silent")]
    Silent,
    /// The edge has closed the connection.
    #[error("the edge closed the connection")]
    Closed,
    /// A task of the connection panicked.
    #[error("a task of the connection panicked")]
    Panicked,
}

impl LinkError {
    /// What it means for an established connection.
    pub(super) fn loss(&self) -> Loss {
        match self {
            Self::Silent | Self::Quic(quinn::ConnectionError::TimedOut) => Loss::Silent,
            _ => Loss::Ended,
        }
    }
}

/// Round-trip time, as last measured.
#[derive(Debug, Default)]
pub(super) struct Rtt(AtomicU64);

impl Rtt {
    pub(super) fn set(&self, rtt: Duration) {
        self.0.store(u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|us| *us > 0).map(Duration::from_micros)
    }
}

/// An established connection. Dropping it closes it.
pub(super) struct Link {
    /// Our end.
    pub(super) local: Option<IpAddr>,
    /// Round-trip time.
    pub(super) rtt: Arc<Rtt>,
    /// Cancelled when the edge announces that it will close.
    pub(super) leaving: CancellationToken,
    control: Option<oneshot::Receiver<ControlStream>>,
    requests: TaskTracker,
    heard: Option<Heard>,
    /// The task that drives the connection; ends with it.
    driver: JoinHandle<LinkError>,
    close: DropGuard,
    cut: DropGuard,
}

/// The driver's side of a [`Link`].
pub(super) struct Ends {
    pub(super) rtt: Arc<Rtt>,
    pub(super) control: oneshot::Sender<ControlStream>,
    /// Cancelled when the connection is to be closed once everything on it has been delivered.
    pub(super) close: CancellationToken,
    /// Cancelled when it is to be closed whatever is on it.
    pub(super) cut: CancellationToken,
}

impl Link {
    /// Starts the task that `drive` makes. `leaving` is cancelled by whoever hears the edge announce its end.
    pub(super) fn spawn<F>(
        local: Option<IpAddr>,
        requests: TaskTracker,
        heard: Option<Heard>,
        leaving: CancellationToken,
        drive: impl FnOnce(Ends) -> F,
    ) -> Self
    where
        F: Future<Output = LinkError> + Send + 'static,
    {
        let (rtt, close, cut) = (Arc::new(Rtt::default()), CancellationToken::new(), CancellationToken::new());
        let (sender, control) = oneshot::channel();
        let ends = Ends { rtt: Arc::clone(&rtt), control: sender, close: close.clone(), cut: cut.clone() };
        let driver = tokio::spawn(drive(ends));
        let (close, cut) = (close.drop_guard(), cut.drop_guard());
        Self { local, rtt, leaving, control: Some(control), requests, heard, driver, close, cut }
    }

    /// The control stream, once.
    ///
    /// # Errors
    /// When there is none in time, or the connection ends before.
    pub(super) async fn control_stream(&mut self) -> Result<ControlStream, LinkError> {
        let Some(control) = self.control.take() else { return Err(LinkError::Closed) };
        match tokio::time::timeout(RPC_TIMEOUT, control).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(_)) => Err(self.ended().await),
            Err(_) => Err(LinkError::Timeout { what: "control stream", limit: RPC_TIMEOUT }),
        }
    }

    /// Waits for the end of the connection. To be awaited to its end once at most.
    pub(super) async fn ended(&mut self) -> LinkError {
        (&mut self.driver).await.unwrap_or(LinkError::Panicked)
    }

    /// Waits until no request has been under way for a moment, in a time in which the edge could have sent one: over QUIC a request
    /// that was lost is sent again only when the path carries datagrams, maybe long after what was sent later.
    pub(super) fn idle(&self) -> impl Future<Output = ()> + use<> {
        let (requests, heard) = (self.requests.clone(), self.heard.clone());
        async move {
            let count = || heard.as_ref().map(|heard| heard());
            let before = count();
            let mut checks = 0;
            while checks < IDLE_CHECKS {
                tokio::time::sleep(IDLE_CHECK).await;
                let deaf = before.is_some() && count() == before;
                checks = if requests.is_empty() && !deaf { checks + 1 } else { 0 };
            }
        }
    }

    /// Closes the connection: what has been written to it gets `limit` to be delivered, then it is cut. The control stream has
    /// to be over, or it is waited for as well.
    pub(super) async fn close(self, limit: Duration) {
        let Self { mut driver, close, cut, .. } = self;
        drop(close);
        if tokio::time::timeout(limit, &mut driver).await.is_err() {
            drop(cut);
            // The driver bounds its own goodbye; its outcome no longer matters.
            drop(driver.await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_nothing_is_heard_is_not_taken_for_idle() {
        let datagrams = Arc::new(AtomicU64::new(7));
        let heard: Heard = Arc::new({
            let datagrams = Arc::clone(&datagrams);
            move || datagrams.load(Ordering::Relaxed)
        });
        let requests = TaskTracker::new();
        let link = Link::spawn(None, requests.clone(), Some(heard), CancellationToken::new(), |_ends| std::future::pending());
        let mut idle = std::pin::pin!(link.idle());
        let long = Duration::from_secs(60);
        assert!(tokio::time::timeout(long, &mut idle).await.is_err(), "the edge could not have sent any");
        // The path is back, and with it comes a request that was lost before.
        datagrams.fetch_add(1, Ordering::Relaxed);
        let request = requests.token();
        assert!(tokio::time::timeout(long, &mut idle).await.is_err(), "a request is under way");
        drop(request);
        tokio::time::timeout(IDLE_CHECK * (IDLE_CHECKS + 1), idle).await.expect("idle");
    }
}
