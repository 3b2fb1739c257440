//! Listeners of Gateways and ListenerSets: which are accepted, what they are open to, and which conflict. What attaches to them
//! is the next pass.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::ctx::{Ctx, namespace};
use super::gateway::{Gateways, Gw, Refusal};
use super::listener_set;
use super::namespace::{Opens, opens};
use super::reference_grant::{From as Referrer, Grants, To};
use crate::gateway::condition::RouteGroupKind;
use crate::gateway::finding::{Code, Scope};
use crate::gateway::hostname::Hostname;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::ir::ListenerProtocol;
use crate::gateway::resource::view::{self, FromNamespaces, GATEWAY_GROUP};
use crate::gateway::snapshot::Coverage;

/// All that routes can attach to.
pub(super) struct Topology<'s> {
    pub(super) gateways: Vec<Gw<'s>>,
    /// What declares listeners: each Gateway of ours, then each ListenerSet of one.
    pub(super) sources: Vec<Source<'s>>,
    /// In the order of Gateways; within one, its own first, then those of its ListenerSets by precedence.
    pub(super) listeners: Vec<Lst<'s>>,
    /// The listeners of each Gateway and its ListenerSets.
    pub(super) ranges: Vec<Range<usize>>,
    /// Index into `sources`.
    pub(super) by_name: BTreeMap<(Kind, &'s str, &'s str), usize>,
    /// Gateways and ListenerSets that are there but not ours.
    pub(super) foreign: BTreeSet<(Kind, &'s str, &'s str)>,
}

/// A Gateway or a ListenerSet.
pub(super) struct Source<'s> {
    pub(super) id: ObjectRef,
    pub(super) namespace: &'s str,
    pub(super) generation: Option<i64>,
    /// Index into `gateways`: itself, or the one it extends.
    pub(super) gateway: usize,
    /// Its listeners.
    pub(super) listeners: Range<usize>,
    /// Set when no route attaches, whatever its listeners say.
    pub(super) refused: Option<Refusal>,
}

/// A listener.
pub(super) struct Lst<'s> {
    pub(super) view: view::Listener<'s>,
    pub(super) source: usize,
    /// Index in its source's list.
    pub(super) index: usize,
    pub(super) protocol: Option<ListenerProtocol>,
    pub(super) hostname: Option<Hostname>,
    pub(super) port: u16,
    /// Route kinds it takes.
    pub(super) kinds: Vec<Kind>,
    pub(super) opens: Opens<'s>,
    pub(super) accepted: bool,
    /// Whether its certificates can be used, as far as they are known.
    certified: bool,
    /// Routes attached to it, counted by a later pass.
    pub(super) attached: usize,
}

impl Lst<'_> {
    /// The kinds as a status shows them.
    pub(super) fn supported_kinds(&self) -> Vec<RouteGroupKind> {
        let served = self.kinds.iter().filter(|k| self.protocol.is_some() && SERVED.contains(k));
        served.map(|kind| RouteGroupKind { group: kind.group(), kind: kind.as_str() }).collect()
    }
}

/// Route kinds that an HTTP tunnel carries.
pub(super) const SERVED: [Kind; 2] = [Kind::HttpRoute, Kind::GrpcRoute];

/// Judges every listener of every Gateway of ours and of its ListenerSets.
pub(super) fn topology<'s>(ctx: &mut Ctx<'s>, grants: &Grants<'s>, gateways: Gateways<'s>) -> Topology<'s> {
    let foreign = gateways.foreign.iter().map(|(namespace, name)| (Kind::Gateway, *namespace, *name)).collect();
    let mut topology = Topology {
        gateways: gateways.ours,
        sources: Vec::new(),
        listeners: Vec::new(),
        ranges: Vec::new(),
        by_name: BTreeMap::new(),
        foreign,
    };
    let mut sets = listener_set::by_gateway(ctx, &mut topology);
    for gateway in 0..topology.gateways.len() {
        let gw = &topology.gateways[gateway];
        let (id, object, refused) = (gw.id.clone(), gw.object, gw.refused);
        let views: Vec<view::Listener<'s>> = object.spec.listeners.iter().map(Into::into).collect();
        let source = Source {
            namespace: namespace(&object.metadata),
            generation: object.metadata.generation,
            gateway,
            listeners: 0..0,
            refused,
            id,
        };
        let mut ports = Ports::default();
        let start = topology.listeners.len();
        let own = add(ctx, grants, &mut topology, source, views);
        ports.claim_equally(ctx, &mut topology, own.clone());
        let attached = listener_set::join(ctx, grants, &mut topology, &mut ports, sets.remove(&gateway).unwrap_or_default());
        topology.ranges.push(start..topology.listeners.len());
        let id = topology.gateways[gateway].id.clone();
        if refused.is_none() {
            sum_up(ctx, &topology.listeners[own], &id, attached > 0);
        }
    }
    topology
}

