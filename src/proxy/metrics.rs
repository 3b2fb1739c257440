//! What the request path and the configuration count. Labels come from enums; never a path, a raw host or a message.
//!
//! Every counter that a request touches is made at start and held here, so that counting is an atomic addition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::error::Kind;

/// The metrics of a plane.
#[derive(Debug)]
pub struct Metrics {
    pub(super) requests_in_flight: Gauge,
    requests: [Counter; CODE_CLASSES.len()],
    failures: [Counter; Kind::ALL.len()],
    pub(super) response_head: Latency,
    connects: [Counter; ConnectFailure::ALL.len()],
    pub(super) upstream_connects: Counter,
    pub(super) upstream_retries: Counter,
    pub(super) websocket_sessions: Gauge,
    config: Family<Version, Gauge>,
    pub(super) config_applied: Counter,
    pub(super) config_rejected: Counter,
    pub(super) config_refused_rules: Gauge,
    pub(super) config_stale: Gauge,
}

/// Values of the label `code_class`; `canceled` is a request whose client went away before the head of a response.
const CODE_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "canceled"];

/// Why a connection to an endpoint failed: the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// Nothing listens there.
    Refused,
    /// No answer within the limit.
    Timeout,
    /// No route, or a network that is down.
    Unreachable,
    /// The HTTP/2 preface failed.
    Handshake,
    /// Anything else, such as no file descriptors left.
    Other,
}

impl ConnectFailure {
    const ALL: [Self; 5] = [Self::Refused, Self::Timeout, Self::Unreachable, Self::Handshake, Self::Other];

    fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Handshake => "handshake",
            Self::Other => "other",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeClass {
    code_class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Version {
    version: String,
}

impl Metrics {
    /// Makes the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Arc<Self> {
        let requests = Family::<CodeClass, Counter>::default();
        let failures = Family::<Reason, Counter>::default();
        let connects = Family::<Reason, Counter>::default();
        let reason = |family: &Family<Reason, Counter>, reason| family.get_or_create(&Reason { reason }).clone();
        let metrics = Self {
            requests_in_flight: Gauge::default(),
            requests: CODE_CLASSES.map(|code_class| requests.get_or_create(&CodeClass { code_class }).clone()),
            failures: Kind::ALL.map(|kind| reason(&failures, kind.label())),
            response_head: Latency::default(),
            connects: ConnectFailure::ALL.map(|failure| reason(&connects, failure.label())),
            upstream_connects: Counter::default(),
            upstream_retries: Counter::default(),
            websocket_sessions: Gauge::default(),
            config: Family::default(),
            config_applied: Counter::default(),
            config_rejected: Counter::default(),
            config_refused_rules: Gauge::default(),
            config_stale: Gauge::default(),
        };
        metrics.register_requests(registry, requests, failures);
        metrics.register_upstream(registry, connects);
        metrics.register_config(registry);
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("cftunnel_build", "The version of this program", Info::new(build));
        Arc::new(metrics)
    }

    fn register_requests(&self, r: &mut Registry, requests: Family<CodeClass, Counter>, failures: Family<Reason, Counter>) {
        r.register(
            "cftunnel_proxy_requests_in_flight",
            "Requests whose response has not ended, WebSocket sessions included",
            self.requests_in_flight.clone(),
        );
        r.register(
            "cftunnel_proxy_requests",
            "Requests by class of the status; an error told by a gRPC status counts as the status it stands for",
            requests,
        );
        r.register("cftunnel_proxy_request_failures", "Requests that got no response of a backend, by reason", failures);
        r.register_with_unit(
            "cftunnel_proxy_response_head",
            "Time from the head of a request to the head of its response",
            Unit::Seconds,
            self.response_head.clone(),
        );
        r.register("cftunnel_proxy_websocket_sessions", "Open WebSocket sessions", self.websocket_sessions.clone());
    }

    fn register_upstream(&self, r: &mut Registry, connects: Family<Reason, Counter>) {
        r.register(
            "cftunnel_proxy_upstream_connects",
            "Connections opened to endpoints of backends",
            self.upstream_connects.clone(),
        );
        r.register("cftunnel_proxy_upstream_connect_failures", "Failed connections to endpoints, by reason", connects);
        r.register("cftunnel_proxy_backend_retries", "Requests sent to a backend once more", self.upstream_retries.clone());
    }

    fn register_config(&self, r: &mut Registry) {
        r.register("cftunnel_proxy_config_info", "The version of the configuration that serves", self.config.clone());
        r.register("cftunnel_proxy_config_applied", "Configurations applied", self.config_applied.clone());
        r.register("cftunnel_proxy_config_rejected", "Configurations refused as a whole", self.config_rejected.clone());
        r.register(
            "cftunnel_proxy_config_refused_rules",
            "Rules of the serving configuration that the plane had to refuse",
            self.config_refused_rules.clone(),
        );
        r.register(
            "cftunnel_proxy_config_stale",
            "1 while a stored configuration serves because none has been pushed",
            self.config_stale.clone(),
        );
    }

    /// Counts a response by its status, and its failure when it was made here.
    pub(super) fn responded(&self, status: StatusCode, failure: Option<Kind>) {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.requests[class].inc();
        if let Some(kind) = failure {
            self.failures[kind as usize].inc();
        }
    }

    /// Counts a request whose client went away before the head of a response.
    pub(super) fn canceled(&self) {
        self.requests[CODE_CLASSES.len() - 1].inc();
    }

    /// Counts a connection that could not be opened.
    pub(super) fn connect_failed(&self, failure: ConnectFailure) {
        self.connects[failure as usize].inc();
    }

    /// Names the configuration that serves from now on.
    pub(super) fn serves(&self, version: &str, refused_rules: usize) {
        self.config_applied.inc();
        self.config_refused_rules.set(i64::try_from(refused_rules).unwrap_or(i64::MAX));
        self.config.clear();
        self.config.get_or_create(&Version { version: version.to_owned() }).set(1);
    }
}

/// Upper bounds of the latency buckets, seconds.
const BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// A histogram of durations without a lock: three atomic additions an observation. A scrape may see an observation in the
/// sum and not yet in its bucket; the next one sees both.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<LatencyCells>);

#[derive(Debug, Default)]
struct LatencyCells {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Latency {
    /// Adds one observation.
    pub fn observe(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.0.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.nanoseconds.fetch_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut buckets = [(f64::INFINITY, 0); BOUNDS.len() + 1];
        for (i, cell) in self.0.buckets.iter().enumerate() {
            buckets[i] = (BOUNDS.get(i).copied().unwrap_or(f64::INFINITY), cell.load(Ordering::Relaxed));
        }
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = Duration::from_nanos(self.0.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn counts_appear_under_their_documented_names() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.requests_in_flight.inc();
        metrics.responded(StatusCode::OK, None);
        metrics.responded(StatusCode::BAD_GATEWAY, Some(Kind::Connect));
        metrics.canceled();
        metrics.connect_failed(ConnectFailure::Timeout);
        metrics.serves("abc", 2);
        metrics.serves("def", 0);
        let text = text(&registry);
        for line in [
            "cftunnel_proxy_requests_in_flight 1",
            "cftunnel_proxy_requests_total{code_class=\"2xx\"} 1",
            "cftunnel_proxy_requests_total{code_class=\"5xx\"} 1",
            "cftunnel_proxy_requests_total{code_class=\"canceled\"} 1",
            "cftunnel_proxy_request_failures_total{reason=\"connect\"} 1",
            "cftunnel_proxy_upstream_connect_failures_total{reason=\"timeout\"} 1",
            "cftunnel_proxy_config_info{version=\"def\"} 1",
            "cftunnel_proxy_config_applied_total 2",
            "cftunnel_proxy_config_refused_rules 0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert!(!text.contains("\"abc\""), "an old version stays");
        assert!(text.contains("cftunnel_build_info{version="), "{text}");
    }

    #[test]
    fn latency_is_cumulative_by_bucket_and_summed() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for ms in [1, 20, 20, 60_000] {
            metrics.response_head.observe(Duration::from_millis(ms));
        }
        let text = text(&registry);
        for line in [
            "cftunnel_proxy_response_head_seconds_bucket{le=\"0.001\"} 1",
            "cftunnel_proxy_response_head_seconds_bucket{le=\"0.025\"} 3",
            "cftunnel_proxy_response_head_seconds_bucket{le=\"30.0\"} 3",
            "cftunnel_proxy_response_head_seconds_bucket{le=\"+Inf\"} 4",
            "cftunnel_proxy_response_head_seconds_count 4",
            "cftunnel_proxy_response_head_seconds_sum 60.041",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
