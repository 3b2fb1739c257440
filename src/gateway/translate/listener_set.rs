//! ListenerSets: which Gateway each extends, whether that Gateway takes it, and in which order they claim ports (GEP-1713).

use std::collections::BTreeMap;

use super::ctx::{Ctx, created, name, namespace};
use super::gateway::Refusal;
use super::listener::{self, Ports, Source, Topology};
use super::namespace::{Opens, admits, opens};
use super::reference_grant::Grants;
use crate::gateway::finding::Code;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::resource::gateway_api::listener_set::ListenerSet;
use crate::gateway::resource::view::{self, GATEWAY_GROUP};

/// ListenerSets by the Gateway of ours that they name (index), in the order of precedence: older first, then namespace and name.
pub(super) type ByGateway<'s> = BTreeMap<usize, Vec<&'s ListenerSet>>;

/// Sorts ListenerSets by Gateway. Those of other controllers' Gateways become foreign; those of no Gateway are reported.
pub(super) fn by_gateway<'s>(ctx: &mut Ctx<'s>, topology: &mut Topology<'s>) -> ByGateway<'s> {
    let gateways: BTreeMap<(&str, &str), usize> = topology
        .gateways
        .iter()
        .enumerate()
        .map(|(index, gw)| ((namespace(&gw.object.metadata), name(&gw.object.metadata)), index))
        .collect();
    let snapshot = ctx.snapshot;
    let mut sets: ByGateway<'s> = BTreeMap::new();
    for set in snapshot.listener_sets.values() {
        let own = namespace(&set.metadata);
        let parent = &set.spec.parent_ref;
        let parent_namespace = parent.namespace.as_deref().unwrap_or(own);
        let is_gateway = parent.group.as_deref().unwrap_or(GATEWAY_GROUP) == GATEWAY_GROUP
            && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway";
        if is_gateway && let Some(index) = gateways.get(&(parent_namespace, parent.name.as_str())) {
            sets.entry(*index).or_default().push(set);
            continue;
        }
        topology.foreign.insert((Kind::ListenerSet, own, name(&set.metadata)));
        let id = ObjectRef::new(Kind::ListenerSet, own, name(&set.metadata));
        if !is_gateway {
            let kind = parent.kind.as_deref().unwrap_or("Gateway");
            ctx.report(Code::ParentKindForeign, &id, "spec.parentRef", format!("a {kind} is no parent that we serve"));
        } else if snapshot.gateways.get(parent_namespace, &parent.name).is_none() {
            let message = format!("there is no gateway {parent_namespace}/{}", parent.name);
            ctx.report(Code::ListenerSetParentNotFound, &id, "spec.parentRef", message);
        }
    }
    for sets in sets.values_mut() {
        sets.sort_by_key(|set| created(&set.metadata));
    }
    sets
}

/// Joins a Gateway's ListenerSets to it. The answer is how many are accepted.
pub(super) fn join<'s>(
    ctx: &mut Ctx<'s>,
    grants: &Grants<'s>,
    topology: &mut Topology<'s>,
    ports: &mut Ports,
    sets: Vec<&'s ListenerSet>,
) -> usize {
    let Some(gateway) = topology.sources.last().map(|source| source.gateway) else { return 0 };
    let mut attached = 0;
    for set in sets {
        let own = namespace(&set.metadata);
        let id = ObjectRef::new(Kind::ListenerSet, own, name(&set.metadata));
        let refused = refused(ctx, topology, gateway, &id);
        let source =
            Source { id: id.clone(), namespace: own, generation: set.metadata.generation, gateway, listeners: 0..0, refused };
        let views: Vec<view::Listener<'s>> = set.spec.listeners.iter().map(Into::into).collect();
        let range = listener::add(ctx, grants, topology, source, views);
        if refused.is_some() {
            continue;
        }
        ports.claim_in_turn(ctx, topology, range.clone());
        if listener::sum_up(ctx, &topology.listeners[range], &id, false) {
            attached += 1;
        } else if let Some(source) = topology.sources.last_mut() {
            source.refused = Some(Refusal::Unserved);
        }
    }
    attached
}

/// The name of a source that is a ListenerSet, as long as the snapshot lives.
pub(super) fn name_of<'s>(ctx: &Ctx<'s>, source: &Source<'s>) -> &'s str {
    let set = ctx.snapshot.listener_sets.get(source.namespace, source.id.name());
    set.map_or("", |set| name(&set.metadata))
}

/// Whether the Gateway refuses a ListenerSet, and how that looks to its routes.
fn refused(ctx: &mut Ctx<'_>, topology: &Topology<'_>, gateway: usize, id: &ObjectRef) -> Option<Refusal> {
    let gw = &topology.gateways[gateway];
    let field = "spec.parentRef";
    if let Some(refusal) = gw.refused {
        ctx.report(Code::ListenerSetParentNotAccepted, id, field, format!("{} is not accepted", gw.id));
        return Some(refusal);
    }
    let (from, selector) = view::allowed_listeners(&gw.object.spec);
    let opens = opens(from, selector.as_ref()).unwrap_or(Opens::None);
    match admits(ctx, &opens, namespace(&gw.object.metadata), id.namespace()) {
        Some(true) => None,
        Some(false) => {
            let message = format!("{} takes no ListenerSets of namespace {}", gw.id, id.namespace());
            ctx.report(Code::ListenerSetNotAllowed, id, field, message);
            Some(Refusal::Unserved)
        }
        None => {
            ctx.depends(&gw.plane, Kind::Namespace);
            let message =
                format!("cannot tell whether {} takes it: the labels of namespace {} are not known", gw.id, id.namespace());
            ctx.report(Code::ListenerSetNamespaceUnknown, id, field, message);
            Some(Refusal::Pending)
        }
    }
}
