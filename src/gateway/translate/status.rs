//! Statuses: what the findings of every object of ours add up to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::PlaneId;
use super::class::Class;
use super::ctx::Ctx;
use super::listener::{Source, Topology};
use super::route::Judged;
use crate::gateway::condition::{
    ClassStatus, Condition, ConditionStatus, ListenerStatus, ListenersStatus, ParentRefStatus, ParentStatus, RouteStatus, Status,
    Verdict, fold, holds,
};
use crate::gateway::finding::{Finding, Scope};
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::lookup::Lookup;
use crate::gateway::resource::view::ParentRef;

const ACCEPTED: Verdict = Verdict { r#type: "Accepted", status: ConditionStatus::True, reason: "Accepted" };
const PROGRAMMED: Verdict = Verdict { r#type: "Programmed", status: ConditionStatus::True, reason: "Programmed" };
const NOT_PROGRAMMED: Verdict = Verdict { r#type: "Programmed", status: ConditionStatus::False, reason: "Invalid" };
/// A plane of its own is programmed once it has a ready replica, which nothing in a snapshot says yet (S3 "Programmed").
const PENDING: Verdict = Verdict { r#type: "Programmed", status: ConditionStatus::Unknown, reason: "Pending" };
const RESOLVED: Verdict = Verdict { r#type: "ResolvedRefs", status: ConditionStatus::True, reason: "ResolvedRefs" };
const NO_CONFLICTS: Verdict = Verdict { r#type: "Conflicted", status: ConditionStatus::False, reason: "NoConflicts" };

/// Builds every status. `ctx.findings` is sorted by object.
pub(super) fn statuses(
    ctx: &Ctx<'_>,
    classes: &BTreeMap<&str, Class<'_>>,
    topology: &Topology<'_>,
    routes: &[Judged<'_>],
) -> BTreeMap<ObjectRef, Status> {
    // Sorted at last, all at once.
    let mut statuses = Vec::with_capacity(classes.len() + topology.sources.len() + routes.len());
    for (name, class) in classes {
        if !matches!(class, Class::Foreign) {
            let id = ObjectRef::cluster(Kind::GatewayClass, *name);
            let conditions = fold(&[ACCEPTED], &of(ctx, &id, |_| true), generation_of_class(ctx, name));
            statuses.push((id, Status::Class(ClassStatus { conditions })));
        }
    }
    let attached_sets = attached_sets(ctx, topology);
    for (at, source) in topology.sources.iter().enumerate() {
        let attached = (source.id.kind == Kind::Gateway).then(|| attached_sets.get(&source.gateway).copied().unwrap_or(0));
        statuses.push((source.id.clone(), Status::Listeners(listeners(ctx, topology, at, source, attached))));
    }
    let mut shared = Shared { parents: Lookup::default(), controller: ctx.snapshot.options.controller_name.as_str().into() };
    for route in routes {
        statuses.push((route.id.clone(), Status::Route(self::route(ctx, &mut shared, route))));
    }
    statuses.into_iter().collect()
}

/// The findings of an object, as far as `scope` takes them.
fn of<'f>(ctx: &'f Ctx<'_>, id: &ObjectRef, scope: impl Fn(Scope) -> bool) -> Vec<&'f Finding> {
    let start = ctx.findings.partition_point(|f| f.object < *id);
    let own = ctx.findings[start..].iter().take_while(|f| f.object == *id);
    own.filter(|f| scope(f.scope)).collect()
}

fn generation_of_class(ctx: &Ctx<'_>, name: &str) -> Option<i64> {
    ctx.snapshot.gateway_classes.get("", name).and_then(|c| c.metadata.generation)
}

/// Accepted ListenerSets of each Gateway: those that are allowed and have a listener that is accepted.
fn attached_sets(ctx: &Ctx<'_>, topology: &Topology<'_>) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for source in topology.sources.iter().filter(|s| s.id.kind == Kind::ListenerSet && s.refused.is_none()) {
        let conditions = fold(&[ACCEPTED], &of(ctx, &source.id, |s| s == Scope::Object), None);
        if holds(&conditions, "Accepted") {
            *counts.entry(source.gateway).or_default() += 1;
        }
    }
    counts
}

fn listeners(ctx: &Ctx<'_>, topology: &Topology<'_>, at: usize, source: &Source<'_>, attached: Option<usize>) -> ListenersStatus {
    let own = of(ctx, &source.id, |s| s == Scope::Object);
    let verdict = fold(&[ACCEPTED], &own, None);
    let accepted = holds(&verdict, "Accepted");
    // A Gateway whose own listeners are all invalid still serves those of its ListenerSets (S3 "Programmed").
    let extended = source.refused.is_none() && attached.is_some_and(|sets| sets > 0);
    let dedicated = matches!(topology.gateways[source.gateway].plane, PlaneId::Gateway { .. });
    let programmed = match (accepted || extended, dedicated) {
        // The reason of the one is that of the other (GEP-1713); a Gateway keeps the one that S3 "Programmed" gives it.
        (false, _) if source.id.kind == Kind::ListenerSet => {
            let reason = verdict.first().map_or(NOT_PROGRAMMED.reason, |c| c.reason);
            Verdict { reason, ..NOT_PROGRAMMED }
        }
        (false, _) => NOT_PROGRAMMED,
        (true, true) => PENDING,
        (true, false) => PROGRAMMED,
    };
    let each = topology.listeners[source.listeners.clone()].iter().map(|listener| {
        debug_assert_eq!(listener.source, at, "a source's range holds its own listeners");
        let found = of(ctx, &source.id, |s| s == Scope::Listener(listener.index));
        let served = source.refused.is_none() && listener.accepted && programmed.status != ConditionStatus::False;
        let programmed = if served { programmed } else { NOT_PROGRAMMED };
        let expected = [ACCEPTED, NO_CONFLICTS, RESOLVED, programmed];
        ListenerStatus {
            name: listener.view.name.to_owned(),
            attached_routes: listener.attached,
            supported_kinds: listener.supported_kinds(),
            conditions: fold(&expected, &found, source.generation),
        }
    });
    ListenersStatus {
        listeners: each.collect(),
        attached_listener_sets: attached,
        conditions: fold(&[ACCEPTED, programmed], &own, source.generation),
    }
}

/// What statuses of routes repeat.
struct Shared<'s> {
    parents: Lookup<ParentRef<'s>, Arc<ParentRefStatus>>,
    controller: Arc<str>,
}

fn route<'s>(ctx: &Ctx<'_>, shared: &mut Shared<'s>, route: &Judged<'s>) -> RouteStatus {
    let parents = route.parents.iter().map(|parent| {
        let found = of(ctx, route.id, |s| s == Scope::Object || s == Scope::Parent(parent.index));
        let mut conditions: Vec<Condition> = fold(&[ACCEPTED, RESOLVED], &found, route.generation);
        // What a route serves only in part, or not at all, it first has to serve.
        if !holds(&conditions, "Accepted") {
            conditions.retain(|c| matches!(c.r#type, "Accepted" | "ResolvedRefs"));
        }
        let reference = &route.references[parent.index];
        let parent_ref = shared.parents.get_or_insert_with(*reference, || {
            Arc::new(ParentRefStatus {
                group: reference.group.to_owned(),
                kind: reference.kind.to_owned(),
                namespace: reference.namespace.map(str::to_owned),
                name: reference.name.to_owned(),
                section_name: reference.section_name.map(str::to_owned),
                port: reference.port,
            })
        });
        ParentStatus { parent_ref: Arc::clone(parent_ref), controller_name: Arc::clone(&shared.controller), conditions }
    });
    RouteStatus { parents: parents.collect() }
}
