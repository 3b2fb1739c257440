//! What rules of HTTPRoutes and GRPCRoutes have in common: filters, backends with their weights, and failing closed. How a match
//! is written differs by kind and lives in the kind's own file.

use std::fmt::{Arguments, Display};
use std::sync::Arc;

use super::PlaneId;
use super::backend::{Backends, Outcome, Usable};
use super::ctx::Ctx;
use super::filter::{self, Place};
use super::reference_grant::Grants;
use crate::gateway::finding::{Code, Finding};
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::ir::{self, RedirectPort, RouteKind, Target};
use crate::gateway::resource::view::{BackendRef, Filter};

/// The rules of one route on one plane, as they are built.
pub(super) struct Rules<'c, 's> {
    pub(super) ctx: &'c mut Ctx<'s>,
    pub(super) backends: &'c mut Backends<'s>,
    pub(super) grants: &'c Grants<'s>,
    pub(super) kind: RouteKind,
    pub(super) object: &'s ObjectRef,
    /// None while the route attaches to nothing and is only judged.
    pub(super) plane: Option<&'c PlaneId>,
    pub(super) listener_port: RedirectPort,
    built: Vec<ir::Rule>,
    used: Vec<Arc<Usable>>,
    verdicts: Verdicts,
}

/// The rules of one route on one plane.
pub(super) struct Built {
    pub(super) rules: Vec<ir::Rule>,
    /// The backends that they lead to.
    pub(super) used: Vec<Arc<Usable>>,
    /// Whether there are rules, and none of them is served as written.
    pub(super) all_refused: bool,
}

/// How many rules are refused, and why.
#[derive(Default)]
struct Verdicts {
    rules: usize,
    refused: usize,
    incompatible: usize,
}

/// One rule, kind by kind the same.
pub(super) struct Draft<'s> {
    pub(super) index: usize,
    pub(super) name: Option<&'s str>,
    /// None when a match cannot be used: the rule is dropped, since a match that never compiles can serve nothing.
    pub(super) matches: Option<Vec<ir::Match>>,
    pub(super) filters: Vec<Filter<'s>>,
    pub(super) backends: Vec<(BackendRef<'s>, Vec<Filter<'s>>)>,
    /// Whether every match is by path prefix.
    pub(super) prefix_only: bool,
    pub(super) response_timeout_ms: Option<u64>,
}

