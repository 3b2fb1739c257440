//! Everything a verdict depends on, as one immutable value: objects, how completely each kind was read, the time, and the
//! operator's settings. A [`Snapshot`] exists only after its builder has finished: there is no half-read one. No verdicts here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::HashSet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::id::{Kind, ObjectRef};
use super::ir;
use super::resource::gateway_api::backend_tls_policy::BackendTlsPolicy;
use super::resource::gateway_api::gateway::Gateway;
use super::resource::gateway_api::gateway_class::GatewayClass;
use super::resource::gateway_api::grpc_route::GrpcRoute;
use super::resource::gateway_api::http_route::HttpRoute;
use super::resource::gateway_api::listener_set::ListenerSet;
use super::resource::gateway_api::reference_grant::ReferenceGrant;
use super::resource::gateway_api::tcp_route::TcpRoute;
use super::resource::gateway_api::tls_route::TlsRoute;
use super::resource::gateway_api::udp_route::UdpRoute;
use super::resource::{ExternalBackend, GatewayClassConfig, GatewayConfig};

mod object;

use self::object::Content;
pub use self::object::{InvalidObject, Object};

/// The controllerName of classes that are served over a tunnel.
pub const TUNNEL_CONTROLLER: &str = "cf.k8s.lex.la/tunnel-controller";
/// The controllerName of classes whose planes bind their listener ports.
pub const DIRECT_CONTROLLER: &str = "cf.k8s.lex.la/direct-controller";

/// How completely a kind was read. What is missing from a kind that is not complete is unknown, never "not found".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Everything there is.
    Complete,
    /// The source holds no object of the kind: a folder without any, or a cluster without the CRD.
    NotProvided,
    /// Reading it failed, for this reason.
    Unreadable(String),
    /// We may not read it.
    Forbidden,
}

/// A backend given by hand, in place of what EndpointSlices say: `--backend`, `--demo-backends`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePort {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name. The Service itself need not exist.
    pub name: String,
    /// The port as a backendRef names it.
    pub port: u16,
}

/// Settings that verdicts depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The controllerName of the classes we serve.
    pub controller_name: String,
    /// The class that is ours even when its object is missing (`--gateway-class`).
    pub gateway_class: String,
    /// Serves every Gateway from the one plane [`PlaneId::Local`](super::translate::PlaneId): `serve local`, offline verbs.
    pub single_plane: bool,
    /// Takes loopback addresses from EndpointSlices. The API server allows them to nobody; a folder may have them.
    pub allow_loopback_endpoints: bool,
    /// The transport is pinned to QUIC, which carries no trailers: GRPCRoutes are refused (X16).
    pub quic_pinned: bool,
    /// Settings that planes receive.
    pub plane: ir::Options,
    /// Backends given by hand.
    pub backends: BTreeMap<ServicePort, Vec<SocketAddr>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controller_name: TUNNEL_CONTROLLER.to_owned(),
            gateway_class: "cloudflare-tunnel".to_owned(),
            single_plane: false,
            allow_loopback_endpoints: false,
            quic_pinned: false,
            plane: ir::Options::default(),
            backends: BTreeMap::new(),
        }
    }
}

/// The objects of one kind, by namespace and name. A sorted list: it is walked far more often than it is asked for one object,
/// and made anew for each snapshot.
pub struct Objects<T>(Vec<(ObjectRef, Arc<T>)>);

impl<T> Objects<T> {
    /// The object of this name; the namespace is empty for a cluster-scoped kind.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        let at = self.0.binary_search_by(|(id, _)| id.key().cmp(&(namespace, name))).ok()?;
        self.0.get(at).map(|(_, object)| &**object)
    }

    /// Every object with what names it, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectRef, &T)> {
        self.0.iter().map(|(id, object)| (id, &**object))
    }

    /// Every object, in order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, object)| &**object)
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sort(&mut self) {
        self.0.sort_by(|(a, _), (b, _)| a.key().cmp(&b.key()));
    }
}

