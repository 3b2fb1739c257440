//! From a request's host to the sets of routes that may answer it, most specific route hostname first.
//!
//! All hostnames that match a host are known from the most specific one among them, so everything that depends on the host
//! (which listeners own it, which routes are attached there, in which order their hostnames rank) is settled once per
//! *pattern* when the table is built. A request costs one lookup per label. Paths and rules are not known here.

use std::num::NonZeroU32;

use foldhash::HashMap;

use super::flat::FlatMap;
use super::index::Set;
use crate::gateway::hostname::Hostname;
use crate::gateway::id::ObjectRef;
use crate::gateway::ir;

/// The sets of hosts that more than one set of routes serves.
type Several = Box<[Box<[Set]>]>;

/// Where each host leads.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    exact: FlatMap<Zone>,
    /// By suffix with its dot.
    wildcard: FlatMap<Zone>,
    /// Bytes of the longest key of `wildcard`.
    longest_suffix: usize,
    /// For hosts that no pattern matches.
    any: Zone,
    buckets: Box<[Bucket]>,
    /// Buckets of several sets.
    several: Box<[Box<[Set]>]>,
}

/// The first bucket of a pattern; none when nothing is served there. A copy, to spare each request a step through memory.
type Zone = Option<Bucket>;

/// Routes that wrote the same hostname, seen by one set of owning listeners.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    sets: Sets,
    /// The next less specific hostname, in `buckets`, counted from 1. Patterns share the tails of their lists.
    next: Option<NonZeroU32>,
}

/// Sets of routes, one for each Gateway that has some.
#[derive(Clone, Copy, Debug)]
enum Sets {
    One(Set),
    /// Names one of `several`.
    More(u32),
}

impl Hosts {
    /// The sets of a host's buckets in order.
    pub(super) fn buckets(&self, host: &str) -> impl Iterator<Item = &[Set]> {
        let next = |bucket: &&Bucket| bucket.next.map(|at| &self.buckets[at.get() as usize - 1]);
        std::iter::successors(self.zone(host).as_ref(), next).map(|bucket| match &bucket.sets {
            Sets::One(set) => std::slice::from_ref(set),
            Sets::More(at) => &self.several[*at as usize],
        })
    }

    fn zone(&self, host: &str) -> &Zone {
        let wildcard = || {
            let mut known = suffixes(host).skip_while(|suffix| suffix.len() > self.longest_suffix);
            known.find_map(|suffix| self.wildcard.value_of(suffix))
        };
        self.exact.value_of(host).or_else(wildcard).unwrap_or(&self.any)
    }
}

/// The suffixes of a name that a wildcard may stand before: each from a dot on, longest first, never the whole name.
/// A host with an empty first label is no host that a wildcard covers.
fn suffixes(name: &str) -> impl Iterator<Item = &str> {
    let dots = name.match_indices('.').map(|(dot, _)| dot).filter(|dot| *dot > 0);
    dots.map(|dot| &name[dot..])
}

/// What a route brings: the hostnames that it wrote and the listeners it is attached to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attachment<'a> {
    pub(super) hostnames: &'a [Hostname],
    /// Positions of listeners; all in range.
    pub(super) listeners: &'a [usize],
}

/// Settles which routes answer on which hosts (S3 "Listener isolation"; ports are not compared). `index` makes a set of routes, given
/// by their positions, ascending; it is asked once for each set.
pub(super) fn plan(listeners: &[ir::Listener], routes: &[Attachment<'_>], index: impl FnMut(&[usize]) -> Set) -> Hosts {
    let mut planner = Planner::default();
    planner.intern(None);
    let gateways = gateway_numbers(listeners);
    let mut claims = Vec::with_capacity(listeners.len());
    for (listener, gateway) in listeners.iter().zip(gateways) {
        let claim = Claim { gateway, pattern: planner.intern(listener.hostname.as_ref()) };
        planner.claim(claim);
        claims.push(claim);
    }
    for (route, attachment) in routes.iter().enumerate() {
        planner.attach(route, *attachment, &claims);
    }
    planner.finish(index)
}

/// A small number for each Gateway that occurs.
fn gateway_numbers(listeners: &[ir::Listener]) -> impl Iterator<Item = usize> {
    let mut seen: HashMap<&ObjectRef, usize> = HashMap::default();
    listeners.iter().map(move |listener| {
        let next = seen.len();
        *seen.entry(&listener.gateway).or_insert(next)
    })
}

/// A Gateway has one listener or more with this very hostname. They own the same hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Claim {
    gateway: usize,
    pattern: usize,
}

