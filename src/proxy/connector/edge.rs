//! Finding the edge (tunnel-protocol §2): SRV discovery with a second way over TLS, static addresses, and which connection
//! takes which address. [`AddressBook`] is plain bookkeeping; only [`Edge`] and its [`Resolve`] look anything up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::dns::{Resolve, ResolveError};
use crate::gateway::token::TunnelToken;

/// Addresses are looked up again after this time: the edge moves, and long-lived processes must follow.
const REFRESH: Duration = Duration::from_secs(10 * 60);
/// How often it is checked whether a lookup is due.
const RETRY: Duration = Duration::from_secs(15);
/// More addresses than this per region are ignored.
const MAX_ADDRESSES: usize = 64;
/// Addresses of a family whose dials have failed this often in a row come last, for a while.
const FAMILY_FAILURES: u32 = 2;
const FAMILY_PAUSE: Duration = Duration::from_secs(10 * 60);

/// Where the edge is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeSource {
    /// Cloudflare's network, found by DNS; in one region (`us`, `fed`) or anywhere.
    Discover {
        /// The region.
        region: Option<String>,
    },
    /// Exactly these. One is enough for any number of connections; even and odd positions count as two regions.
    Static(Vec<EdgeAddress>),
}

impl EdgeSource {
    /// Cloudflare's network, in the region that the token pins, if any.
    pub fn of(token: &TunnelToken) -> Self {
        Self::Discover { region: token.endpoint.clone() }
    }
}

/// A host and a port, as `--edge HOST:PORT` gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeAddress {
    host: String,
    port: u16,
}

/// A text that is no `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST:PORT; an IPv6 address stands in brackets, as in [::1]:7844")]
pub struct InvalidEdgeAddress(String);

impl FromStr for EdgeAddress {
    type Err = InvalidEdgeAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || InvalidEdgeAddress(text.chars().take(80).collect());
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Self::checked(address.ip().to_string(), address.port()).ok_or_else(refuse);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        let named = !host.is_empty() && host.len() <= 253 && host.bytes().all(valid);
        let port = port.parse().map_err(|_| refuse())?;
        if named { Self::checked(host.to_owned(), port).ok_or_else(refuse) } else { Err(refuse()) }
    }
}

impl EdgeAddress {
    fn checked(host: String, port: u16) -> Option<Self> {
        (port != 0).then_some(Self { host, port })
    }
}

impl From<SocketAddr> for EdgeAddress {
    fn from(address: SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: address.port() }
    }
}

impl fmt::Display for EdgeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Which address families are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpVersion {
    /// Both; the other one when one fails.
    #[default]
    Auto,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// A text that names no address family.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown ip version {0:?}; use auto, 4 or 6")]
pub struct InvalidIpVersion(String);

impl FromStr for IpVersion {
    type Err = InvalidIpVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "4" => Ok(Self::V4),
            "6" => Ok(Self::V6),
            _ => Err(InvalidIpVersion(text.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::V4 => "4",
            Self::V6 => "6",
        })
    }
}