impl<T> Clone for Objects<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Everything a verdict depends on.
#[derive(Clone)]
#[expect(missing_docs, reason = "each field holds the objects of the kind of the same name, by namespace and name")]
pub struct Snapshot {
    /// The time of the verdict.
    pub now: Timestamp,
    /// The operator's settings.
    pub options: Options,
    coverage: BTreeMap<Kind, Coverage>,
    pub gateway_classes: Objects<GatewayClass>,
    pub gateway_class_configs: Objects<GatewayClassConfig>,
    pub gateways: Objects<Gateway>,
    pub gateway_configs: Objects<GatewayConfig>,
    pub listener_sets: Objects<ListenerSet>,
    pub http_routes: Objects<HttpRoute>,
    pub grpc_routes: Objects<GrpcRoute>,
    pub tls_routes: Objects<TlsRoute>,
    pub tcp_routes: Objects<TcpRoute>,
    pub udp_routes: Objects<UdpRoute>,
    pub backend_tls_policies: Objects<BackendTlsPolicy>,
    pub reference_grants: Objects<ReferenceGrant>,
    pub external_backends: Objects<ExternalBackend>,
    pub namespaces: Objects<Namespace>,
    pub services: Objects<Service>,
    pub endpoint_slices: Objects<EndpointSlice>,
    pub secrets: Objects<Secret>,
    pub config_maps: Objects<ConfigMap>,
}

impl Snapshot {
    /// How completely a kind was read.
    pub fn coverage(&self, kind: Kind) -> &Coverage {
        self.coverage.get(&kind).unwrap_or(&Coverage::NotProvided)
    }

    /// Whether what is missing from the kind does not exist.
    pub fn is_complete(&self, kind: Kind) -> bool {
        *self.coverage(kind) == Coverage::Complete
    }

    /// Objects in it.
    pub fn len(&self) -> usize {
        Kind::ALL.into_iter().map(|kind| self.count(kind)).sum()
    }

    /// Whether it holds no object at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::GatewayClass => self.gateway_classes.len(),
            Kind::GatewayClassConfig => self.gateway_class_configs.len(),
            Kind::Gateway => self.gateways.len(),
            Kind::GatewayConfig => self.gateway_configs.len(),
            Kind::ListenerSet => self.listener_sets.len(),
            Kind::HttpRoute => self.http_routes.len(),
            Kind::GrpcRoute => self.grpc_routes.len(),
            Kind::TlsRoute => self.tls_routes.len(),
            Kind::TcpRoute => self.tcp_routes.len(),
            Kind::UdpRoute => self.udp_routes.len(),
            Kind::BackendTlsPolicy => self.backend_tls_policies.len(),
            Kind::ReferenceGrant => self.reference_grants.len(),
            Kind::ExternalBackend => self.external_backends.len(),
            Kind::Namespace => self.namespaces.len(),
            Kind::Service => self.services.len(),
            Kind::EndpointSlice => self.endpoint_slices.len(),
            Kind::Secret => self.secrets.len(),
            Kind::ConfigMap => self.config_maps.len(),
        }
    }
}

/// Says how much it holds and shows none of it, since some of it is Secrets.
impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = Kind::ALL.into_iter().map(|kind| (kind, self.count(kind))).filter(|(_, count)| *count > 0);
        f.debug_map().entries(held).finish()
    }
}

/// An object was already there; the first one stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is given more than once; the first one counts")]
pub struct DuplicateObject(pub ObjectRef);

/// Collects objects until a [`Snapshot`] is complete.
#[derive(Debug)]
pub struct SnapshotBuilder {
    /// Not sorted yet.
    snapshot: Snapshot,
    given: HashSet<ObjectRef>,
}

impl SnapshotBuilder {
    /// Starts an empty snapshot.
    pub fn new(now: Timestamp, options: Options) -> Self {
        Self {
            snapshot: Snapshot {
                now,
                options,
                coverage: BTreeMap::new(),
                gateway_classes: Objects::default(),
                gateway_class_configs: Objects::default(),
                gateways: Objects::default(),
                gateway_configs: Objects::default(),
                listener_sets: Objects::default(),
                http_routes: Objects::default(),
                grpc_routes: Objects::default(),
                tls_routes: Objects::default(),
                tcp_routes: Objects::default(),
                udp_routes: Objects::default(),
                backend_tls_policies: Objects::default(),
                reference_grants: Objects::default(),
                external_backends: Objects::default(),
                namespaces: Objects::default(),
                services: Objects::default(),
                endpoint_slices: Objects::default(),
                secrets: Objects::default(),
                config_maps: Objects::default(),
            },
            given: HashSet::default(),
        }
    }

