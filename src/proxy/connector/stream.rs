//! What request streams of both transports have in common: asking the service, the management host and hop-by-hop
//! fields. Nothing here knows how a transport frames anything.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::uploads::Uploads;
use crate::proxy::http::{Body, Inbound, Serve, Upgraded, UpgradedIo, Via};

/// Longest wait for a stream to say what it is.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Large heads of QUIC streams that a connection reads at once; each may have a megabyte.
pub(super) const LARGE_HEADS: usize = 32;
/// Most bytes of a pushed configuration that are read.
pub(super) const MAX_PUSH: usize = 4 << 20;

/// Hosts that Cloudflare routes into the tunnel for its own purposes (tunnel-protocol §10.5). Never a backend's business.
const MANAGEMENT_HOSTS: [&str; 2] = ["management.argotunnel.com", "management.fed.argotunnel.com"];

/// What the request streams of one connection share.
pub(super) struct Streams<S> {
    /// Answers requests.
    pub(super) service: Arc<S>,
    /// Index of the connection.
    pub(super) index: u8,
    /// Counts the streams under way.
    pub(super) requests: TaskTracker,
    /// The newest configuration that any connection was sent.
    pub(super) pushed: Arc<PushedVersion>,
    /// The uploads under way.
    pub(super) uploads: Arc<Uploads>,
    /// Places for large heads of QUIC streams, [`LARGE_HEADS`] in all.
    pub(super) large_heads: Semaphore,
}

/// A request's answer, ready for a transport.
pub(super) enum Answer {
    /// The service's response.
    Response(Response<Body>),
    /// The backend has switched protocols.
    Upgrade(Response<()>, UpgradedIo),
    /// The connector's own: this status and nothing else.
    Refuse(StatusCode),
}

impl<S: Serve> Streams<S> {
    /// Has the service answer a request. Dropping the future cancels it.
    pub(super) async fn answer(&self, authority: String, websocket: bool, trailers: bool, request: Request<Body>) -> Answer {
        if is_management(&authority) {
            return Answer::Refuse(StatusCode::NOT_FOUND);
        }
        let via = Via::Tunnel { connection: self.index, trailers };
        let serving = self.service.serve(Inbound { authority, websocket, via }, request);
        // A bug in one request is that request's failure: the connection carries everyone's.
        let Ok(mut response) = AssertUnwindSafe(serving).catch_unwind().await else {
            tracing::error!(conn_index = self.index, "Request panicked");
            return Answer::Refuse(StatusCode::BAD_GATEWAY);
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let io = response.extensions_mut().remove::<Upgraded>().and_then(|upgraded| upgraded.take());
            return match io {
                Some(io) if websocket => Answer::Upgrade(response.map(drop), io),
                _ => Answer::Refuse(StatusCode::BAD_GATEWAY),
            };
        }
        if response.status().is_informational() {
            return Answer::Refuse(StatusCode::BAD_GATEWAY);
        }
        strip_hop_by_hop(response.headers_mut());
        Answer::Response(response)
    }
}

fn is_management(authority: &str) -> bool {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.split(':').next().unwrap_or_default().trim_end_matches('.');
    MANAGEMENT_HOSTS.iter().any(|managed| host.eq_ignore_ascii_case(managed))
}

/// Removes what is meant for one hop only (RFC 9110 §7.6.1), the fields that `Connection` names included.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    const FIELDS: [HeaderName; 5] = [
        header::CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&FIELDS) {
        headers.remove(name);
    }
}

/// The configuration version to acknowledge. We route by our own means, so every version counts as applied at once
/// (tunnel-protocol §8.2).
#[derive(Debug)]
pub(super) struct PushedVersion(AtomicI32);

impl Default for PushedVersion {
    fn default() -> Self {
        Self(AtomicI32::new(-1))
    }
}

impl PushedVersion {
    /// Takes in a push; the version that is in force afterwards.
    pub(super) fn apply(&self, version: i32) -> i32 {
        self.0.fetch_max(version, Ordering::Relaxed).max(version)
    }

    /// Takes in a push as HTTP/2 carries it; the JSON to answer.
    pub(super) fn apply_json(&self, body: &[u8]) -> String {
        #[derive(Deserialize)]
        struct Push {
            version: i32,
        }
        let (version, error) = match serde_json::from_slice::<Push>(body) {
            Ok(push) => (self.apply(push.version), serde_json::Value::Null),
            Err(_) => (self.0.load(Ordering::Relaxed), "not a configuration push".into()),
        };
        serde_json::json!({ "lastAppliedVersion": version, "err": error }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_management_hosts_are_known_in_any_spelling() {
        for host in ["management.argotunnel.com", "Management.ArgoTunnel.com:443", "management.fed.argotunnel.com."] {
            assert!(is_management(host), "{host}");
        }
        for host in ["app.example.com", "management.argotunnel.com.example.com", "xmanagement.argotunnel.com", ""] {
            assert!(!is_management(host), "{host}");
        }
    }

    #[test]
    fn hop_by_hop_fields_go_and_the_ones_that_connection_names() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("keep-alive", "timeout=5"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-kept", "1"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().expect("a value"));
        }
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }

    #[test]
    fn pushes_are_acknowledged_and_old_ones_change_nothing() {
        let pushed = PushedVersion::default();
        assert_eq!(pushed.apply(0), 0);
        assert_eq!(pushed.apply_json(br#"{"version":7,"config":{}}"#), r#"{"err":null,"lastAppliedVersion":7}"#);
        assert_eq!(pushed.apply(3), 7);
        assert_eq!(pushed.apply_json(b"nonsense"), r#"{"err":"not a configuration push","lastAppliedVersion":7}"#);
    }
}
