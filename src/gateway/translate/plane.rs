//! What each plane receives: the listeners and routes of its Gateways in one document, or nothing new while something it depends on
//! could not be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;

use super::backend::Usable;
use super::listener::Topology;
use super::{Ctx, Held, Plane, PlaneId};
use crate::gateway::finding::Code;
use crate::gateway::id::Kind;
use crate::gateway::ir::{Listener, RedirectPort, RouteConfig};
use crate::gateway::snapshot::Coverage;

/// Planes as they are built, each named by its number here.
pub(super) struct Planes {
    /// In order.
    pub(super) ids: Vec<PlaneId>,
    pub(super) documents: Vec<RouteConfig>,
    /// Backends of each document, and the numbers of those that it has.
    backends: Vec<(HashSet<usize>, Vec<Arc<Usable>>)>,
    /// The plane of each listener of the topology, and where it is in the document; none for one that is not accepted.
    places: Vec<Option<(usize, usize)>>,
}

/// Ports that the Cloudflare edge takes requests on, by scheme. No request can have arrived on another.
const EDGE_HTTP: [u16; 7] = [80, 8080, 8880, 2052, 2082, 2086, 2095];
const EDGE_HTTPS: [u16; 6] = [443, 2053, 2083, 2087, 2096, 8443];

impl Planes {
    /// Starts a document for every plane, with its listeners.
    pub(super) fn new(ctx: &Ctx<'_>, topology: &Topology<'_>) -> Self {
        let mut ids = Vec::new();
        if ctx.snapshot.options.single_plane {
            ids.push(PlaneId::Local);
        }
        for gw in &topology.gateways {
            // A refused Gateway has no plane of its own: one without configuration would still take a share of the tunnel's requests.
            if !(gw.refused.is_some() && matches!(gw.plane, PlaneId::Gateway { .. })) {
                ids.push(gw.plane.clone());
            }
        }
        ids.sort();
        ids.dedup();
        let document = RouteConfig { options: ctx.snapshot.options.plane.clone(), ..RouteConfig::empty() };
        let mut documents = vec![document; ids.len()];
        let mut places = vec![None; topology.listeners.len()];
        for (at, listener) in topology.listeners.iter().enumerate() {
            let source = &topology.sources[listener.source];
            let gw = &topology.gateways[source.gateway];
            let (false, true, Some(protocol)) = (source.refused.is_some(), listener.accepted, listener.protocol) else {
                continue;
            };
            let Ok(plane) = ids.binary_search(&gw.plane) else { continue };
            let document = &mut documents[plane];
            places[at] = Some((plane, document.listeners.len()));
            document.listeners.push(Listener {
                gateway: gw.id.clone(),
                source: source.id.clone(),
                name: listener.view.name.to_owned(),
                port: listener.port,
                protocol,
                hostname: listener.hostname.clone(),
            });
        }
        let backends = vec![Default::default(); ids.len()];
        Self { ids, documents, backends, places }
    }

    /// The listeners that a route is attached to, ascending, by plane, as indexes into the plane's document.
    pub(super) fn split(&self, attached: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let mut planes: Vec<(usize, Vec<usize>)> = Vec::with_capacity(1);
        for (plane, place) in attached.iter().filter_map(|at| self.places[*at]) {
            match planes.iter_mut().find(|(known, _)| *known == plane) {
                Some((_, places)) => places.push(place),
                None => planes.push((plane, vec![place])),
            }
        }
        planes.sort_unstable();
        planes
    }

    /// The plane that serves a listener; none when it is not accepted.
    pub(super) fn of(&self, listener: usize) -> Option<usize> {
        self.places[listener].map(|(plane, _)| plane)
    }

    /// Adds a backend to a plane that does not have it yet.
    pub(super) fn lead_to(&mut self, plane: usize, usable: Arc<Usable>) {
        let (known, backends) = &mut self.backends[plane];
        if known.insert(usable.number) {
            backends.push(usable);
        }
    }

    /// The port of a redirect that names neither scheme nor port, for a route on these listeners of a plane. Of several that clients
    /// can reach the well-known port wins, then the lowest (S3 "Redirect port").
    pub(super) fn redirect_port(&self, plane: usize, listeners: &[usize]) -> RedirectPort {
        let document = &self.documents[plane];
        let choose = |edge: &[u16], well_known: u16, protocol| {
            let ports = listeners.iter().map(|at| &document.listeners[*at]).filter(|l| l.protocol == protocol).map(|l| l.port);
            ports.filter(|port| edge.contains(port)).min_by_key(|port| (*port != well_known, *port))
        };
        RedirectPort::Listener {
            http: choose(&EDGE_HTTP, 80, crate::gateway::ir::ListenerProtocol::Http),
            https: choose(&EDGE_HTTPS, 443, crate::gateway::ir::ListenerProtocol::Https),
        }
    }

    /// The verdict on every plane.
    pub(super) fn finish(self, ctx: &mut Ctx<'_>, topology: &Topology<'_>) -> BTreeMap<PlaneId, Plane> {
        let mut planes = BTreeMap::new();
        for ((id, mut document), (_, backends)) in self.ids.into_iter().zip(self.documents).zip(self.backends) {
            // Most are of this plane alone by now.
            document.backends = backends.into_iter().map(Arc::unwrap_or_clone).map(|u| (u.key, u.backend)).collect();
            for kind in [Kind::GatewayClass, Kind::Gateway, Kind::ListenerSet, Kind::HttpRoute, Kind::GrpcRoute] {
                ctx.depends(&id, kind);
            }
            let held: Vec<Held> = ctx.unread.get(&id).into_iter().flatten().map(|kind| held(ctx, *kind)).collect();
            if !held.is_empty() {
                let reasons: Vec<String> = held.iter().map(|h| format!("{}: {}", h.kind, h.reason)).collect();
                let message = format!("plane {id} keeps its last configuration, as these cannot be read: {}", reasons.join("; "));
                for gw in topology.gateways.iter().filter(|gw| gw.plane == id) {
                    ctx.report(Code::PlaneHeld, &gw.id, "", message.clone());
                }
            }
            planes.insert(id, if held.is_empty() { Plane::Ready(document) } else { Plane::Held(held) });
        }
        planes
    }
}

fn held(ctx: &Ctx<'_>, kind: Kind) -> Held {
    let reason = match ctx.snapshot.coverage(kind) {
        Coverage::Unreadable(reason) => reason.clone(),
        _ => "forbidden".to_owned(),
    };
    Held { kind, reason }
}
