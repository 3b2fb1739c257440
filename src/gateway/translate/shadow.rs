//! Routes whose (hostname, match) pair another route of higher precedence claims exactly (S3 "Multi-Tenant Isolation Boundary").
//! Overlaps that are not identical are not looked for: they are how routing works.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Ctx;
use super::attach::Parent;
use super::listener::Topology;
use super::plane::Planes;
use super::route::Judged;
use crate::gateway::finding::{Code, Finding, Scope};
use crate::gateway::hostname::Hostname;
use crate::gateway::id::ObjectRef;
use crate::gateway::ir::{Match, PathMatch, Route};
use crate::gateway::lookup::Lookup;

/// Who claims what. A tunnel does not tell on which port or through which Gateway a request came, so that a claim is of the plane:
/// the plane by its number, a host, and a match with its parts in order.
type Claims<'a> = Lookup<(usize, Host<'a>, Cow<'a, Match>), &'a ObjectRef>;

/// The hostname as written or, without one, the hostname that the listener lends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Host<'a> {
    Written(&'a Hostname),
    Lent(Option<&'a Hostname>),
}

/// Reports routes that are shadowed, once per parent. Routes come in the order of precedence.
pub(super) fn shadows(ctx: &mut Ctx<'_>, topology: &Topology<'_>, planes: &Planes, routes: &[Judged<'_>]) {
    let mut claims: Claims<'_> = Lookup::with_capacity(routes.len());
    let mut hosts = Vec::new();
    for judged in routes {
        let mut shadowed = BTreeMap::new();
        for (plane, at) in &judged.served {
            let route = &planes.documents[*plane].routes[*at];
            hosts.clear();
            add_hosts(&mut hosts, topology, |listener| planes.of(listener) == Some(*plane), route, &judged.parents);
            for same in hosts.chunk_by(|(a, _), (b, _)| a == b) {
                let host = same[0].0;
                for (rule, r#match) in route.rules.iter().flat_map(|rule| rule.matches.iter().map(|m| (rule.index, m))) {
                    let first = *claims.get_or_insert_with((*plane, host, ordered(r#match)), || judged.id);
                    if first != judged.id {
                        for (_, parent) in same {
                            shadowed.entry(*parent).or_insert((rule, first, host));
                        }
                    }
                }
            }
        }
        for (parent, (rule, by, host)) in shadowed {
            let host = match host {
                Host::Written(hostname) | Host::Lent(Some(hostname)) => hostname.as_str(),
                Host::Lent(None) => "any hostname",
            };
            let message = format!("{by}, which has precedence, has the match of rule {rule} for {host} as well");
            let field = format!("spec.rules[{rule}].matches");
            let finding = Finding::new(Code::RouteShadowed, judged.id, field, message).rule(rule);
            ctx.findings.push(finding.scope(Scope::Parent(parent)));
        }
    }
}

/// Lists the hosts that a route answers on a plane, each with the parentRefs through which it does, in order.
fn add_hosts<'a>(
    hosts: &mut Vec<(Host<'a>, usize)>,
    topology: &'a Topology<'_>,
    on_plane: impl Fn(usize) -> bool,
    route: &'a Route,
    parents: &[Parent],
) {
    for parent in parents {
        for listener in parent.listeners.iter().filter(|l| on_plane(**l)) {
            let own = topology.listeners[*listener].hostname.as_ref();
            if route.hostnames.is_empty() {
                hosts.push((Host::Lent(own), parent.index));
            }
            for hostname in &route.hostnames {
                let covered = own.is_none_or(|own| own.intersects(hostname));
                if covered && !owned_by_another(topology, *listener, hostname) {
                    hosts.push((Host::Written(hostname), parent.index));
                }
            }
        }
    }
    hosts.sort_unstable();
    hosts.dedup();
}

/// Whether a more specific listener of the same Gateway owns every host of a hostname, so that routes on this one never answer it
/// (S3 "Listener isolation").
fn owned_by_another(topology: &Topology<'_>, listener: usize, hostname: &Hostname) -> bool {
    let this = &topology.listeners[listener];
    let others = &topology.listeners[topology.ranges[topology.sources[this.source].gateway].clone()];
    others.iter().filter(|l| l.accepted).filter_map(|l| l.hostname.as_ref()).any(|other| {
        let wider = other == hostname || (other.is_wildcard() && hostname.as_str().ends_with(&other.as_str()[1..]));
        wider && this.hostname.as_ref().is_none_or(|own| other.specificity(own).is_gt())
    })
}

/// A match in its one form: the order in which its parts are written makes no difference, nor does a slash at the end of a prefix.
fn ordered(r#match: &Match) -> Cow<'_, Match> {
    let sorted = match r#match {
        Match::Http(m) => {
            let trailing = matches!(&m.path, PathMatch::Prefix(path) if path.len() > 1 && path.ends_with('/'));
            !trailing && m.headers.is_sorted() && m.query.is_sorted()
        }
        Match::Grpc(m) => m.headers.is_sorted(),
    };
    if sorted {
        return Cow::Borrowed(r#match);
    }
    let mut owned = r#match.clone();
    match &mut owned {
        Match::Http(m) => {
            if let PathMatch::Prefix(path) = &mut m.path {
                *path = path[..path.trim_end_matches('/').len().max(1)].into();
            }
            m.headers.sort();
            m.query.sort();
        }
        Match::Grpc(m) => m.headers.sort(),
    }
    Cow::Owned(owned)
}
