//! The thing that answers requests: the configuration that serves, the connections to its backends and the phases of a
//! request in their order. What each phase does is in its own file.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use prometheus_client::metrics::gauge::Gauge;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::pool::Endpoint;
use super::upstream::Upstream;
use super::{Body, Inbound, Serve, exchange, grpc};
use crate::gateway::ir::{BackendKey, BackendProtocol, RouteConfig};
use crate::proxy::error::{Error, Kind};
use crate::proxy::metrics::Metrics;
use crate::proxy::table::RouteTable;
use crate::proxy::table::compile::{CompileError, Compiled, Refusal, compile};

/// How often idle connections are looked for.
const SWEEP: Duration = Duration::from_secs(15);

/// Settings of a plane that no document carries.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Longest wait for a connection to an endpoint.
    pub connect_timeout: Duration,
    /// How long a WebSocket session may carry nothing in either direction.
    pub websocket_idle_timeout: Duration,
    /// Threads that requests come on: each keeps connections of its own to every endpoint.
    pub workers: usize,
}

impl Options {
    /// The defaults: 5 s to connect, one hour of silence, one worker.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, connect_timeout: Duration::from_secs(5), websocket_idle_timeout: Duration::from_secs(3600), workers: 1 }
    }
}

/// Answers requests by the configuration that was applied last.
pub struct Plane {
    serving: ArcSwapOption<Serving>,
    /// Endpoints of the serving configuration. Held while one is applied, so that two do not interleave.
    endpoints: Mutex<HashMap<(SocketAddr, BackendProtocol), Arc<Endpoint>>>,
    options: Options,
    needs_trailers: watch::Sender<bool>,
    version: watch::Sender<Option<String>>,
    requests: Arc<Requests>,
}

/// What a request needs of a configuration. One allocation, swapped whole: a request in flight keeps the one it began with.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) table: RouteTable,
    pub(super) upstreams: HashMap<BackendKey, Upstream>,
}

/// The outcome of an applied configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The content hash: SHA-256 of the canonical JSON, lower-case hex.
    pub version: String,
    /// Rules that are not served as written.
    pub refusals: Vec<Refusal>,
}

impl Plane {
    /// A plane without configuration: it answers 503. Must be called inside a Tokio runtime, where idle connections are
    /// looked after until the plane is dropped.
    pub fn new(options: Options) -> Arc<Self> {
        let requests = Requests { gauge: options.metrics.requests_in_flight.clone(), ..Requests::default() };
        let plane = Arc::new(Self {
            serving: ArcSwapOption::empty(),
            endpoints: Mutex::default(),
            options,
            needs_trailers: watch::Sender::new(false),
            version: watch::Sender::new(None),
            requests: Arc::new(requests),
        });
        tokio::spawn(sweep(Arc::downgrade(&plane)));
        plane
    }

    /// Serves by `config` from now on. Requests in flight finish by what they began with; connections to endpoints that stay
    /// are kept.
    ///
    /// # Errors
    /// When the document as a whole cannot be read; what serves stays.
    pub fn apply(&self, config: &RouteConfig) -> Result<Applied, CompileError> {
        let Compiled { table, refusals } = compile(config).inspect_err(|_| {
            self.options.metrics.config_rejected.inc();
        })?;
        let needs_trailers = table.needs_trailers();
        // The map is changed only below, in one assignment: a panic elsewhere cannot leave it half done.
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = HashMap::new();
        let upstreams = table.backends().map(|backend| {
            let addresses = backend.endpoints.iter().map(|address| (*address, backend.protocol));
            let pools = addresses.map(|key| {
                let pool = kept
                    .entry(key)
                    .or_insert_with(|| endpoints.get(&key).cloned().unwrap_or_else(|| Arc::new(self.endpoint(key))));
                Arc::clone(pool)
            });
            (backend.key.clone(), Upstream::new(pools.collect()))
        });
        let upstreams = upstreams.collect();
        self.serving.store(Some(Arc::new(Serving { table, upstreams })));
        let before = std::mem::replace(&mut *endpoints, kept);
        for (key, endpoint) in before {
            if !endpoints.contains_key(&key) {
                endpoint.retire();
            }
        }
        // Only now: nobody waits for the hash of a large document to be served by it.
        let version = version_of(config);
        self.options.metrics.serves(&version, refusals.len());
        self.needs_trailers.send_if_modified(|current| std::mem::replace(current, needs_trailers) != needs_trailers);
        self.version.send_replace(Some(version.clone()));
        drop(endpoints);
        tracing::info!(version, refusals = refusals.len(), "Configuration applied");
        Ok(Applied { version, refusals })
    }

