//! The config API of a plane (X14, X15, X22): one document at a time, over TLS and for the bearer of a token only. What a
//! document means is the business of `table` and `http`.

mod credential;
mod last_good;
mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore, watch};

pub(super) use credential::{Certified, provider};
pub use credential::{CredentialError, Credentials, Files, Token};
pub use last_good::{LastGood, LastGoodError};
pub use server::serve;

use super::http::Plane;
use super::http::plane::Applied;
use super::table::compile::{CompileError, Refusal};
use crate::gateway::ir::RouteConfig;

/// Largest document, bytes.
pub const MAX_DOCUMENT: usize = 32 << 20;

/// Documents read at once; there is one leader, and one that just lost its lease.
const MAX_READING: usize = 2;

/// What the controller pushes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Envelope {
    /// UID of the Gateway that the document is for.
    pub gateway_uid: String,
    /// `leaseTransitions` of the controller's Lease: a controller that lost it has a lower one (X22).
    pub lease_transitions: u64,
    /// The document.
    pub config: RouteConfig,
}

/// What the plane answers to a document that it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The content hash of the document.
    pub version: String,
    /// Rules that are not served as written.
    pub refusals: Vec<Refusal>,
}

impl From<Applied> for Verdict {
    fn from(applied: Applied) -> Self {
        Self { version: applied.version, refusals: applied.refusals }
    }
}

/// Why a document is not served. What served before goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// For another plane.
    #[error("the document is for gateway {offered:?}, this plane serves {own:?}; check which plane the push goes to")]
    Gateway {
        /// The UID in the document.
        offered: String,
        /// The UID of this plane.
        own: String,
    },
    /// From a controller that is no longer the leader.
    #[error("the push has lease transition {offered}, this plane has seen {seen}; the sender lost the lease")]
    Lease {
        /// The count in the document.
        offered: u64,
        /// The highest seen.
        seen: u64,
    },
    /// Cannot be read as a whole.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The plane could not finish.
    #[error("the plane failed while it applied the document; see its log")]
    Internal,
}

/// Brings documents to the plane: pushed ones, and until then the stored one.
#[derive(Debug)]
pub struct Delivery {
    plane: Arc<Plane>,
    gateway_uid: String,
    credentials: Arc<Credentials>,
    last_good: Option<LastGood>,
    /// Highest lease transition seen. Held while a document is applied: pushes take effect one after the other.
    newest: Mutex<u64>,
    /// Documents in memory at once.
    reading: Semaphore,
    /// Whether a push has arrived.
    pushed: watch::Sender<bool>,
    stale: watch::Sender<bool>,
}

impl Delivery {
    /// For the plane of the Gateway with this UID. Without `last_good` nothing is stored.
    pub fn new(
        plane: Arc<Plane>,
        gateway_uid: impl Into<String>,
        credentials: Arc<Credentials>,
        last_good: Option<LastGood>,
    ) -> Arc<Self> {
        Arc::new(Self {
            plane,
            gateway_uid: gateway_uid.into(),
            credentials,
            last_good,
            newest: Mutex::new(0),
            reading: Semaphore::new(MAX_READING),
            pushed: watch::Sender::new(false),
            stale: watch::Sender::new(false),
        })
    }

    /// Whether a stored document serves because none has been pushed.
    pub fn stale(&self) -> watch::Receiver<bool> {
        self.stale.subscribe()
    }

    /// Serves by a pushed document.
    ///
    /// # Errors
    /// Why not; what served before goes on.
    pub async fn push(self: &Arc<Self>, envelope: Envelope) -> Result<Verdict, Rejected> {
        if envelope.gateway_uid != self.gateway_uid {
            return Err(Rejected::Gateway { offered: envelope.gateway_uid, own: self.gateway_uid.clone() });
        }
        let this = Arc::clone(self);
        // In a task of its own: a push whose sender hangs up is applied and stored whole, or not at all.
        tokio::spawn(async move { this.apply_and_store(envelope).await }).await.unwrap_or(Err(Rejected::Internal))
    }

    async fn apply_and_store(self: Arc<Self>, envelope: Envelope) -> Result<Verdict, Rejected> {
        let mut newest = self.newest.lock().await;
        if envelope.lease_transitions < *newest {
            return Err(Rejected::Lease { offered: envelope.lease_transitions, seen: *newest });
        }
        let (envelope, applied) = self.apply(envelope).await?;
        *newest = envelope.lease_transitions;
        self.pushed.send_replace(true);
        self.set_stale(false);
        if let Some(last_good) = self.last_good.clone() {
            let token = self.credentials.token();
            let saved = tokio::task::spawn_blocking(move || last_good.save(&token, &envelope)).await;
            if let Ok(Err(error)) = saved {
                tracing::warn!(%error, "Cannot store the configuration for a restart");
            }
        }
        Ok(applied.into())
    }

    /// Compiling a large document takes time that requests should not wait for.
    async fn apply(&self, envelope: Envelope) -> Result<(Envelope, Applied), Rejected> {
        let plane = Arc::clone(&self.plane);
        let applied = tokio::task::spawn_blocking(move || plane.apply(&envelope.config).map(|applied| (envelope, applied)));
        Ok(applied.await.map_err(|_| Rejected::Internal)??)
    }

    /// Waits for a push; after `patience` without one, serves by the stored document if there is one that fits, marked stale
    /// until a push arrives. Tells whether the stored one serves.
    pub async fn restore_unless_pushed(&self, patience: Duration) -> bool {
        let Some(last_good) = self.last_good.clone() else { return false };
        let mut pushed = self.pushed.subscribe();
        if tokio::time::timeout(patience, pushed.wait_for(|pushed| *pushed)).await.is_ok() {
            return false;
        }
        let mut newest = self.newest.lock().await;
        if *self.pushed.borrow() {
            return false;
        }
        let token = self.credentials.token();
        let loaded = tokio::task::spawn_blocking(move || last_good.load(&token)).await;
        let envelope = match loaded {
            Ok(Ok(Some(envelope))) if envelope.gateway_uid == self.gateway_uid => envelope,
            Ok(Ok(_)) | Err(_) => return false,
            Ok(Err(error)) => {
                tracing::warn!(%error, "Cannot use the stored configuration");
                return false;
            }
        };
        match self.apply(envelope).await {
            Ok((envelope, applied)) => {
                *newest = envelope.lease_transitions;
                self.set_stale(true);
                tracing::warn!(version = applied.version, "No configuration was pushed, serving by the stored one");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot use the stored configuration");
                false
            }
        }
    }

    fn set_stale(&self, stale: bool) {
        self.stale.send_if_modified(|current| std::mem::replace(current, stale) != stale);
        self.plane.metrics().config_stale.set(stale.into());
    }
}
