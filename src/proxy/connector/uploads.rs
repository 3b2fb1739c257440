//! Uploads whose backends take nothing. What has arrived of them lies in the windows of their connection, which the uploads of
//! everybody else need, too: when too much lies there for too long, those that have waited longest are given up.
//!
//! An upload is spared as long as its backend takes a piece now and then, or its client has nothing to send, or there is room, or
//! it holds no more than its share.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::proxy::http::Body;
use crate::proxy::http::body::Watch;

/// How long a backend may take nothing before its upload counts. Less than clients wait, more than a garbage collection.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look, while there are uploads.
const INTERVAL: Duration = Duration::from_secs(1);

/// The uploads of one connection.
#[derive(Debug)]
pub(super) struct Uploads {
    entries: Mutex<Entries>,
    added: Notify,
    started: Instant,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// By age.
    by_id: BTreeMap<u64, Arc<Upload>>,
}

/// One upload.
#[derive(Debug)]
pub(super) struct Upload {
    /// When its backend took the last piece, in milliseconds since the connection began; [`NOBODY`] while it is the client that
    /// is waited for.
    waits_since: AtomicU64,
    held: Held,
    given_up: CancellationToken,
}

const NOBODY: u64 = u64::MAX;

/// What has arrived and was not taken, bytes.
#[derive(Debug)]
pub(super) enum Held {
    /// As the window of an HTTP/2 stream says.
    Http2(Mutex<h2::FlowControl>),
    /// Quinn does not tell: at most this much, and no more than is still to come.
    Quic {
        /// Window of the stream.
        window: u64,
        /// Bytes to come, [`u64::MAX`] when the length is not known.
        left: AtomicU64,
    },
}

impl Held {
    /// On an HTTP/2 stream.
    pub(super) fn http2(stream: &mut h2::RecvStream) -> Self {
        Self::Http2(Mutex::new(stream.flow_control().clone()))
    }

    /// On a QUIC stream with this window, for a body of this length.
    pub(super) fn quic(window: u64, length: Option<u64>) -> Self {
        Self::Quic { window, left: AtomicU64::new(length.unwrap_or(u64::MAX)) }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Http2(flow) => flow.lock().unwrap_or_else(PoisonError::into_inner).used_capacity() as u64,
            Self::Quic { window, left } => left.load(Ordering::Relaxed).min(*window),
        }
    }

    fn took(&self, bytes: u64) {
        if let Self::Quic { left, .. } = self {
            let left_now = left.load(Ordering::Relaxed);
            if left_now != u64::MAX {
                left.store(left_now.saturating_sub(bytes), Ordering::Relaxed);
            }
        }
    }
}

impl Upload {
    /// Resolves when it is given up, to make room for others.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}

/// [`Upload::given_up`] of a request that may have no body, and then never is.
pub(super) async fn given_up(upload: Option<&Upload>) {
    match upload {
        Some(upload) => upload.given_up().await,
        None => std::future::pending().await,
    }
}

/// Tells how an upload goes on, and strikes it off when it is over.
struct Watcher {
    uploads: Arc<Uploads>,
    upload: Arc<Upload>,
    id: u64,
}

impl Watch for Watcher {
    fn pulled(&self, bytes: Option<usize>) {
        let waits = bytes.map_or(NOBODY, |bytes| {
            self.upload.held.took(bytes as u64);
            self.uploads.now()
        });
        self.upload.waits_since.store(waits, Ordering::Relaxed);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.uploads.entries().by_id.remove(&self.id);
    }
}

impl Uploads {
    /// None yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { entries: Mutex::default(), added: Notify::new(), started: Instant::now() })
    }

    /// Watches a body until it is dropped.
    pub(super) fn watch(self: &Arc<Self>, body: Body, held: Held) -> (Body, Arc<Upload>) {
        let upload = Arc::new(Upload { waits_since: AtomicU64::new(self.now()), held, given_up: CancellationToken::new() });
        let mut entries = self.entries();
        let id = entries.next;
        entries.next += 1;
        entries.by_id.insert(id, Arc::clone(&upload));
        drop(entries);
        self.added.notify_one();
        let watcher = Watcher { uploads: Arc::clone(self), upload: Arc::clone(&upload), id };
        (body.watched(Box::new(watcher)), upload)
    }