    /// Adds an object. One that is already there stays, and the second is reported.
    pub fn insert(&mut self, object: Object) -> Result<(), DuplicateObject> {
        let id = object.object_ref().clone();
        if !self.given.insert(id.clone()) {
            return Err(DuplicateObject(id));
        }
        let s = &mut self.snapshot;
        match object.content {
            Content::GatewayClass(o) => s.gateway_classes.0.push((id, o)),
            Content::GatewayClassConfig(o) => s.gateway_class_configs.0.push((id, o)),
            Content::Gateway(o) => s.gateways.0.push((id, o)),
            Content::GatewayConfig(o) => s.gateway_configs.0.push((id, o)),
            Content::ListenerSet(o) => s.listener_sets.0.push((id, o)),
            Content::HttpRoute(o) => s.http_routes.0.push((id, o)),
            Content::GrpcRoute(o) => s.grpc_routes.0.push((id, o)),
            Content::TlsRoute(o) => s.tls_routes.0.push((id, o)),
            Content::TcpRoute(o) => s.tcp_routes.0.push((id, o)),
            Content::UdpRoute(o) => s.udp_routes.0.push((id, o)),
            Content::BackendTlsPolicy(o) => s.backend_tls_policies.0.push((id, o)),
            Content::ReferenceGrant(o) => s.reference_grants.0.push((id, o)),
            Content::ExternalBackend(o) => s.external_backends.0.push((id, o)),
            Content::Namespace(o) => s.namespaces.0.push((id, o)),
            Content::Service(o) => s.services.0.push((id, o)),
            Content::EndpointSlice(o) => s.endpoint_slices.0.push((id, o)),
            Content::Secret(o) => s.secrets.0.push((id, o)),
            Content::ConfigMap(o) => s.config_maps.0.push((id, o)),
        }
        Ok(())
    }

    /// Says how completely a kind was read. What is not said is decided by [`finish`](Self::finish).
    pub fn set_coverage(&mut self, kind: Kind, coverage: Coverage) {
        self.snapshot.coverage.insert(kind, coverage);
    }

    /// The snapshot. A kind without a stated coverage is complete when there is any object of it, else not provided: a folder
    /// that holds some Services is taken to hold all of them, one that holds none says nothing about Services.
    ///
    /// Namespaces and Secrets are the exception: those that are not provided stay unknown, since folders rarely hold every
    /// Namespace that they use, and should not hold Secrets.
    pub fn finish(mut self) -> Snapshot {
        let s = &mut self.snapshot;
        s.gateway_classes.sort();
        s.gateway_class_configs.sort();
        s.gateways.sort();
        s.gateway_configs.sort();
        s.listener_sets.sort();
        s.http_routes.sort();
        s.grpc_routes.sort();
        s.tls_routes.sort();
        s.tcp_routes.sort();
        s.udp_routes.sort();
        s.backend_tls_policies.sort();
        s.reference_grants.sort();
        s.external_backends.sort();
        s.namespaces.sort();
        s.services.sort();
        s.endpoint_slices.sort();
        s.secrets.sort();
        s.config_maps.sort();
        for kind in Kind::ALL {
            let partial = matches!(kind, Kind::Namespace | Kind::Secret);
            if !self.snapshot.coverage.contains_key(&kind) && !partial && self.snapshot.count(kind) > 0 {
                self.snapshot.coverage.insert(kind, Coverage::Complete);
            }
        }
        self.snapshot
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str) -> Object {
        Object::from_json(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "a"}}))
            .expect("a service")
    }

    #[test]
    fn a_second_object_of_the_same_name_is_reported_and_ignored() {
        let mut builder = SnapshotBuilder::new(Timestamp::UNIX_EPOCH, Options::default());
        assert_eq!(builder.insert(service("web")), Ok(()));
        let error = builder.insert(service("web")).expect_err("the second");
        assert_eq!(error.0, ObjectRef::new(Kind::Service, "a", "web"));
        assert_eq!(builder.finish().len(), 1);
    }

    #[test]
    fn nothing_of_a_secret_is_shown() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "hunter2"}});
        let secret = Object::from_json(secret).expect("a secret");
        let mut builder = SnapshotBuilder::new(Timestamp::UNIX_EPOCH, Options::default());
        builder.insert(secret.clone()).expect("the first");
        let shown = format!("{secret:?} {builder:?}");
        assert!(shown.contains("Secret: 1") && !shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }

    #[test]
    fn kinds_of_which_there_are_objects_are_complete() {
        let mut builder = SnapshotBuilder::new(Timestamp::UNIX_EPOCH, Options::default());
        builder.insert(service("web")).expect("the first");
        builder.set_coverage(Kind::Secret, Coverage::Forbidden);
        let snapshot = builder.finish();
        assert!(snapshot.is_complete(Kind::Service));
        assert_eq!(snapshot.coverage(Kind::EndpointSlice), &Coverage::NotProvided);
        assert_eq!(snapshot.coverage(Kind::Secret), &Coverage::Forbidden);
    }
}