/// Adds a source with its listeners, each judged on its own.
pub(super) fn add<'s>(
    ctx: &mut Ctx<'s>,
    grants: &Grants<'s>,
    topology: &mut Topology<'s>,
    mut source: Source<'s>,
    views: Vec<view::Listener<'s>>,
) -> Range<usize> {
    let start = topology.listeners.len();
    let at = topology.sources.len();
    let mut names = BTreeSet::new();
    for (index, view) in views.into_iter().enumerate() {
        let repeated = !names.insert(view.name);
        let mut listener = judge(ctx, &source, at, index, view);
        if repeated {
            let message = format!("the name {} is already used by another listener", listener.view.name);
            let field = format!("spec.listeners[{index}].name");
            ctx.report_in(Scope::Listener(index), Code::ListenerNameRepeated, &source.id, field, message);
            listener.accepted = false;
        }
        listener.certified = certificates(ctx, grants, &source, &listener);
        topology.listeners.push(listener);
    }
    source.listeners = start..topology.listeners.len();
    let (kind, namespace) = (source.id.kind, source.namespace);
    let name = match kind {
        Kind::Gateway => super::ctx::name(&topology.gateways[source.gateway].object.metadata),
        _ => listener_set::name_of(ctx, &source),
    };
    topology.by_name.insert((kind, namespace, name), at);
    topology.sources.push(source);
    start..topology.listeners.len()
}

fn judge<'s>(ctx: &mut Ctx<'s>, source: &Source<'s>, at: usize, index: usize, view: view::Listener<'s>) -> Lst<'s> {
    let mut problems: Vec<(Code, &str, String)> = Vec::new();
    let protocol = match view.protocol {
        "HTTP" => Some(ListenerProtocol::Http),
        "HTTPS" => Some(ListenerProtocol::Https),
        other => {
            problems.push((Code::ListenerProtocolUnsupported, "protocol", format!("{other} cannot arrive over an HTTP tunnel")));
            None
        }
    };
    if protocol == Some(ListenerProtocol::Https) && view.passthrough {
        let message = "TLS ends at the Cloudflare edge and cannot be passed through".to_owned();
        problems.push((Code::ListenerTlsModeUnsupported, "tls.mode", message));
    }
    if view.has_filters {
        let message = "filters of a listener are not part of this version, and without them it would be open".to_owned();
        problems.push((Code::ListenerFiltersUnsupported, "filters", message));
    }
    let hostname = view.hostname.and_then(|text| match text.parse::<Hostname>() {
        Ok(hostname) => Some(hostname),
        Err(error) => {
            problems.push((Code::ListenerHostnameInvalid, "hostname", error.to_string()));
            None
        }
    });
    let port = u16::try_from(view.port).unwrap_or(0);
    if port == 0 {
        problems.push((Code::ListenerPortInvalid, "port", format!("{} is no port", view.port)));
    }
    let opens = opens(view.from, view.selector.as_ref()).unwrap_or_else(|reason| {
        problems.push((Code::ListenerSelectorInvalid, "allowedRoutes.namespaces.selector", reason));
        Opens::None
    });
    let accepted = problems.is_empty();
    let (kinds, foreign) = kinds(&view);
    if !foreign.is_empty() {
        let message = format!("{} cannot attach to a listener of protocol {}", foreign.join(", "), view.protocol);
        problems.push((Code::RouteKindsInvalid, "allowedRoutes.kinds", message));
    }
    if accepted && view.has_tls_options {
        let message = "TLS ends at the Cloudflare edge, and tls.options do not reach it".to_owned();
        problems.push((Code::ListenerTlsOptionsIgnored, "tls.options", message));
    }
    if accepted && view.from == FromNamespaces::All && hostname.is_none() {
        let message = "routes of every namespace may claim any hostname on this listener".to_owned();
        problems.push((Code::PermissiveHostname, "hostname", message));
    }
    for (code, field, message) in problems {
        let field = format!("spec.listeners[{index}].{field}");
        ctx.report_in(Scope::Listener(index), code, &source.id, field, format!("listener {}: {message}", view.name));
    }
    Lst { view, source: at, index, protocol, hostname, port, kinds, opens, accepted, certified: true, attached: 0 }
}

