//! The life of a serving process: runtime, signals, probes, the end. What is served is not known here.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::output::Help as _;

/// How long tasks that do not end by themselves may hold up the end of the process.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// Runs `main` on a runtime of its own, on this thread. Requests have threads of theirs: what happens here never delays them.
pub(super) fn block_on<T>(main: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let result = runtime.block_on(main);
    runtime.shutdown_timeout(LAST_WAIT);
    result
}

/// The signals that ask for an end. From its making on, they kill no more.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Self { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
    }

    /// Waits for the next one. May be dropped and called again without losing any.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Binds a listener; `flag` is what moves it elsewhere.
pub(super) async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
        .help(format!("{flag} chooses another address; port 0 takes any that is free"))
}