    /// Keeps what waits for its backends below `most` bytes. Never returns.
    pub(super) async fn bound(&self, most: u64, conn_index: u8) -> Infallible {
        loop {
            if self.entries().by_id.is_empty() {
                self.added.notified().await;
            }
            sleep(INTERVAL).await;
            let (count, bytes) = self.give_up_beyond(most);
            if count > 0 {
                tracing::warn!(
                    conn_index,
                    count,
                    bytes,
                    "Uploads given up: their backends take nothing, and others need the room"
                );
            }
        }
    }

    /// Gives up those that wait longest until the others hold no more than `most`. How many, and what they held.
    fn give_up_beyond(&self, most: u64) -> (usize, u64) {
        let patience = u64::try_from(PATIENCE.as_millis()).unwrap_or(NOBODY);
        let Some(limit) = self.now().checked_sub(patience) else { return (0, 0) };
        let mut waiting: Vec<(u64, u64, Arc<Upload>)> = Vec::new();
        for upload in self.entries().by_id.values() {
            let since = upload.waits_since.load(Ordering::Relaxed);
            if since <= limit && !upload.given_up.is_cancelled() {
                waiting.push((since, upload.held.bytes(), Arc::clone(upload)));
            }
        }
        waiting.sort_by_key(|(since, ..)| *since);
        let mut held: u64 = waiting.iter().map(|(_, bytes, _)| bytes).sum();
        // Who holds no more than that is in nobody's way.
        let share = most / (waiting.len() as u64).max(1);
        let (mut count, mut freed) = (0, 0);
        for (_, bytes, upload) in waiting {
            if held <= most {
                break;
            }
            if bytes <= share {
                continue;
            }
            upload.given_up.cancel();
            held -= bytes;
            freed += bytes;
            count += 1;
        }
        (count, freed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(NOBODY - 1)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: u64) -> Held {
        Held::quic(bytes, None)
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_longest_go_until_the_rest_fits() {
        let uploads = Uploads::new();
        let first = uploads.watch(Body::full("x"), held(60));
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = uploads.watch(Body::full("x"), held(60));
        let third = uploads.watch(Body::full("x"), held(60));
        assert_eq!(uploads.give_up_beyond(100), (0, 0), "they have not waited long");
        tokio::time::advance(PATIENCE).await;
        assert_eq!(uploads.give_up_beyond(180), (0, 0), "there is room");
        assert_eq!(uploads.give_up_beyond(120), (1, 60));
        assert!(first.1.given_up.is_cancelled() && !second.1.given_up.is_cancelled());
        assert_eq!(uploads.give_up_beyond(120), (0, 0));
        drop((first, third));
        assert_eq!(uploads.entries().by_id.len(), 1);
        let _small = uploads.watch(Body::full("x"), held(5));
        tokio::time::advance(PATIENCE).await;
        assert_eq!(uploads.give_up_beyond(60), (1, 60), "the small one is in nobody's way");
    }

    #[tokio::test(start_paused = true)]
    async fn neither_a_slow_client_nor_a_slow_reader_is_given_up() {
        let uploads = Uploads::new();
        let (_body, slow_client) = uploads.watch(Body::Empty, held(60));
        let watcher = |upload: &Arc<Upload>| Watcher { uploads: Arc::clone(&uploads), upload: Arc::clone(upload), id: u64::MAX };
        watcher(&slow_client).pulled(None);
        let (_other, slow_reader) = uploads.watch(Body::Empty, Held::quic(60, Some(70)));
        tokio::time::advance(PATIENCE).await;
        watcher(&slow_reader).pulled(Some(30));
        assert_eq!(uploads.give_up_beyond(0), (0, 0));
        tokio::time::advance(PATIENCE).await;
        assert_eq!(uploads.give_up_beyond(0), (1, 40), "no more than is to come");
        assert!(!slow_client.given_up.is_cancelled());
    }
}
