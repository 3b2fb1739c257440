//! Every route, whichever its kind: attached, turned into rules for each plane that serves it, and put in the order that decides
//! ties. What a rule of one kind means lives in the kind's own file.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::attach::{Candidate, Parent, attach};
use super::backend::Backends;
use super::ctx::{Ctx, created};
use super::listener::Topology;
use super::plane::Planes;
use super::reference_grant::Grants;
use super::rule::{Built, Rules};
use super::shadow::shadows;
use super::{grpc_route, http_route};
use crate::gateway::finding::{Code, Scope};
use crate::gateway::hostname::Hostname;
use crate::gateway::id::ObjectRef;
use crate::gateway::ir::{self, RedirectPort, RouteKind};
use crate::gateway::resource::gateway_api::grpc_route::{GrpcRoute, GrpcRouteUseDefaultGateways};
use crate::gateway::resource::gateway_api::http_route::{HttpRoute, HttpRouteUseDefaultGateways};
use crate::gateway::resource::gateway_api::tcp_route::TcpRouteUseDefaultGateways;
use crate::gateway::resource::gateway_api::tls_route::TlsRouteUseDefaultGateways;
use crate::gateway::resource::gateway_api::udp_route::UdpRouteUseDefaultGateways;
use crate::gateway::resource::view::ParentRef;
use crate::gateway::snapshot::Snapshot;

/// A route that names a parent of ours, judged.
pub(super) struct Judged<'s> {
    pub(super) id: &'s ObjectRef,
    pub(super) generation: Option<i64>,
    pub(super) references: Vec<ParentRef<'s>>,
    pub(super) parents: Vec<Parent>,
    /// Where it is served: the number of a plane, and the index in its document.
    pub(super) served: Vec<(usize, usize)>,
}

#[derive(Clone, Copy)]
enum Object<'s> {
    Http(&'s HttpRoute),
    Grpc(&'s GrpcRoute),
    /// TLS, TCP and UDP: no listener that takes them is ever accepted on a tunnel, so that only their parents matter.
    Stream,
}

struct Route<'s> {
    object: Object<'s>,
    id: &'s ObjectRef,
    meta: &'s ObjectMeta,
    hostnames: &'s [String],
    parents: Vec<ParentRef<'s>>,
    asks_for_default: bool,
}

/// Judges every route and adds what is served to the planes. Counts the routes of each listener.
pub(super) fn routes<'s>(
    ctx: &mut Ctx<'s>,
    grants: &Grants<'s>,
    topology: &mut Topology<'s>,
    planes: &mut Planes,
) -> Vec<Judged<'s>> {
    let mut backends = Backends::new(ctx.snapshot);
    let mut all = Vec::new();
    for route in in_order(ctx.snapshot) {
        let id = route.id;
        if route.asks_for_default {
            let message = "the route attaches by its parentRefs only; there are no default Gateways";
            ctx.report(Code::DefaultGatewayUnsupported, id, "spec.useDefaultGateways", message);
        }
        let hostnames = hostnames(ctx, id, route.hostnames);
        let names = hostnames.as_deref().unwrap_or_default();
        let mut parents = attach(ctx, topology, &Candidate { id, parents: &route.parents, hostnames: names });
        if parents.is_empty() {
            continue;
        }
        if hostnames.is_none() || !carried(ctx, id, route.object, &parents) {
            parents.iter_mut().for_each(|parent| parent.listeners.clear());
        }
        let mut attached: Vec<usize> = parents.iter().flat_map(|p| p.listeners.iter().copied()).collect();
        attached.sort_unstable();
        attached.dedup();
        let split = planes.split(&attached);
        let mut judged = Judged { id, generation: route.meta.generation, references: route.parents, parents, served: Vec::new() };
        let place = Place { grants, planes, split, hostnames: hostnames.unwrap_or_default() };
        if build(ctx, &mut backends, place, route.object, &mut judged) {
            attached.iter().for_each(|at| topology.listeners[*at].attached += 1);
        }
        all.push(judged);
    }
    shadows(ctx, topology, planes, &all);
    all
}

/// Whether the transport carries a route of this kind; says why not under every parent that would take it.
fn carried(ctx: &mut Ctx<'_>, id: &ObjectRef, object: Object<'_>, parents: &[Parent]) -> bool {
    let mut attached = parents.iter().filter(|p| !p.listeners.is_empty()).peekable();
    if attached.peek().is_none() || !matches!(object, Object::Grpc(_)) {
        return true;
    }
    if !ctx.snapshot.options.quic_pinned {
        let message = "without gRPC turned on for the zone, the Cloudflare edge answers 403 to every gRPC request";
        ctx.report(Code::GrpcEdgeProxyingRequired, id, "", message);
        return true;
    }
    for parent in attached {
        let field = format!("spec.parentRefs[{}]", parent.index);
        let message = "the tunnel is pinned to QUIC, which carries no trailers, and gRPC needs them";
        ctx.report_in(Scope::Parent(parent.index), Code::GrpcNeedsHttp2, id, field, message);
    }
    false
}