/// Routes that wrote one hostname and are attached to one claim.
#[derive(Debug)]
struct Group {
    claim: Claim,
    routes: Vec<usize>,
}

#[derive(Debug)]
struct Node {
    /// The hostname that the routes wrote.
    pattern: usize,
    /// Positions of groups.
    groups: Vec<usize>,
    next: List,
}

/// The first node of a list; none for an empty one.
type List = Option<usize>;

/// Patterns are numbered as they are met; the first stands for "no hostname".
#[derive(Debug, Default)]
struct Planner<'a> {
    patterns: Vec<Option<&'a Hostname>>,
    exact: HashMap<&'a str, usize>,
    wildcard: HashMap<&'a str, usize>,
    /// By pattern: the Gateways that claim it, ascending.
    claimed: Vec<Vec<usize>>,
    groups: Vec<Group>,
    group_of: HashMap<(usize, Claim), usize>,
    /// By pattern: the groups of the routes that wrote it.
    written: Vec<Vec<usize>>,
    nodes: Vec<Node>,
    /// The claims of one route, kept for the room that they take.
    attached: Vec<Claim>,
}

const ANY: usize = 0;

impl<'a> Planner<'a> {
    fn intern(&mut self, pattern: Option<&'a Hostname>) -> usize {
        let next = self.patterns.len();
        let number = match pattern.map(|h| (h, h.wildcard_suffix())) {
            None if next > ANY => ANY,
            None => next,
            Some((_, Some(suffix))) => *self.wildcard.entry(suffix).or_insert(next),
            Some((hostname, None)) => *self.exact.entry(hostname.as_str()).or_insert(next),
        };
        if number == next {
            self.patterns.push(pattern);
            self.claimed.push(Vec::new());
            self.written.push(Vec::new());
        }
        number
    }

    fn claim(&mut self, claim: Claim) {
        let gateways = &mut self.claimed[claim.pattern];
        if let Err(at) = gateways.binary_search(&claim.gateway) {
            gateways.insert(at, claim.gateway);
        }
    }

    fn attach(&mut self, route: usize, attachment: Attachment<'a>, claims: &[Claim]) {
        let mut attached = std::mem::take(&mut self.attached);
        attached.clear();
        attached.extend(attachment.listeners.iter().map(|listener| claims[*listener]));
        attached.sort_unstable();
        attached.dedup();
        let any = attachment.hostnames.is_empty().then_some(None);
        for hostname in attachment.hostnames.iter().map(Some).chain(any) {
            let pattern = self.intern(hostname);
            for claim in &attached {
                if intersect(hostname, self.patterns[claim.pattern]) {
                    self.add(pattern, *claim, route);
                }
            }
        }
        self.attached = attached;
    }

    fn add(&mut self, pattern: usize, claim: Claim, route: usize) {
        let next = self.groups.len();
        let group = *self.group_of.entry((pattern, claim)).or_insert(next);
        if group == next {
            self.groups.push(Group { claim, routes: Vec::new() });
            self.written[pattern].push(group);
        }
        let routes = &mut self.groups[group].routes;
        if routes.last() != Some(&route) {
            routes.push(route);
        }
    }

    fn finish(mut self, index: impl FnMut(&[usize]) -> Set) -> Hosts {
        let parents: Vec<Option<usize>> = (0..self.patterns.len()).map(|pattern| self.parent(pattern)).collect();
        let mut order: Vec<usize> = (0..self.patterns.len()).collect();
        // A parent's name is a proper suffix of its child's.
        order.sort_by_key(|pattern| self.patterns[*pattern].map_or(0, |hostname| name(hostname).len()));
        let mut lists: Vec<List> = vec![None; self.patterns.len()];
        for pattern in order {
            let inherited = parents[pattern].and_then(|parent| lists[parent]);
            lists[pattern] = self.list(pattern, inherited, &parents);
        }
        let (buckets, several) = self.buckets(index);
        let zones = |names: &HashMap<&str, usize>| {
            let mut zones = FlatMap::default();
            zones.reserve(names.len());
            for (name, pattern) in names {
                zones.get_or_insert(0, name, lists[*pattern].map(|first| buckets[first]));
            }
            zones.shrink();
            zones
        };
        Hosts {
            exact: zones(&self.exact),
            wildcard: zones(&self.wildcard),
            longest_suffix: self.wildcard.keys().map(|suffix| suffix.len()).max().unwrap_or_default(),
            any: lists[ANY].map(|first| buckets[first]),
            buckets,
            several,
        }
    }