/// The route kinds that a listener takes, and those it names without being able to.
fn kinds(view: &view::Listener<'_>) -> (Vec<Kind>, Vec<String>) {
    let possible: &[Kind] = match view.protocol {
        "HTTP" | "HTTPS" => &SERVED,
        "TLS" => &[Kind::TlsRoute, Kind::TcpRoute],
        "TCP" => &[Kind::TcpRoute],
        "UDP" => &[Kind::UdpRoute],
        _ => &[],
    };
    let Some(named) = &view.kinds else {
        return (possible.to_vec(), Vec::new());
    };
    let (mut kinds, mut foreign) = (Vec::new(), Vec::new());
    for (group, kind) in named {
        match possible.iter().find(|p| *group == GATEWAY_GROUP && p.as_str() == *kind) {
            Some(kind) if !kinds.contains(kind) => kinds.push(*kind),
            Some(_) => {}
            None if group.is_empty() => foreign.push((*kind).to_owned()),
            None => foreign.push(format!("{kind}.{group}")),
        }
    }
    (kinds, foreign)
}

/// Over a tunnel certificates are only checked: clients see the edge's (S3 "Gateway Listener Configuration"). The answer is
/// whether none is known to be unusable.
fn certificates<'s>(ctx: &mut Ctx<'s>, grants: &Grants<'s>, source: &Source<'s>, listener: &Lst<'s>) -> bool {
    let index = listener.index;
    let mut usable = true;
    for (at, reference) in listener.view.certificates.iter().enumerate() {
        let to_namespace = reference.namespace.unwrap_or(source.namespace);
        let from = Referrer { kind: source.id.kind.as_str(), namespace: source.namespace };
        let to =
            To { group: reference.group, kind: reference.kind, namespace: to_namespace, name: reference.name, lenient: false };
        let named = format!("{} {to_namespace}/{}", reference.kind.to_ascii_lowercase(), reference.name);
        let problem = if !grants.permit(from, to) && ctx.cannot_read(Kind::ReferenceGrant) {
            Some((Code::CertificateUnknown, format!("cannot tell whether a ReferenceGrant lets this namespace use {named}")))
        } else if !grants.permit(from, to) {
            let message = format!("no ReferenceGrant lets this namespace use {named}");
            Some((Code::CertificateNotPermitted, message))
        } else if (reference.group, reference.kind) != ("", "Secret") {
            Some((Code::CertificateInvalid, format!("{named} is not a Secret of the core group")))
        } else {
            secret_problem(ctx, to_namespace, reference.name)
        };
        if let Some((code, message)) = problem {
            let field = format!("spec.listeners[{index}].tls.certificateRefs[{at}]");
            let message = format!("listener {}: {message}", listener.view.name);
            ctx.report_in(Scope::Listener(index), code, &source.id, field, message);
            usable &= code == Code::CertificateUnknown;
        }
    }
    usable
}

fn secret_problem(ctx: &Ctx<'_>, namespace: &str, name: &str) -> Option<(Code, String)> {
    let Some(secret) = ctx.snapshot.secrets.get(namespace, name) else {
        return Some(if *ctx.snapshot.coverage(Kind::Secret) == Coverage::Complete {
            (Code::CertificateInvalid, format!("there is no secret {namespace}/{name}"))
        } else {
            (Code::CertificateUnknown, format!("cannot tell whether secret {namespace}/{name} exists"))
        });
    };
    let pem = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.as_slice());
        let text = secret.string_data.as_ref().and_then(|d| d.get(key)).map(String::as_bytes);
        text.or(bytes).is_some_and(|pem| pem.windows(11).any(|w| w == b"-----BEGIN "))
    };
    (!pem("tls.crt") || !pem("tls.key"))
        .then(|| (Code::CertificateInvalid, format!("secret {namespace}/{name} has no PEM under tls.crt and tls.key")))
}