impl<'c, 's> Rules<'c, 's> {
    pub(super) fn new(
        ctx: &'c mut Ctx<'s>,
        backends: &'c mut Backends<'s>,
        grants: &'c Grants<'s>,
        route: (RouteKind, &'s ObjectRef),
        plane: Option<&'c PlaneId>,
        listener_port: RedirectPort,
    ) -> Self {
        let (kind, object) = route;
        Self {
            ctx,
            backends,
            grants,
            kind,
            object,
            plane,
            listener_port,
            built: Vec::new(),
            used: Vec::new(),
            verdicts: Verdicts::default(),
        }
    }

    /// Makes room for so many rules and no more: a document may have very many of them.
    pub(super) fn reserve(&mut self, rules: usize) {
        self.built.reserve_exact(rules);
    }

    /// Reports something about a rule of the route.
    pub(super) fn report(&mut self, code: Code, rule: usize, field: impl Display, message: String) {
        let field = format!("spec.rules[{rule}].{field}");
        self.ctx.findings.push(Finding::new(code, self.object, field, message).rule(rule));
    }

    /// Whether an expression can be used; reported when not.
    pub(super) fn pattern_compiles(&mut self, rule: usize, field: Arguments<'_>, pattern: &str) -> bool {
        let error = self.ctx.invalid_pattern(pattern);
        if let Some(error) = &error {
            self.report(Code::PatternInvalid, rule, field, format!("rule {rule} is dropped: {error}"));
        }
        error.is_none()
    }

    /// Adds a rule, refused or not.
    pub(super) fn add(&mut self, draft: Draft<'s>) {
        self.verdicts.rules += 1;
        let place = Place { listener_port: self.listener_port, prefix_only: draft.prefix_only };
        let refusal = self.incompatible(&draft);
        self.verdicts.incompatible += usize::from(refusal.is_some());
        let (filters, unsupported) = self.filters(&draft, place);
        let refusal = refusal.or(unsupported);
        let backends = self.backends(&draft, place);
        if refusal.is_none() {
            self.removed_handshake_headers(draft.index, &filters, &backends);
        }
        let Some(matches) = draft.matches else {
            self.verdicts.refused += 1;
            return;
        };
        self.verdicts.refused += usize::from(refusal.is_some());
        let answers = filters.iter().any(|f| matches!(f, ir::Filter::Redirect(_)));
        if refusal.is_none() && !answers && backends.iter().all(|b| b.weight == 0) {
            let what = if draft.backends.is_empty() { "has no backendRefs" } else { "has no backendRef with a weight" };
            let message = format!("rule {} {what}: what it matches gets 500", draft.index);
            self.report(Code::RuleWithoutBackends, draft.index, "backendRefs", message);
        }
        let refused = refusal.is_some();
        self.built.push(ir::Rule {
            index: draft.index,
            name: draft.name.map(str::to_owned),
            matches,
            filters: if refused { Vec::new() } else { filters },
            backends: if refused { Vec::new() } else { backends },
            response_timeout_ms: draft.response_timeout_ms,
            refusal,
        });
    }

    /// Says on the route when no rule of it is served as written.
    pub(super) fn finish(self) -> Built {
        let Verdicts { rules, refused, incompatible } = self.verdicts;
        let all_refused = rules > 0 && refused == rules;
        if all_refused {
            let (code, message) = if incompatible == rules {
                (Code::EveryRuleIncompatible, "every rule combines RequestRedirect with URLRewrite")
            } else {
                (Code::EveryRuleUnsupported, "no rule can be served as written")
            };
            self.ctx.report(code, self.object, "spec.rules", message);
        }
        Built { rules: self.built, used: self.used, all_refused }
    }

    /// A redirect and a rewrite on one rule, wherever they sit: the schema checks each list on its own.
    fn incompatible(&mut self, draft: &Draft<'s>) -> Option<String> {
        let all = || draft.filters.iter().chain(draft.backends.iter().flat_map(|(_, filters)| filters));
        let both = all().any(|f| matches!(f, Filter::Redirect(_))) && all().any(|f| matches!(f, Filter::Rewrite(_)));
        both.then(|| {
            let message = format!("rule {} combines RequestRedirect with URLRewrite", draft.index);
            self.report(Code::FiltersIncompatible, draft.index, "filters", message.clone());
            message
        })
    }

    fn filters(&mut self, draft: &Draft<'s>, place: Place) -> (Vec<ir::Filter>, Option<String>) {
        let mut filters = Vec::with_capacity(draft.filters.len());
        let mut refusal = None;
        for (at, filter) in filter::filters(&draft.filters, place) {
            match filter {
                Ok(filter) => filters.push(filter),
                Err(refused) => {
                    let message = format!("rule {} is refused: {}", draft.index, refused.message);
                    self.report(filter::rule_code(&refused), draft.index, format_args!("filters[{at}]"), message.clone());
                    refusal.get_or_insert(message);
                }
            }
        }
        (filters, refusal)
    }

    fn backends(&mut self, draft: &Draft<'s>, place: Place) -> Vec<ir::WeightedBackend> {
        if let (false, Some(plane)) = (draft.backends.is_empty(), self.plane) {
            for kind in [Kind::Service, Kind::EndpointSlice, Kind::BackendTlsPolicy] {
                self.ctx.depends(plane, kind);
            }
        }
        let mut weighted = Vec::with_capacity(draft.backends.len());
        for (at, (reference, filters)) in draft.backends.iter().enumerate() {
            if let Some(backend) = self.backend(draft, place, at, reference, filters) {
                weighted.push(backend);
            }
        }
        weighted
    }

    fn backend(
        &mut self,
        draft: &Draft<'s>,
        place: Place,
        at: usize,
        reference: &BackendRef<'s>,
        filters: &[Filter<'s>],
    ) -> Option<ir::WeightedBackend> {
        let rule = draft.index;
        if let (true, Some(plane)) = (reference.namespace.is_some_and(|n| n != self.object.namespace()), self.plane) {
            self.ctx.depends(plane, Kind::ReferenceGrant);
        }
        let field = format_args!("backendRefs[{at}]");
        let weight = u32::try_from(reference.weight).unwrap_or_else(|_| {
            let message = format!("the weight {} is below zero; zero is used", reference.weight);
            self.report(Code::BackendWeightInvalid, rule, format_args!("{field}.weight"), message);
            0
        });
        let target = match self.backends.resolve(self.ctx, self.grants, (self.kind, self.object), reference) {
            Outcome::Usable(usable) => {
                if let Some((code, message)) = &usable.note {
                    self.report(*code, rule, field, message.clone());
                }
                if usable.backend.endpoints.is_empty() {
                    let (service, port) = (&usable.backend.object, usable.backend.port);
                    if self.ctx.snapshot.is_complete(Kind::EndpointSlice) {
                        let message = format!("{service} has no ready endpoint for port {port}");
                        self.report(Code::BackendWithoutEndpoints, rule, field, message);
                    } else {
                        let message = format!("cannot tell whether {service} has a ready endpoint for port {port}");
                        self.report(Code::EndpointsUnknown, rule, field, message);
                    }
                }
                let key = usable.key.clone();
                if !self.used.iter().any(|used| used.number == usable.number) {
                    self.used.push(usable);
                }
                Target::Backend(key)
            }
            Outcome::Unusable(code, message) => {
                self.report(code, rule, field, message.clone());
                Target::Invalid(message)
            }
        };
        let mut kept = Vec::with_capacity(filters.len());
        let mut refusal = None;
        for (index, filter) in filter::filters(filters, place) {
            match filter {
                Ok(filter) => kept.push(filter),
                Err(refused) => {
                    let message = format!("backendRef {at} of rule {rule} is refused: {}", refused.message);
                    let field = format_args!("{field}.filters[{index}]");
                    self.report(filter::backend_code(&refused), rule, field, message.clone());
                    refusal.get_or_insert(message);
                }
            }
        }
        let (target, filters) = match (target, refusal) {
            (target @ Target::Invalid(_), _) => (target, Vec::new()),
            (_, Some(message)) => (Target::Invalid(message), Vec::new()),
            (target, None) => (target, kept),
        };
        // No traffic, no fraction to keep.
        let dropped = weight == 0 && matches!(target, Target::Invalid(_));
        (!dropped).then_some(ir::WeightedBackend { index: at, weight, target, filters })
    }

    /// Filters that break a WebSocket handshake, where a backend is marked for WebSocket (X12).
    fn removed_handshake_headers(&mut self, rule: usize, filters: &[ir::Filter], backends: &[ir::WeightedBackend]) {
        let marked = |backend: &&ir::WeightedBackend| match &backend.target {
            Target::Backend(key) => self.used.iter().any(|u| u.key == *key && u.backend.websocket),
            Target::Invalid(_) => false,
        };
        let marked: Vec<&ir::WeightedBackend> = backends.iter().filter(marked).collect();
        if marked.is_empty() {
            return;
        }
        let of_rule = filter::removed_handshake_headers(filters).map(|h| (h, "filters".to_owned()));
        let of_backends = marked.iter().flat_map(|b| {
            filter::removed_handshake_headers(&b.filters).map(|h| (h, format!("backendRefs[{}].filters", b.index)))
        });
        for (header, field) in of_rule.chain(of_backends) {
            let message = format!("rule {rule}: {header} is removed from responses, which breaks every WebSocket handshake");
            self.report(Code::HandshakeHeaderRemoved, rule, field, message);
        }
    }
}