    /// The most specific of the less specific patterns that cover all that this one covers.
    fn parent(&self, pattern: usize) -> Option<usize> {
        let name = name(self.patterns[pattern]?);
        Some(suffixes(name).find_map(|suffix| self.wildcard.get(suffix).copied()).unwrap_or(ANY))
    }

    /// The list of buckets for hosts whose most specific pattern this is.
    fn list(&mut self, pattern: usize, inherited: List, parents: &[Option<usize>]) -> List {
        let rest = if self.claimed[pattern].is_empty() { inherited } else { self.reclaim(pattern, inherited, parents) };
        let ancestry = || std::iter::successors(Some(pattern), |at| parents[*at]);
        let owner = |gateway: usize| ancestry().find(|at| self.claimed[*at].binary_search(&gateway).is_ok());
        let owns = |group: &usize| {
            let claim = self.groups[*group].claim;
            owner(claim.gateway) == Some(claim.pattern)
        };
        let groups: Vec<usize> = self.written[pattern].iter().copied().filter(owns).collect();
        self.node(pattern, groups, rest)
    }

    /// The list of the less specific hostnames as the owners of `pattern` see it: Gateways that claim the pattern answer with
    /// what is attached to that claim, all others as before.
    fn reclaim(&mut self, pattern: usize, inherited: List, parents: &[Option<usize>]) -> List {
        let claimed = self.claimed[pattern].clone();
        let mut before: Vec<usize> = std::iter::successors(inherited, |at| self.nodes[*at].next).collect();
        let mut above: Vec<usize> = std::iter::successors(parents[pattern], |at| parents[*at]).collect();
        let mut list = None;
        while let Some(written) = above.pop() {
            let old = before.pop_if(|at| self.nodes[*at].pattern == written);
            let kept = old.iter().flat_map(|at| &self.nodes[*at].groups).copied();
            let mut groups: Vec<usize> =
                kept.filter(|group| claimed.binary_search(&self.groups[*group].claim.gateway).is_err()).collect();
            let own = claimed.iter().map(|gateway| Claim { gateway: *gateway, pattern });
            groups.extend(own.filter_map(|claim| self.group_of.get(&(written, claim))));
            list = match old {
                Some(at) if self.nodes[at].groups == groups && self.nodes[at].next == list => Some(at),
                _ => self.node(written, groups, list),
            };
        }
        list
    }

    fn node(&mut self, pattern: usize, groups: Vec<usize>, next: List) -> List {
        if groups.is_empty() {
            return next;
        }
        self.nodes.push(Node { pattern, groups, next });
        Some(self.nodes.len() - 1)
    }

    /// The nodes as a table has them. Groups of the same routes become one set: a route that many listeners admit is indexed once.
    fn buckets(&self, mut index: impl FnMut(&[usize]) -> Set) -> (Box<[Bucket]>, Several) {
        let mut known: HashMap<&[usize], usize> = HashMap::default();
        let mut sets = Vec::new();
        let numbered = self.groups.iter().map(|group| {
            *known.entry(&group.routes).or_insert_with(|| {
                sets.push(index(&group.routes));
                sets.len() - 1
            })
        });
        let set_of: Vec<usize> = numbered.collect();
        let mut several: Vec<Box<[Set]>> = Vec::new();
        let mut bucket = |node: &Node| {
            let mut numbers: Vec<usize> = node.groups.iter().map(|group| set_of[*group]).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let sets = if let [set] = numbers[..] {
                Sets::One(sets[set])
            } else {
                several.push(numbers.iter().map(|set| sets[*set]).collect());
                Sets::More(number(several.len() - 1))
            };
            Bucket { sets, next: node.next.and_then(|next| NonZeroU32::new(number(next + 1))) }
        };
        let buckets = self.nodes.iter().map(&mut bucket).collect();
        (buckets, several.into())
    }
}

/// Halves what the hash tables hold.
fn number(position: usize) -> u32 {
    u32::try_from(position).expect("a document of 2^32 hostnames does not fit into memory")
}

/// A hostname without the `*` of a wildcard.
fn name(hostname: &Hostname) -> &str {
    hostname.wildcard_suffix().unwrap_or(hostname.as_str())
}

fn intersect(a: Option<&Hostname>, b: Option<&Hostname>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.intersects(b),
        _ => true,
    }
}
