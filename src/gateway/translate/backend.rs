//! What a backendRef leads to: a Service's endpoints with the protocol to speak, or the reason why its share gets 500. A reference
//! that cannot be used keeps its weight; a Service without ready endpoints stays a backend and answers 503 (S3 "Unavailable
//! backends return a status, not a dial error").

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort as Port};

use super::ctx::{Ctx, name, namespace};
use super::endpoint::Endpoints;
use super::reference_grant::{From as Referrer, Grants, To};
use crate::gateway::finding::Code;
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::ir::{self, BackendKey, BackendProtocol, RouteKind};
use crate::gateway::lookup::Lookup;
use crate::gateway::resource::gateway_api::backend_tls_policy::BackendTlsPolicy;
use crate::gateway::resource::view::BackendRef;
use crate::gateway::snapshot::{ServicePort, Snapshot};

/// What a backendRef leads to.
#[derive(Clone)]
pub(super) enum Outcome {
    /// A backend, and what is to be said about it.
    Usable(Arc<Usable>),
    /// Nothing that can be served.
    Unusable(Code, String),
}

/// A backend that can be served.
#[derive(Clone)]
pub(super) struct Usable {
    /// Tells it from the others.
    pub(super) number: usize,
    pub(super) key: BackendKey,
    pub(super) backend: ir::Backend,
    pub(super) note: Option<(Code, String)>,
}

/// Backends of a snapshot, each resolved once however many rules lead to it.
pub(super) struct Backends<'s> {
    services: Lookup<(&'s str, &'s str), (&'s ObjectRef, &'s Service)>,
    endpoints: Endpoints<'s>,
    /// BackendTLSPolicies by the Service that they target.
    policies: BTreeMap<(&'s str, &'s str), Vec<Target<'s>>>,
    resolved: Lookup<(&'s str, &'s str, u16, RouteKind), Outcome>,
}

struct Target<'s> {
    policy: &'s BackendTlsPolicy,
    section: Option<&'s str>,
}

impl<'s> Backends<'s> {
    pub(super) fn new(snapshot: &'s Snapshot) -> Self {
        let mut policies: BTreeMap<(&str, &str), Vec<Target<'_>>> = BTreeMap::new();
        for policy in snapshot.backend_tls_policies.values() {
            let targets = policy.spec.target_refs.iter();
            // `core` is no group, but whoever writes it wants TLS: overlooking the policy would dial in plain text.
            for target in targets.filter(|t| matches!((t.group.as_str(), t.kind.as_str()), ("" | "core", "Service"))) {
                let target_of = Target { policy, section: target.section_name.as_deref() };
                policies.entry((namespace(&policy.metadata), &target.name)).or_default().push(target_of);
            }
        }
        let services = snapshot.services.iter().map(|(id, service)| (id.key(), (id, service))).collect();
        Self { services, endpoints: Endpoints::new(snapshot), policies, resolved: Lookup::default() }
    }

    /// Resolves a reference from a route.
    pub(super) fn resolve(
        &mut self,
        ctx: &mut Ctx<'s>,
        grants: &Grants<'s>,
        route: (RouteKind, &'s ObjectRef),
        reference: &BackendRef<'s>,
    ) -> Outcome {
        let (kind, route) = route;
        let to_namespace = reference.namespace.unwrap_or_else(|| route.namespace());
        let from = Referrer { kind: route.kind.as_str(), namespace: route.namespace() };
        let to =
            To { group: reference.group, kind: reference.kind, namespace: to_namespace, name: reference.name, lenient: true };
        if !grants.permit(from, to) {
            let kind = reference.kind.to_ascii_lowercase();
            let wanted = format!("lets namespace {} use {kind} {to_namespace}/{}", route.namespace(), reference.name);
            return if ctx.cannot_read(Kind::ReferenceGrant) {
                Outcome::Unusable(Code::BackendUnknown, format!("cannot tell whether a ReferenceGrant {wanted}"))
            } else {
                Outcome::Unusable(Code::BackendNotPermitted, format!("no ReferenceGrant {wanted}"))
            };
        }
        match (reference.group, reference.kind) {
            ("" | "core", "Service") => {}
            ("multicluster.x-k8s.io", "ServiceImport") | ("cf.k8s.lex.la", "ExternalBackend") => {
                let message = format!("a backend of kind {} is not part of this version", reference.kind);
                return Outcome::Unusable(Code::BackendKindUnsupported, message);
            }
            (group, kind) => {
                let group = if group.is_empty() { "the core group" } else { group };
                return Outcome::Unusable(Code::BackendKindUnsupported, format!("{kind} of {group} is no kind of backend"));
            }
        }
        let Some(port) = reference.port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0) else {
            let message = reference.port.map_or_else(|| "a Service needs a port".to_owned(), |p| format!("{p} is no port"));
            return Outcome::Unusable(Code::BackendPortInvalid, message);
        };
        self.service(ctx, kind, to_namespace, reference.name, port)
    }

    fn service(&mut self, ctx: &mut Ctx<'s>, kind: RouteKind, namespace: &'s str, service: &'s str, port: u16) -> Outcome {
        let key = (namespace, service, port, kind);
        if let Some(outcome) = self.resolved.get(&key) {
            return outcome.clone();
        }
        let outcome = self.look_up(ctx, kind, namespace, service, port);
        self.resolved.insert(key, outcome.clone());
        outcome
    }