impl IpVersion {
    fn admits(self, ip: IpAddr) -> bool {
        match self {
            Self::Auto => true,
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// Why there is no address to dial.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// Nothing could be looked up.
    #[error("cannot find the edge: {0}")]
    Resolve(#[from] ResolveError),
    /// The names have no address of the families in use.
    #[error("the edge has no address of ip version {0}")]
    NoAddress(IpVersion),
}

/// The addresses of the edge and who uses them, kept up to date.
#[derive(Debug)]
pub struct Edge<R> {
    source: EdgeSource,
    version: IpVersion,
    resolver: R,
    book: Mutex<AddressBook>,
    /// Held during a lookup, so that connections that wait for one share it.
    lookup: tokio::sync::Mutex<()>,
}

impl<R: Resolve> Edge<R> {
    /// An edge of which nothing is known yet.
    pub fn new(source: EdgeSource, version: IpVersion, resolver: R) -> Self {
        Self { source, version, resolver, book: Mutex::default(), lookup: tokio::sync::Mutex::new(()) }
    }

    /// The address for a connection: the one it had, or with `rotate` another one if there is any. Waits for a lookup only
    /// when no address is known at all.
    ///
    /// # Errors
    /// When no address is known and none can be found.
    pub async fn address(&self, slot: u8, rotate: bool) -> Result<SocketAddr, EdgeError> {
        if self.book().is_empty() {
            let _turn = self.lookup.lock().await;
            if self.book().is_empty() {
                self.refresh().await?;
            }
        }
        self.book().assign(slot, rotate, Instant::now()).ok_or(EdgeError::NoAddress(self.version))
    }

    /// An address to find out about the transport with; takes none away from the connections.
    pub fn any_address(&self) -> Option<SocketAddr> {
        self.book().choose(None, Instant::now())
    }

    /// Tells whether a dial of `address` led to a connection.
    pub fn dialed(&self, address: SocketAddr, connected: bool) {
        self.book().dialed(address, connected, Instant::now());
    }

    /// Looks the edge up again and again, for ever: every ten minutes, sooner when no address works.
    pub async fn keep_fresh(&self) {
        loop {
            tokio::time::sleep(RETRY).await;
            if self.book().is_stale(Instant::now()) {
                let _turn = self.lookup.lock().await;
                if let Err(error) = self.refresh().await {
                    // Addresses that served until now are better than none.
                    tracing::warn!(error = %error, "Edge lookup failed, keeping the known addresses");
                }
            }
        }
    }

    async fn refresh(&self) -> Result<(), EdgeError> {
        let regions = self.look_up().await?;
        self.book().replace(regions, Instant::now());
        Ok(())
    }

    fn book(&self) -> MutexGuard<'_, AddressBook> {
        // Its changes are single steps: a panic elsewhere leaves it whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_up(&self) -> Result<Vec<Vec<SocketAddr>>, EdgeError> {
        let targets = match &self.source {
            EdgeSource::Static(entries) => {
                let mut regions = vec![Vec::new(), Vec::new()];
                for (i, entry) in entries.iter().enumerate() {
                    regions[i % 2].push((entry.host.clone(), entry.port));
                }
                regions
            }
            EdgeSource::Discover { region } => {
                let name = match region {
                    Some(region) => format!("_{region}-v2-origintunneld._tcp.argotunnel.com."),
                    None => "_v2-origintunneld._tcp.argotunnel.com.".to_owned(),
                };
                self.resolver.srv(&name).await?.into_iter().map(|t| vec![t]).collect()
            }
        };
        let mut regions = Vec::new();
        let mut failure = None;
        for target in targets {
            let mut addresses = Vec::new();
            for (host, port) in target {
                match self.resolver.addresses(&host).await {
                    Ok(ips) => {
                        let usable = ips.into_iter().filter(|ip| self.version.admits(*ip));
                        addresses.extend(usable.map(|ip| SocketAddr::new(ip, port)));
                    }
                    Err(error) => failure = Some(error),
                }
            }
            addresses.truncate(MAX_ADDRESSES);
            regions.push(addresses);
        }
        regions.retain(|r| !r.is_empty());
        match (regions.is_empty(), failure) {
            (false, _) => Ok(regions),
            (true, Some(error)) => Err(error.into()),
            (true, None) => Err(EdgeError::NoAddress(self.version)),
        }
    }
}

/// Which connection uses which address.
#[derive(Debug, Default)]
pub struct AddressBook {
    regions: Vec<Vec<SocketAddr>>,
    used: BTreeMap<u8, SocketAddr>,
    /// Failed dials in a row.
    failures: BTreeMap<SocketAddr, u32>,
    /// Per family (IPv4, IPv6): failed dials in a row, and when the last one was.
    families: [(u32, Option<Instant>); 2],
    /// When it was filled.
    filled: Option<Instant>,
}

impl AddressBook {
    fn is_empty(&self) -> bool {
        self.regions.iter().all(Vec::is_empty)
    }

    fn is_stale(&self, now: Instant) -> bool {
        let old = self.filled.is_some_and(|at| now.duration_since(at) >= REFRESH);
        !self.is_empty() && (old || self.addresses().all(|(_, a)| self.failures.contains_key(&a)))
    }

    fn addresses(&self) -> impl Iterator<Item = (usize, SocketAddr)> + '_ {
        self.regions.iter().enumerate().flat_map(|(region, list)| list.iter().map(move |a| (region, *a)))
    }

    /// Takes in what was looked up. Connections keep addresses that are gone until they are lost.
    fn replace(&mut self, regions: Vec<Vec<SocketAddr>>, now: Instant) {
        self.filled = Some(now);
        self.regions = regions;
        for list in &mut self.regions {
            let mut seen = std::collections::BTreeSet::new();
            list.retain(|a| seen.insert(*a));
        }
        let known: Vec<_> = self.addresses().map(|(_, a)| a).collect();
        self.failures.retain(|a, _| known.contains(a));
        // What has failed before the lookup may be repaired: it gets its chance, and a lookup its rest.
        if known.iter().all(|a| self.failures.contains_key(a)) {
            self.failures.clear();
        }
    }

    fn assign(&mut self, slot: u8, rotate: bool, now: Instant) -> Option<SocketAddr> {
        let had = self.used.remove(&slot);
        let known = had.filter(|had| self.addresses().any(|(_, a)| a == *had));
        let chosen = match known {
            Some(address) if !rotate => address,
            _ => self.choose(known, now)?,
        };
        self.used.insert(slot, chosen);
        Some(chosen)
    }

    /// The best address for a connection that is not counted in `used`, and another one than `avoid` if there is any.
    fn choose(&self, avoid: Option<SocketAddr>, now: Instant) -> Option<SocketAddr> {
        let users = |address: SocketAddr| self.used.values().filter(|u| **u == address).count();
        let load = |region: usize| self.regions[region].iter().map(|a| users(*a)).sum::<usize>();
        let rank = |(region, address): (usize, SocketAddr)| {
            (
                Some(address) == avoid,
                self.is_family_bad(address, now),
                users(address),
                // After a failure the other family first: it may be the family that is broken.
                avoid.is_some_and(|a| self.failures.contains_key(&a) && a.is_ipv4() == address.is_ipv4()),
                self.failures.get(&address).copied().unwrap_or(0),
                load(region),
            )
        };
        self.addresses().min_by_key(|entry| rank(*entry)).map(|(_, a)| a)
    }

    fn is_family_bad(&self, address: SocketAddr, now: Instant) -> bool {
        let bad = |(failures, at): (u32, Option<Instant>)| {
            failures >= FAMILY_FAILURES && at.is_some_and(|at| now.duration_since(at) < FAMILY_PAUSE)
        };
        let (this, other) = (family(address), 1 - family(address));
        bad(self.families[this]) && !bad(self.families[other])
    }

    fn dialed(&mut self, address: SocketAddr, connected: bool, now: Instant) {
        let family = &mut self.families[family(address)];
        if connected {
            *family = (0, None);
            self.failures.remove(&address);
        } else {
            *family = (family.0.saturating_add(1), Some(now));
            if self.addresses().any(|(_, a)| a == address) {
                *self.failures.entry(address).or_default() += 1;
            }
        }
    }
}

fn family(address: SocketAddr) -> usize {
    usize::from(address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone, Default)]
    struct Fake {
        answers: Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>,
        lookups: Arc<AtomicUsize>,
    }

