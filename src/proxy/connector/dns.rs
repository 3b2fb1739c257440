//! DNS as the discovery of the edge needs it: the system's resolver first, then 1.1.1.1 over TLS (tunnel-protocol §2.1), for
//! every kind of record. No choice of addresses here.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;

use super::state::Transport;
use super::tls::{self, Roots};

/// Longest wait for one answer of one resolver.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The second way: a network whose own resolver cannot do SRV usually lets this pass.
const TLS_SERVER: Ipv4Addr = Ipv4Addr::new(1, 1, 1, 1);
const TLS_SERVER_NAME: &str = "cloudflare-dns.com";

/// Looks names up. The product has one implementation, tests have fakes.
pub trait Resolve: Send + Sync + 'static {
    /// The targets of SRV records, best first, as host and port.
    fn srv(&self, name: &str) -> impl Future<Output = Result<Vec<(String, u16)>, ResolveError>> + Send;

    /// The addresses of a host, of both families. An address in text form is its own answer.
    fn addresses(&self, host: &str) -> impl Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send;
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no such record.
    #[error("no dns record for {0}")]
    NotFound(String),
    /// The lookup failed.
    #[error("dns lookup of {name} failed: {source}")]
    Failed {
        /// The name.
        name: String,
        /// What went wrong.
        source: NetError,
    },
    /// No answer came in time.
    #[error("dns lookup of {0} took too long")]
    Timeout(String),
}

/// The system's resolver, and DNS over TLS behind it.
#[derive(Default)]
pub struct SystemResolver {
    /// In order of use; made at the first lookup, for a static edge needs none.
    resolvers: OnceLock<Vec<TokioResolver>>,
}

impl SystemResolver {
    /// A resolver that has read nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first answer that any of the resolvers gives.
    async fn ask<T, F>(&self, name: &str, query: impl Fn(TokioResolver) -> F) -> Result<T, ResolveError>
    where
        F: Future<Output = Result<T, NetError>> + Send,
    {
        let mut failure = ResolveError::NotFound(name.to_owned());
        for resolver in self.resolvers.get_or_init(resolvers) {
            failure = match tokio::time::timeout(TIMEOUT, query(resolver.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(source)) => ResolveError::Failed { name: name.to_owned(), source },
                Err(_) => ResolveError::Timeout(name.to_owned()),
            };
            tracing::debug!(error = %failure, "Resolver gave no answer");
        }
        Err(failure)
    }
}

/// Reads the system's configuration; without a usable one only DNS over TLS is left.
fn resolvers() -> Vec<TokioResolver> {
    let system = TokioResolver::builder_tokio().and_then(|mut builder| {
        builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        builder.build()
    });
    let usable = |name: &'static str, resolver: Result<TokioResolver, NetError>| {
        resolver.inspect_err(|error| tracing::warn!(resolver = name, error = %error, "Resolver is not usable")).ok()
    };
    [usable("system", system), usable("tls", over_tls())].into_iter().flatten().collect()
}

fn over_tls() -> Result<TokioResolver, NetError> {
    let server = NameServerConfig::tls(TLS_SERVER.into(), TLS_SERVER_NAME.into());
    let config = ResolverConfig::from_name_servers(vec![server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // That server's certificate is a public one, whatever authority the edge's is checked against.
    let tls = Roots::system().and_then(|roots| tls::client_config(Transport::Http2, &roots, true));
    match tls {
        Ok(tls) => builder.with_tls_config(tls).build(),
        Err(error) => Err(NetError::from(error.to_string())),
    }
}

impl Resolve for SystemResolver {
    async fn srv(&self, name: &str) -> Result<Vec<(String, u16)>, ResolveError> {
        let answer = self.ask(name, |r| async move { r.srv_lookup(name).await }).await?;
        let records = answer.answers().iter().filter_map(|record| match &record.data {
            RData::SRV(srv) => Some((srv.priority, srv.weight, srv.target.to_utf8(), srv.port)),
            _ => None,
        });
        let ordered = by_priority_and_weight(records.collect(), rand::random::<f64>);
        if ordered.is_empty() { Err(ResolveError::NotFound(name.to_owned())) } else { Ok(ordered) }
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![ip]);
        }
        let answer = self.ask(host, |r| async move { r.lookup_ip(host).await }).await?;
        let mut ips: Vec<IpAddr> = answer.iter().collect();
        // IPv4 first: it is the family that works on nearly every network; the other one stays at hand.
        ips.sort_by_key(IpAddr::is_ipv6);
        Ok(ips)
    }
}

/// The order of RFC 2782: by priority, within one by weighted chance. Two regions are all that is used (tunnel-protocol §2.1).
fn by_priority_and_weight(mut records: Vec<(u16, u16, String, u16)>, chance: impl Fn() -> f64) -> Vec<(String, u16)> {
    // Drawing -ln(u)/w for each and sorting is the same as drawing by weight without replacement.
    let mut keyed: Vec<(u16, f64, (String, u16))> = records
        .drain(..)
        .map(|(priority, weight, host, port)| {
            let draw = -(1.0 - chance()).ln() / (f64::from(weight) + 0.01);
            (priority, draw, (host, port))
        })
        .collect();
    keyed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    keyed.into_iter().map(|(_, _, target)| target).take(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_records_go_by_priority_and_then_by_weight() {
        let records = || vec![(2, 100, "late".into(), 1), (1, 0, "light".into(), 1), (1, 99, "heavy".into(), 1)];
        let order: Vec<_> = by_priority_and_weight(records(), || 0.5).into_iter().map(|(h, _)| h).collect();
        assert_eq!(order, ["heavy", "light"]);
        let wins = (0..1000).filter(|_| by_priority_and_weight(records(), rand::random::<f64>)[0].0 == "heavy").count();
        assert!(wins > 900, "{wins}");
    }

    #[tokio::test]
    async fn an_address_in_text_form_needs_no_lookup() {
        let resolver = SystemResolver { resolvers: OnceLock::from(Vec::new()) };
        assert_eq!(resolver.addresses("::1").await.expect("parsed"), ["::1".parse::<IpAddr>().expect("ip")]);
        assert!(matches!(resolver.addresses("edge.invalid").await, Err(ResolveError::NotFound(_))));
    }
}