/// Says on a Gateway or ListenerSet how many of its listeners are valid. `extended`: accepted ListenerSets add some. The answer
/// is whether any is.
///
/// A ListenerSet is not accepted for the sake of a listener whose certificate it may not use or does not have (GEP-1713); a Gateway
/// is (Gateway API `ListenerConditionResolvedRefs`).
pub(super) fn sum_up(ctx: &mut Ctx<'_>, listeners: &[Lst<'_>], id: &ObjectRef, extended: bool) -> bool {
    let certified = |l: &&Lst<'_>| l.certified || id.kind != Kind::ListenerSet;
    let valid = listeners.iter().filter(|l| l.accepted).filter(certified).count();
    if valid == 0 && !(listeners.is_empty() && extended) {
        ctx.report(Code::NoListenerValid, id, "spec.listeners", "no listener can be served");
    } else if valid < listeners.len() {
        let message = format!("{} of {} listeners cannot be served", listeners.len() - valid, listeners.len());
        ctx.report(Code::SomeListenersInvalid, id, "spec.listeners", message);
    }
    valid > 0
}

/// The ports of one Gateway: who has which, for which protocol and hostname.
#[derive(Default)]
pub(super) struct Ports(BTreeMap<u16, BTreeMap<ListenerProtocol, BTreeSet<Option<Hostname>>>>);

impl Ports {
    /// Listeners of the Gateway itself: of those that cannot be told apart none wins (Gateway API `GatewaySpec.listeners`).
    fn claim_equally(&mut self, ctx: &mut Ctx<'_>, topology: &mut Topology<'_>, range: Range<usize>) {
        let mut claims: BTreeMap<(u16, ListenerProtocol, Option<Hostname>), usize> = BTreeMap::new();
        for listener in &topology.listeners[range.clone()] {
            if let (true, Some(protocol)) = (listener.accepted, listener.protocol) {
                *claims.entry((listener.port, protocol, listener.hostname.clone())).or_default() += 1;
                let hostnames = self.0.entry(listener.port).or_default().entry(protocol).or_default();
                hostnames.insert(listener.hostname.clone());
            }
        }
        for at in range {
            let listener = &topology.listeners[at];
            let (true, Some(protocol)) = (listener.accepted, listener.protocol) else { continue };
            let several = self.0.get(&listener.port).is_some_and(|protocols| protocols.len() > 1);
            let key = (listener.port, protocol, listener.hostname.clone());
            let conflict = if several {
                Some(Code::ListenerProtocolConflict)
            } else {
                claims.get(&key).is_some_and(|count| *count > 1).then_some(Code::ListenerHostnameConflict)
            };
            if let Some(code) = conflict {
                conflicted(ctx, topology, at, code);
            }
        }
    }

    /// Listeners of a ListenerSet, in the order of precedence: whoever came first keeps what it has (GEP-1713).
    pub(super) fn claim_in_turn(&mut self, ctx: &mut Ctx<'_>, topology: &mut Topology<'_>, range: Range<usize>) {
        for at in range {
            let listener = &topology.listeners[at];
            let (true, Some(protocol)) = (listener.accepted, listener.protocol) else { continue };
            let protocols = self.0.entry(listener.port).or_default();
            let conflict = if protocols.keys().any(|p| *p != protocol) {
                Some(Code::ListenerProtocolConflict)
            } else {
                let taken = !protocols.entry(protocol).or_default().insert(listener.hostname.clone());
                taken.then_some(Code::ListenerHostnameConflict)
            };
            if let Some(code) = conflict {
                conflicted(ctx, topology, at, code);
            }
        }
    }
}

fn conflicted(ctx: &mut Ctx<'_>, topology: &mut Topology<'_>, at: usize, code: Code) {
    let listener = &mut topology.listeners[at];
    listener.accepted = false;
    let (index, view) = (listener.index, &listener.view);
    let message = if code == Code::ListenerProtocolConflict {
        format!("listener {}: port {} is also declared for another protocol", view.name, view.port)
    } else {
        let hostname = view.hostname.unwrap_or("any hostname");
        format!("listener {}: port {} with {hostname} is also declared by another listener", view.name, view.port)
    };
    let id = &topology.sources[listener.source].id;
    ctx.report_in(Scope::Listener(index), code, id, format!("spec.listeners[{index}]"), message);
}