    fn endpoint(&self, (address, _): (SocketAddr, BackendProtocol)) -> Endpoint {
        Endpoint::new(address, &self.options)
    }

    /// The content hash of the configuration that serves.
    pub fn version(&self) -> Option<String> {
        self.version.borrow().clone()
    }

    /// Follows [`Self::version`].
    pub fn watch_version(&self) -> watch::Receiver<Option<String>> {
        self.version.subscribe()
    }

    /// Whether anything served needs trailers, which only the HTTP/2 transport carries (X16).
    pub fn needs_trailers(&self) -> watch::Receiver<bool> {
        self.needs_trailers.subscribe()
    }

    /// Requests whose response has not ended, WebSocket sessions included.
    pub fn in_flight(&self) -> usize {
        self.requests.current.load(Ordering::Acquire)
    }

    /// Waits until nothing is in flight.
    pub async fn idle(&self) {
        loop {
            let ended = self.requests.ended.notified();
            if self.in_flight() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Where it counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.options.metrics
    }
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plane")
            .field("version", &*self.version.borrow())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Serve for Plane {
    async fn serve(&self, inbound: Inbound, request: http::Request<Body>) -> http::Response<Body> {
        let metrics = &*self.options.metrics;
        let start = Instant::now();
        let mut canceled = CanceledUnless { metrics, responded: false };
        let mut in_flight = Some(self.requests.enter());
        let grpc = grpc::is_grpc(request.headers());
        let head = *request.method() == http::Method::HEAD;
        let answer = match self.serving.load_full() {
            Some(serving) => exchange::answer(&serving, &self.options, inbound, request, &mut in_flight).await,
            None => Err(Kind::NoConfig.into()),
        };
        canceled.responded = true;
        metrics.response_head.observe(start.elapsed());
        match answer {
            Ok(response) => {
                metrics.responded(response.status(), None);
                response
            }
            Err(error) => {
                metrics.responded(error.kind().status(), Some(error.kind()));
                let mut response = error_response(&error, grpc, head);
                response.extensions_mut().insert(error.side());
                response
            }
        }
    }
}

/// The response for a request that failed. It says what kind of failure it was; the cause is for the log.
fn error_response(error: &Error, grpc: bool, head: bool) -> http::Response<Body> {
    let status = error.kind().status();
    if grpc {
        return grpc::error_response(status, &error.to_string());
    }
    let text = format!("{error}\n");
    let mut response = http::Response::new(Body::Empty);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(http::header::CONTENT_LENGTH, http::HeaderValue::from(text.len()));
    if !head {
        *response.body_mut() = Body::full(text);
    }
    response
}

/// A request that ends without a response was canceled by its client: its future was dropped.
struct CanceledUnless<'m> {
    metrics: &'m Metrics,
    responded: bool,
}

impl Drop for CanceledUnless<'_> {
    fn drop(&mut self) {
        if !self.responded {
            self.metrics.canceled();
        }
    }
}

/// Counts requests in flight.
#[derive(Debug, Default)]
struct Requests {
    current: AtomicUsize,
    gauge: Gauge,
    ended: Notify,
}

impl Requests {
    fn enter(self: &Arc<Self>) -> InFlight {
        self.current.fetch_add(1, Ordering::AcqRel);
        self.gauge.inc();
        InFlight(Arc::clone(self))
    }
}

/// One request in flight, until dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Requests>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.gauge.dec();
        if self.0.current.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

/// SHA-256 of the document's JSON: fields in the order of their declaration, maps sorted, so that equal documents have equal
/// texts.
fn version_of(config: &RouteConfig) -> String {
    // The text itself is needed nowhere, and it is large.
    let mut hash = BufWriter::new(Hash(Sha256::new()));
    let written = serde_json::to_writer(&mut hash, config).map_err(std::io::Error::from).and_then(|()| hash.flush());
    written.expect("a route config has string keys and no custom serializer that fails, and a hash takes every byte");
    hash.get_ref().0.clone().finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = fmt::Write::write_fmt(&mut hex, format_args!("{byte:02x}"));
        hex
    })
}

struct Hash(Sha256);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn sweep(plane: Weak<Plane>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(plane) = plane.upgrade() else { return };
        let endpoints: Vec<_> = {
            let endpoints = plane.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
            endpoints.values().cloned().collect()
        };
        for endpoint in endpoints {
            endpoint.sweep();
        }
    }
}
