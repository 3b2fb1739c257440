//! Everything a verdict depends on, as one immutable value: objects, how completely each kind was read, the time, and the
//! operator's settings. A [`Snapshot`] exists only after its builder has finished: there is no half-read one. No verdicts here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

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

pub use self::object::{InvalidObject, Object};

/// The controllerName of classes that are served over a tunnel.
pub const TUNNEL_CONTROLLER: &str = "cf.k8s.lex.la/tunnel-controller";
/// The controllerName of classes whose planes bind their listener ports.
pub const DIRECT_CONTROLLER: &str = "cf.k8s.lex.la/direct-controller";

/// Namespace and name; the namespace is empty for a cluster-scoped kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// A namespaced key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl From<&ObjectRef> for Key {
    fn from(object: &ObjectRef) -> Self {
        Self::new(object.namespace.clone(), object.name.clone())
    }
}

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

type Objects<T> = BTreeMap<Key, Arc<T>>;

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
    snapshot: Snapshot,
}

impl SnapshotBuilder {
    /// Starts an empty snapshot.
    pub fn new(now: Timestamp, options: Options) -> Self {
        Self {
            snapshot: Snapshot {
                now,
                options,
                coverage: BTreeMap::new(),
                gateway_classes: BTreeMap::new(),
                gateway_class_configs: BTreeMap::new(),
                gateways: BTreeMap::new(),
                gateway_configs: BTreeMap::new(),
                listener_sets: BTreeMap::new(),
                http_routes: BTreeMap::new(),
                grpc_routes: BTreeMap::new(),
                tls_routes: BTreeMap::new(),
                tcp_routes: BTreeMap::new(),
                udp_routes: BTreeMap::new(),
                backend_tls_policies: BTreeMap::new(),
                reference_grants: BTreeMap::new(),
                external_backends: BTreeMap::new(),
                namespaces: BTreeMap::new(),
                services: BTreeMap::new(),
                endpoint_slices: BTreeMap::new(),
                secrets: BTreeMap::new(),
                config_maps: BTreeMap::new(),
            },
        }
    }

    /// Adds an object. One that is already there stays, and the second is reported.
    pub fn insert(&mut self, object: Object) -> Result<(), DuplicateObject> {
        let id = object.object_ref();
        let key = Key::from(&id);
        let s = &mut self.snapshot;
        let added = match object {
            Object::GatewayClass(o) => add(&mut s.gateway_classes, key, o),
            Object::GatewayClassConfig(o) => add(&mut s.gateway_class_configs, key, o),
            Object::Gateway(o) => add(&mut s.gateways, key, o),
            Object::GatewayConfig(o) => add(&mut s.gateway_configs, key, o),
            Object::ListenerSet(o) => add(&mut s.listener_sets, key, o),
            Object::HttpRoute(o) => add(&mut s.http_routes, key, o),
            Object::GrpcRoute(o) => add(&mut s.grpc_routes, key, o),
            Object::TlsRoute(o) => add(&mut s.tls_routes, key, o),
            Object::TcpRoute(o) => add(&mut s.tcp_routes, key, o),
            Object::UdpRoute(o) => add(&mut s.udp_routes, key, o),
            Object::BackendTlsPolicy(o) => add(&mut s.backend_tls_policies, key, o),
            Object::ReferenceGrant(o) => add(&mut s.reference_grants, key, o),
            Object::ExternalBackend(o) => add(&mut s.external_backends, key, o),
            Object::Namespace(o) => add(&mut s.namespaces, key, o),
            Object::Service(o) => add(&mut s.services, key, o),
            Object::EndpointSlice(o) => add(&mut s.endpoint_slices, key, o),
            Object::Secret(o) => add(&mut s.secrets, key, o),
            Object::ConfigMap(o) => add(&mut s.config_maps, key, o),
        };
        if added { Ok(()) } else { Err(DuplicateObject(id)) }
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
        for kind in Kind::ALL {
            let partial = matches!(kind, Kind::Namespace | Kind::Secret);
            if !self.snapshot.coverage.contains_key(&kind) && !partial && self.snapshot.count(kind) > 0 {
                self.snapshot.coverage.insert(kind, Coverage::Complete);
            }
        }
        self.snapshot
    }
}

fn add<T>(objects: &mut Objects<T>, key: Key, object: Arc<T>) -> bool {
    match objects.entry(key) {
        std::collections::btree_map::Entry::Vacant(entry) => {
            entry.insert(object);
            true
        }
        std::collections::btree_map::Entry::Occupied(_) => false,
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