/// Where a route goes.
struct Place<'p, 's> {
    grants: &'p Grants<'s>,
    planes: &'p mut Planes,
    /// The planes it is attached on, with its listeners in the document of each.
    split: Vec<(usize, Vec<usize>)>,
    hostnames: Vec<Hostname>,
}

/// Builds the rules of a route and adds them to each plane that it is attached on. The answer is whether it is attached anywhere: a
/// route of which no rule is served as written still fails closed there, but does not count.
fn build<'s>(
    ctx: &mut Ctx<'s>,
    backends: &mut Backends<'s>,
    place: Place<'_, 's>,
    object: Object<'s>,
    judged: &mut Judged<'s>,
) -> bool {
    let Place { grants, planes, split, hostnames } = place;
    let kind = if matches!(object, Object::Grpc(_)) { RouteKind::Grpc } else { RouteKind::Http };
    if split.is_empty() {
        // Judged all the same: the status and `lint` say what else is wrong with it.
        write(Rules::new(ctx, backends, grants, (kind, judged.id), None, RedirectPort::None), object);
        return false;
    }
    let mut counts = true;
    for (plane, listeners) in split {
        let mark = ctx.findings.len();
        let port = planes.redirect_port(plane, &listeners);
        let built = write(Rules::new(ctx, backends, grants, (kind, judged.id), Some(&planes.ids[plane]), port), object);
        counts = !built.all_refused;
        if !judged.served.is_empty() {
            // The same rules say the same on every plane.
            ctx.findings.truncate(mark);
        }
        built.used.into_iter().for_each(|usable| planes.lead_to(plane, usable));
        let document = &mut planes.documents[plane];
        judged.served.push((plane, document.routes.len()));
        let (object, hostnames) = (judged.id.clone(), hostnames.clone());
        document.routes.push(ir::Route { object, kind, hostnames, listeners, rules: built.rules });
    }
    counts
}

fn write<'s>(mut rules: Rules<'_, 's>, object: Object<'s>) -> Built {
    match object {
        Object::Http(route) => http_route::rules(&mut rules, &route.spec),
        Object::Grpc(route) => grpc_route::rules(&mut rules, &route.spec),
        Object::Stream => {}
    }
    rules.finish()
}

/// The hostnames of a route; none when one of them is no hostname, which refuses the route.
fn hostnames(ctx: &mut Ctx<'_>, id: &ObjectRef, written: &[String]) -> Option<Vec<Hostname>> {
    let mut parsed = Vec::with_capacity(written.len());
    let mut valid = true;
    for (index, text) in written.iter().enumerate() {
        match text.parse::<Hostname>() {
            Ok(hostname) => parsed.push(hostname),
            Err(error) => {
                ctx.report(Code::RouteHostnameInvalid, id, format!("spec.hostnames[{index}]"), error.to_string());
                valid = false;
            }
        }
    }
    valid.then_some(parsed)
}

/// Every route in the order that decides ties: oldest first, then namespace, name and kind.
fn in_order(snapshot: &Snapshot) -> Vec<Route<'_>> {
    let mut routes = Vec::with_capacity(snapshot.http_routes.len() + snapshot.grpc_routes.len());
    macro_rules! add {
        ($objects:ident, $default:ident, |$route:ident| $object:expr, $hostnames:expr) => {
            routes.extend(snapshot.$objects.iter().map(|(id, $route)| Route {
                object: $object,
                id,
                meta: &$route.metadata,
                hostnames: $hostnames,
                parents: $route.spec.parent_refs.as_deref().unwrap_or_default().iter().map(Into::into).collect(),
                asks_for_default: $route.spec.use_default_gateways == Some($default::All),
            }));
        };
    }
    let none: &[String] = &[];
    add!(http_routes, HttpRouteUseDefaultGateways, |r| Object::Http(r), r.spec.hostnames.as_deref().unwrap_or(none));
    add!(grpc_routes, GrpcRouteUseDefaultGateways, |r| Object::Grpc(r), r.spec.hostnames.as_deref().unwrap_or(none));
    add!(tls_routes, TlsRouteUseDefaultGateways, |r| Object::Stream, &r.spec.hostnames);
    add!(tcp_routes, TcpRouteUseDefaultGateways, |r| Object::Stream, none);
    add!(udp_routes, UdpRouteUseDefaultGateways, |r| Object::Stream, none);
    routes.sort_by_key(|r| (created(r.meta), r.id.key(), r.id.kind));
    routes
}