    fn look_up(&mut self, ctx: &mut Ctx<'s>, kind: RouteKind, namespace: &str, service: &str, port: u16) -> Outcome {
        let snapshot = ctx.snapshot;
        let given = given_by_hand(snapshot, namespace, service, port);
        let Some((id, object)) = self.services.get(&(namespace, service)).copied() else {
            return match given {
                Some(endpoints) => self.usable(kind, &ObjectRef::new(Kind::Service, namespace, service), port, None, endpoints),
                None if snapshot.is_complete(Kind::Service) => {
                    Outcome::Unusable(Code::BackendNotFound, format!("there is no service {namespace}/{service}"))
                }
                None => {
                    Outcome::Unusable(Code::BackendUnknown, format!("cannot tell whether service {namespace}/{service} exists"))
                }
            };
        };
        let spec = object.spec.as_ref();
        // A number may be declared twice, for TCP and for UDP, as HTTP/3 does; only the one for TCP can be dialed.
        let tcp = |p: &&Port| p.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
        let declared = spec.iter().flat_map(|s| s.ports.iter().flatten()).filter(tcp).find(|p| p.port == i32::from(port));
        if given.is_none() && spec.is_some_and(|s| s.type_.as_deref() == Some("ExternalName")) {
            let message =
                format!("service {namespace}/{service} is of type ExternalName, which lets its author send traffic anywhere");
            return Outcome::Unusable(Code::ExternalNameRefused, message);
        }
        if let Some(policy) = self.covering(object, declared) {
            let policy = ObjectRef::new(Kind::BackendTlsPolicy, namespace, name(&policy.metadata));
            ctx.report(Code::PolicyNotEnforced, &policy, "spec", "backend TLS is not part of this version");
            let message = format!("{policy} asks for TLS to service {namespace}/{service}, which is not part of this version");
            return Outcome::Unusable(Code::BackendTlsUnsupported, message);
        }
        if declared.is_none() && given.is_none() {
            let message = format!("service {namespace}/{service} has no TCP port {port}");
            return Outcome::Unusable(Code::BackendPortNotFound, message);
        }
        let app_protocol = declared.and_then(|p| p.app_protocol.as_deref());
        if let Some(tls @ ("https" | "HTTPS" | "kubernetes.io/wss")) = app_protocol {
            let message = format!(
                "port {port} of service {namespace}/{service} has appProtocol {tls}, and no BackendTLSPolicy says how to verify it"
            );
            return Outcome::Unusable(Code::BackendProtocolUnsupported, message);
        }
        let endpoints = match (given, declared) {
            (Some(endpoints), _) => endpoints,
            (None, Some(port)) => self.endpoints.of(ctx, (namespace, service), port),
            (None, None) => Vec::new(),
        };
        self.usable(kind, id, port, app_protocol, endpoints)
    }

    /// The policy that covers a port of a Service, if any. One that names a section covers the port of that name; when no port
    /// has it, every port, since whoever wrote it wants TLS and a misspelled name must not mean plain text.
    fn covering(&self, service: &Service, port: Option<&Port>) -> Option<&'s BackendTlsPolicy> {
        let targets = self.policies.get(&(namespace(&service.metadata), name(&service.metadata)))?;
        let name = port.and_then(|p| p.name.as_deref());
        let ports = || service.spec.iter().flat_map(|s| s.ports.iter().flatten());
        let covers = |section: &str| name == Some(section) || !ports().any(|p| p.name.as_deref() == Some(section));
        targets.iter().find(|t| t.section.is_none_or(covers)).map(|t| t.policy)
    }

    /// The protocol by `appProtocol` (X33; S3 "Backend Protocol", "gRPC backends and appProtocol").
    fn usable(
        &self,
        kind: RouteKind,
        service: &ObjectRef,
        port: u16,
        app_protocol: Option<&str>,
        endpoints: Vec<SocketAddr>,
    ) -> Outcome {
        let (protocol, note) = match (kind, app_protocol) {
            (RouteKind::Grpc, _) | (_, Some("kubernetes.io/h2c" | "grpc" | "http2")) => (BackendProtocol::H2c, None),
            (_, None | Some("http" | "kubernetes.io/ws")) => (BackendProtocol::Http1, None),
            (_, Some(other)) => {
                let message = format!("port {port} of {service} has the unknown appProtocol {other}; HTTP/1.1 is used");
                (BackendProtocol::Http1, Some((Code::BackendProtocolUnknown, message)))
            }
        };
        let suffix = match protocol {
            BackendProtocol::Http1 => "http1",
            BackendProtocol::H2c => "h2c",
        };
        let key =
            BackendKey([service.namespace(), "/", service.name(), ":", port.to_string().as_str(), "/", suffix].concat().into());
        let object = service.clone();
        let websocket = app_protocol == Some("kubernetes.io/ws");
        Outcome::Usable(Arc::new(Usable {
            number: self.resolved.len(),
            key,
            backend: ir::Backend { object, port, protocol, websocket, endpoints },
            note,
        }))
    }
}

fn given_by_hand(snapshot: &Snapshot, namespace: &str, name: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let backends = &snapshot.options.backends;
    if backends.is_empty() {
        return None;
    }
    let key = ServicePort { namespace: namespace.to_owned(), name: name.to_owned(), port };
    let mut endpoints = backends.get(&key)?.clone();
    endpoints.sort_unstable();
    endpoints.dedup();
    Some(endpoints)
}
