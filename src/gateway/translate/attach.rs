//! What a route attaches to, and why not: parentRefs, section names and ports, allowedRoutes, hostnames (Gateway API "Attaching
//! Routes"). What the route then does is not decided here.

use super::ctx::Ctx;
use super::gateway::Refusal;
use super::listener::{Lst, SERVED, Topology};
use super::namespace::admits;
use crate::gateway::finding::{Code, Scope};
use crate::gateway::hostname::Hostname;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::resource::view::{GATEWAY_GROUP, ParentRef};

/// A route, as far as attaching goes.
pub(super) struct Candidate<'a> {
    pub(super) id: &'a ObjectRef,
    pub(super) parents: &'a [ParentRef<'a>],
    pub(super) hostnames: &'a [Hostname],
}

/// What became of one parentRef that names a parent of ours.
pub(super) struct Parent {
    /// Index in `spec.parentRefs`.
    pub(super) index: usize,
    /// Indexes of the listeners it attaches to; none when it is refused.
    pub(super) listeners: Vec<usize>,
}

/// How far a listener let a route come. The furthest one gives the reason.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Nowhere,
    Kind,
    Accepted,
    UnknownNamespace,
    Namespace,
    Attached,
}

/// Judges every parentRef of a route. Those that name nothing of ours are left out.
pub(super) fn attach(ctx: &mut Ctx<'_>, topology: &Topology<'_>, route: &Candidate<'_>) -> Vec<Parent> {
    if route.parents.is_empty() {
        ctx.report(Code::RouteWithoutParents, route.id, "spec.parentRefs", "the route names no parent and is served by none");
    }
    let mut parents = Vec::with_capacity(route.parents.len());
    for (index, reference) in route.parents.iter().enumerate() {
        if let Some(source) = resolve(ctx, topology, route.id, index, reference) {
            let listeners = listeners(ctx, topology, route, index, source);
            parents.push(Parent { index, listeners });
        }
    }
    parents
}

fn resolve(ctx: &mut Ctx<'_>, topology: &Topology<'_>, id: &ObjectRef, index: usize, reference: &ParentRef<'_>) -> Option<usize> {
    let field = || format!("spec.parentRefs[{index}]");
    let kind = match (reference.group, reference.kind) {
        (GATEWAY_GROUP, "Gateway") => Kind::Gateway,
        (GATEWAY_GROUP, "ListenerSet") => Kind::ListenerSet,
        (_, kind) => {
            ctx.report(Code::ParentKindForeign, id, field(), format!("a {kind} is no parent that we serve"));
            return None;
        }
    };
    let namespace = reference.namespace.unwrap_or_else(|| id.namespace());
    let found = topology.by_name.get(&(kind, namespace, reference.name)).copied();
    if found.is_none() && !topology.foreign.contains(&(kind, namespace, reference.name)) {
        let parent = ObjectRef::new(kind, namespace, reference.name);
        let message = if ctx.snapshot.is_complete(kind) {
            format!("there is no {parent}")
        } else if ctx.cannot_read(kind) {
            format!("cannot tell whether there is a {parent}: objects of kind {kind} cannot be read")
        } else {
            format!("cannot tell whether there is a {parent}: no {kind} was given")
        };
        ctx.report(Code::ParentNotFound, id, field(), message);
    }
    found
}

fn listeners(ctx: &mut Ctx<'_>, topology: &Topology<'_>, route: &Candidate<'_>, index: usize, source: usize) -> Vec<usize> {
    let reference = &route.parents[index];
    let source = &topology.sources[source];
    if let Some(refusal) = source.refused {
        let code = match refusal {
            Refusal::Pending => Code::ParentPending,
            Refusal::Unserved => Code::ParentNotAccepted,
        };
        return refuse(ctx, route, index, code, format!("{} is not accepted", source.id));
    }
    let named = source.listeners.clone().filter(|at| {
        let view = &topology.listeners[*at].view;
        reference.section_name.is_none_or(|name| name == view.name) && reference.port.is_none_or(|port| port == view.port)
    });
    let mut named = named.peekable();
    if named.peek().is_none() {
        let wanted = match (reference.section_name, reference.port) {
            (Some(name), Some(port)) => format!(" named {name} on port {port}"),
            (Some(name), None) => format!(" named {name}"),
            (None, Some(port)) => format!(" on port {port}"),
            (None, None) => String::new(),
        };
        return refuse(ctx, route, index, Code::NoMatchingParent, format!("{} has no listener{wanted}", source.id));
    }
    let mut furthest = Reached::Nowhere;
    let mut attached = Vec::new();
    for at in named {
        let listener = &topology.listeners[at];
        let reached = reach(ctx, topology, route, listener);
        furthest = furthest.max(reached);
        match reached {
            Reached::Attached => attached.push(at),
            Reached::UnknownNamespace => ctx.depends(&topology.gateways[source.gateway].plane, Kind::Namespace),
            _ => {}
        }
    }
    let parent = &source.id;
    let (code, message) = match furthest {
        Reached::Attached => return attached,
        Reached::Namespace => {
            (Code::NoMatchingListenerHostname, format!("no hostname of the route is covered by a listener of {parent}"))
        }
        Reached::UnknownNamespace => {
            let namespace = route.id.namespace();
            let message = format!("cannot tell whether {parent} takes it: the labels of namespace {namespace} are not known");
            (Code::RouteNamespaceUnknown, message)
        }
        Reached::Accepted => {
            let message = format!("no listener of {parent} takes routes of namespace {}", route.id.namespace());
            (Code::NotAllowedByListeners, message)
        }
        Reached::Kind if !SERVED.contains(&route.id.kind) => {
            (Code::StreamRouteUnsupported, format!("kind {} cannot arrive over an HTTP tunnel", route.id.kind))
        }
        Reached::Kind => (Code::ListenerNotAccepted, format!("the listeners that it names on {parent} are not accepted")),
        Reached::Nowhere => {
            (Code::NotAllowedByListeners, format!("no listener that it names on {parent} takes kind {}", route.id.kind))
        }
    };
    refuse(ctx, route, index, code, message)
}

fn refuse(ctx: &mut Ctx<'_>, route: &Candidate<'_>, index: usize, code: Code, message: String) -> Vec<usize> {
    ctx.report_in(Scope::Parent(index), code, route.id, format!("spec.parentRefs[{index}]"), message);
    Vec::new()
}

fn reach(ctx: &Ctx<'_>, topology: &Topology<'_>, route: &Candidate<'_>, listener: &Lst<'_>) -> Reached {
    if !listener.kinds.contains(&route.id.kind) {
        return Reached::Nowhere;
    }
    if !listener.accepted {
        return Reached::Kind;
    }
    let owner = topology.sources[listener.source].namespace;
    match admits(ctx, &listener.opens, owner, route.id.namespace()) {
        Some(true) => {}
        Some(false) => return Reached::Accepted,
        None => return Reached::UnknownNamespace,
    }
    let covered = match &listener.hostname {
        None => true,
        Some(hostname) => route.hostnames.is_empty() || route.hostnames.iter().any(|h| h.intersects(hostname)),
    };
    if covered { Reached::Attached } else { Reached::Namespace }
}