    impl Fake {
        fn with(hosts: &[(&str, &[&str])]) -> Self {
            let fake = Self::default();
            fake.set(hosts);
            fake
        }

        fn set(&self, hosts: &[(&str, &[&str])]) {
            let parse = |ips: &[&str]| ips.iter().map(|i| i.parse().unwrap()).collect();
            *self.answers.lock().unwrap() = hosts.iter().map(|(h, ips)| ((*h).to_owned(), parse(ips))).collect();
        }
    }

    impl Resolve for Fake {
        async fn srv(&self, name: &str) -> Result<Vec<(String, u16)>, ResolveError> {
            let known = ["_v2-origintunneld._tcp.argotunnel.com.", "_us-v2-origintunneld._tcp.argotunnel.com."];
            assert!(known.contains(&name), "{name}");
            self.lookups.fetch_add(1, Ordering::Relaxed);
            Ok(self.answers.lock().unwrap().keys().map(|h| (h.clone(), 7844)).collect())
        }

        async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
            let found = self.answers.lock().unwrap().get(host).cloned();
            found.ok_or_else(|| ResolveError::NotFound(host.to_owned()))
        }
    }

    fn discover() -> EdgeSource {
        EdgeSource::Discover { region: None }
    }

    async fn four<R: Resolve>(edge: &Edge<R>) -> Vec<String> {
        let mut all = Vec::new();
        for slot in 0..4 {
            all.push(edge.address(slot, false).await.expect("an address").ip().to_string());
        }
        all
    }

    #[tokio::test]
    async fn connections_spread_over_two_regions() {
        let fake = Fake::with(&[("r1", &["192.0.2.1", "192.0.2.2", "192.0.2.3"]), ("r2", &["198.51.100.1", "198.51.100.2"])]);
        let edge = Edge::new(discover(), IpVersion::Auto, fake);
        assert_eq!(four(&edge).await, ["192.0.2.1", "198.51.100.1", "192.0.2.2", "198.51.100.2"]);
        assert_eq!(four(&edge).await, ["192.0.2.1", "198.51.100.1", "192.0.2.2", "198.51.100.2"], "kept until rotated");
    }

    #[tokio::test]
    async fn rotation_takes_a_free_address_and_with_one_address_that_one() {
        let fake = Fake::with(&[("r1", &["192.0.2.1", "192.0.2.2", "192.0.2.3"]), ("r2", &["198.51.100.1", "198.51.100.2"])]);
        let edge = Edge::new(discover(), IpVersion::Auto, fake);
        four(&edge).await;
        assert_eq!(edge.address(1, true).await.unwrap().ip().to_string(), "192.0.2.3");
        let one = Edge::new(EdgeSource::Static(vec!["127.0.0.1:7844".parse().unwrap()]), IpVersion::Auto, Literal);
        assert_eq!(four(&one).await, ["127.0.0.1"; 4]);
        assert_eq!(one.address(1, true).await.unwrap().to_string(), "127.0.0.1:7844");
    }

    struct Literal;

    impl Resolve for Literal {
        async fn srv(&self, name: &str) -> Result<Vec<(String, u16)>, ResolveError> {
            Err(ResolveError::NotFound(name.to_owned()))
        }

        async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
            host.parse().map(|ip| vec![ip]).map_err(|_| ResolveError::NotFound(host.to_owned()))
        }
    }

    #[tokio::test]
    async fn the_other_family_takes_over_when_one_fails() {
        let fake = Fake::with(&[("r1", &["2001:db8::1", "2001:db8::2", "192.0.2.1"]), ("r2", &["2001:db8::3", "192.0.2.2"])]);
        let edge = Edge::new(discover(), IpVersion::Auto, fake.clone());
        let first = edge.address(0, false).await.unwrap();
        assert!(first.is_ipv6());
        edge.dialed(first, false);
        let second = edge.address(0, true).await.unwrap();
        assert!(second.is_ipv4(), "{second}");
        edge.dialed("[2001:db8::3]:7844".parse().unwrap(), false);
        edge.dialed(second, true);
        for slot in 1..3 {
            assert!(edge.address(slot, false).await.unwrap().is_ipv4());
        }
        for (version, is_v4) in [(IpVersion::V4, true), (IpVersion::V6, false)] {
            let edge = Edge::new(discover(), version, fake.clone());
            for slot in 0..4 {
                assert_eq!(edge.address(slot, false).await.unwrap().is_ipv4(), is_v4);
            }
        }
    }

    #[tokio::test]
    async fn a_family_that_the_edge_lacks_is_an_error() {
        let edge = Edge::new(discover(), IpVersion::V6, Fake::with(&[("r1", &["192.0.2.1"])]));
        let error = edge.address(0, false).await.unwrap_err().to_string();
        assert_eq!(error, "the edge has no address of ip version 6");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_looked_up_again_and_a_connection_keeps_its_own() {
        let fake = Fake::with(&[("r1", &["192.0.2.1"])]);
        let edge = Arc::new(Edge::new(discover(), IpVersion::Auto, fake.clone()));
        assert_eq!(edge.address(0, false).await.unwrap().ip().to_string(), "192.0.2.1");
        let fresh = tokio::spawn({
            let edge = Arc::clone(&edge);
            async move { edge.keep_fresh().await }
        });
        fake.set(&[("r1", &["192.0.2.1", "192.0.2.9"])]);
        tokio::time::sleep(REFRESH + RETRY * 2).await;
        assert_eq!(edge.address(0, false).await.unwrap().ip().to_string(), "192.0.2.1");
        assert_eq!(edge.address(1, false).await.unwrap().ip().to_string(), "192.0.2.9");
        let before = fake.lookups.load(Ordering::Relaxed);
        for address in ["192.0.2.1:7844", "192.0.2.9:7844"] {
            edge.dialed(address.parse().unwrap(), false);
        }
        fake.set(&[("r1", &["192.0.2.77"])]);
        tokio::time::sleep(RETRY * 2).await;
        assert_eq!(fake.lookups.load(Ordering::Relaxed), before + 1, "all failed: at once, and once");
        assert_eq!(edge.address(0, false).await.unwrap().ip().to_string(), "192.0.2.77");
        fake.set(&[]);
        tokio::time::sleep(REFRESH + RETRY * 2).await;
        assert_eq!(
            edge.address(0, true).await.unwrap().ip().to_string(),
            "192.0.2.77",
            "known addresses outlive a failed lookup"
        );
        fresh.abort();
    }

    #[tokio::test]
    async fn a_region_has_its_own_record() {
        let source = EdgeSource::Discover { region: Some("us".into()) };
        let edge = Edge::new(source, IpVersion::Auto, Fake::with(&[("us-region1", &["192.0.2.1"])]));
        assert_eq!(edge.address(0, false).await.unwrap().to_string(), "192.0.2.1:7844");
    }

    #[test]
    fn edge_addresses_are_parsed_once_and_strictly() {
        for good in ["127.0.0.1:7844", "[::1]:7844", "edge.example.com:1"] {
            assert_eq!(good.parse::<EdgeAddress>().map(|a| a.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "host", "host:", "host:0", "host:65536", ":1", "::1:7844", "a b:1", "http://x:1", "[::1]"] {
            assert!(bad.parse::<EdgeAddress>().is_err(), "{bad}");
        }
        assert_eq!("auto".parse(), Ok(IpVersion::Auto));
        assert!("5".parse::<IpVersion>().is_err());
    }
}
