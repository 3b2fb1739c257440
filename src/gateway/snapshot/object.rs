//! One object as read from a cluster or a file, typed. Reads JSON values only: finding documents in files is the reader's work.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::resource::gateway_api::backend_tls_policy::BackendTlsPolicy;
use crate::gateway::resource::gateway_api::gateway::Gateway;
use crate::gateway::resource::gateway_api::gateway_class::GatewayClass;
use crate::gateway::resource::gateway_api::grpc_route::GrpcRoute;
use crate::gateway::resource::gateway_api::http_route::HttpRoute;
use crate::gateway::resource::gateway_api::listener_set::ListenerSet;
use crate::gateway::resource::gateway_api::reference_grant::ReferenceGrant;
use crate::gateway::resource::gateway_api::tcp_route::TcpRoute;
use crate::gateway::resource::gateway_api::tls_route::TlsRoute;
use crate::gateway::resource::gateway_api::udp_route::UdpRoute;
use crate::gateway::resource::{ExternalBackend, GatewayClassConfig, GatewayConfig};

/// An object of one of the kinds we read. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    id: ObjectRef,
    pub(super) content: Content,
}

/// What an object says, by its kind.
#[derive(Clone)]
pub(super) enum Content {
    GatewayClass(Arc<GatewayClass>),
    GatewayClassConfig(Arc<GatewayClassConfig>),
    Gateway(Arc<Gateway>),
    GatewayConfig(Arc<GatewayConfig>),
    ListenerSet(Arc<ListenerSet>),
    HttpRoute(Arc<HttpRoute>),
    GrpcRoute(Arc<GrpcRoute>),
    TlsRoute(Arc<TlsRoute>),
    TcpRoute(Arc<TcpRoute>),
    UdpRoute(Arc<UdpRoute>),
    BackendTlsPolicy(Arc<BackendTlsPolicy>),
    ReferenceGrant(Arc<ReferenceGrant>),
    ExternalBackend(Arc<ExternalBackend>),
    Namespace(Arc<Namespace>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
}

/// Why a value is no object that we can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidObject {
    /// The value is not a Kubernetes object at all: it lacks `apiVersion`, `kind` or a name.
    #[error("not a Kubernetes object: {0}")]
    NotAnObject(String),
    /// A kind that we do not read. Callers name it once and skip it.
    #[error("kind {kind} of {api_version} is not one we read")]
    UnknownKind {
        /// As written, such as `apps/v1`.
        api_version: String,
        /// As written, such as `Deployment`.
        kind: String,
    },
    /// A kind that we read, with content that does not fit its schema.
    #[error("{object}: {path}: {reason}")]
    Malformed {
        /// The object.
        object: ObjectRef,
        /// Where in it, such as `spec.listeners[0].port`.
        path: String,
        /// What is wrong there.
        reason: String,
    },
}

impl Object {
    /// Reads one object. Older served versions with the same schema are accepted: `v1beta1`, `v1alpha2` and `v1alpha3` of
    /// the Gateway API kinds that had them.
    ///
    /// A namespaced object without a namespace is of namespace `default`, as `kubectl apply` would have it.
    pub fn from_json(mut value: Value) -> Result<Self, InvalidObject> {
        if !value.is_object() {
            return Err(InvalidObject::NotAnObject("it is not a map".to_owned()));
        }
        let missing = |field: &str| InvalidObject::NotAnObject(format!("it has no {field}"));
        let api_version = text(&value, "/apiVersion")?.ok_or_else(|| missing("apiVersion"))?;
        let kind_name = text(&value, "/kind")?.ok_or_else(|| missing("kind"))?;
        let Some(kind) = known(&api_version, &kind_name) else {
            return Err(InvalidObject::UnknownKind { api_version, kind: kind_name });
        };
        let name = text(&value, "/metadata/name")?.ok_or_else(|| missing("metadata.name"))?;
        let object = if kind.is_namespaced() {
            let namespace = text(&value, "/metadata/namespace")?.unwrap_or_else(|| "default".to_owned());
            if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
                metadata.insert("namespace".to_owned(), Value::String(namespace.clone()));
            }
            ObjectRef::new(kind, namespace, name)
        } else {
            if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
                metadata.remove("namespace");
            }
            ObjectRef::cluster(kind, name)
        };
        value["apiVersion"] = Value::String(current_version(kind));
        fill_in(kind, &mut value);
        Ok(Self { content: Content::read(&object, value)?, id: object })
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.id.kind
    }

    /// Its kind, namespace and name.
    pub fn object_ref(&self) -> &ObjectRef {
        &self.id
    }
}

impl Content {
    fn read(object: &ObjectRef, value: Value) -> Result<Self, InvalidObject> {
        Ok(match object.kind {
            Kind::GatewayClass => Self::GatewayClass(read(object, value)?),
            Kind::GatewayClassConfig => Self::GatewayClassConfig(read(object, value)?),
            Kind::Gateway => Self::Gateway(read(object, value)?),
            Kind::GatewayConfig => Self::GatewayConfig(read(object, value)?),
            Kind::ListenerSet => Self::ListenerSet(read(object, value)?),
            Kind::HttpRoute => Self::HttpRoute(read(object, value)?),
            Kind::GrpcRoute => Self::GrpcRoute(read(object, value)?),
            Kind::TlsRoute => Self::TlsRoute(read(object, value)?),
            Kind::TcpRoute => Self::TcpRoute(read(object, value)?),
            Kind::UdpRoute => Self::UdpRoute(read(object, value)?),
            Kind::BackendTlsPolicy => Self::BackendTlsPolicy(read(object, value)?),
            Kind::ReferenceGrant => Self::ReferenceGrant(read(object, value)?),
            Kind::ExternalBackend => Self::ExternalBackend(read(object, value)?),
            Kind::Namespace => Self::Namespace(read(object, value)?),
            Kind::Service => Self::Service(read(object, value)?),
            Kind::EndpointSlice => Self::EndpointSlice(read(object, value)?),
            Kind::Secret => Self::Secret(read(object, value)?),
            Kind::ConfigMap => Self::ConfigMap(read(object, value)?),
        })
    }
}

/// Names the object and shows nothing of its content, which may be a Secret's.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({})", self.id)
    }
}

/// The kind behind an `apiVersion` and `kind`, when we read it in that version.
fn known(api_version: &str, kind: &str) -> Option<Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = Kind::ALL.into_iter().find(|k| k.as_str() == kind && k.group() == group)?;
    let versions: &[&str] = match kind {
        Kind::HttpRoute | Kind::Gateway | Kind::GatewayClass | Kind::ReferenceGrant => &["v1", "v1beta1"],
        Kind::TcpRoute | Kind::UdpRoute => &["v1", "v1alpha2"],
        Kind::TlsRoute => &["v1", "v1alpha2", "v1alpha3"],
        Kind::BackendTlsPolicy => &["v1", "v1alpha3"],
        Kind::GatewayClassConfig | Kind::GatewayConfig | Kind::ExternalBackend => &["v1alpha1"],
        _ => &["v1"],
    };
    versions.contains(&version).then_some(kind)
}

/// The `apiVersion` that our types are of.
fn current_version(kind: Kind) -> String {
    match kind {
        Kind::GatewayClassConfig | Kind::GatewayConfig | Kind::ExternalBackend => format!("{}/v1alpha1", kind.group()),
        _ if kind.group().is_empty() => "v1".to_owned(),
        _ => format!("{}/v1", kind.group()),
    }
}

/// A text of the object's head; absent, null and empty are the same. Anything else is refused and not overlooked: a namespace
/// that YAML takes for a number or a boolean must not become `default`.
fn text(value: &Value, pointer: &str) -> Result<Option<String>, InvalidObject> {
    match value.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => {
            let kind = match other {
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                Value::Array(_) => "a list",
                _ => "a map",
            };
            let field = pointer.trim_start_matches('/').replace('/', ".");
            Err(InvalidObject::NotAnObject(format!("its {field} is {kind} and no text; put it in quotes")))
        }
    }
}

/// Adds what the schema of the current version requires and an object may lack all the same.
fn fill_in(kind: Kind, value: &mut Value) {
    let (pointer, field, default) = match kind {
        // Optional before v1.
        Kind::TlsRoute => ("/spec", "hostnames", Value::Array(Vec::new())),
        // An empty block still asks for client certificates, and is to be refused rather than unreadable.
        Kind::Gateway => ("/spec/tls/frontend", "default", Value::Object(serde_json::Map::new())),
        _ => return,
    };
    if let Some(Value::Object(parent)) = value.pointer_mut(pointer) {
        parent.entry(field).or_insert(default);
    }
}

fn read<T: DeserializeOwned>(object: &ObjectRef, mut value: Value) -> Result<Arc<T>, InvalidObject> {
    // Where an object does not fit is followed only for one that does not: it takes far more code and time.
    if let Ok(read) = T::deserialize(&value) {
        return Ok(Arc::new(read));
    }
    let error = match serde_path_to_error::deserialize(&value) {
        Ok(read) => return Ok(Arc::new(read)),
        Err(error) => error,
    };
    // A status is others' to write and only a hint to us: one that does not fit its schema must not hide the object.
    if error.path().to_string().starts_with("status")
        && let Value::Object(fields) = &mut value
        && fields.remove("status").is_some()
    {
        return read(object, value);
    }
    let path = match error.path().to_string() {
        path if path == "." => "the object".to_owned(),
        path => path,
    };
    // The content of a Secret must not travel in an error, and serde quotes what it could not read.
    let reason = if object.kind == Kind::Secret {
        "it is not what the schema of a Secret asks for here".to_owned()
    } else {
        error.into_inner().to_string()
    };
    Err(InvalidObject::Malformed { object: object.clone(), path, reason })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind_of(api_version: &str, kind: &str) -> Result<Kind, InvalidObject> {
        let value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {"rules": []}});
        Object::from_json(value).map(|o| o.kind())
    }

    #[test]
    fn served_versions_are_read_and_others_are_named() {
        for version in ["v1", "v1beta1"] {
            assert_eq!(kind_of(&format!("gateway.networking.k8s.io/{version}"), "HTTPRoute"), Ok(Kind::HttpRoute));
        }
        for version in ["v1", "v1alpha2", "v1alpha3"] {
            assert_eq!(kind_of(&format!("gateway.networking.k8s.io/{version}"), "TLSRoute"), Ok(Kind::TlsRoute));
        }
        for (version, kind) in [("apps/v1", "Deployment"), ("gateway.networking.k8s.io/v1alpha2", "HTTPRoute"), ("v2", "Service")]
        {
            let unknown = InvalidObject::UnknownKind { api_version: version.to_owned(), kind: kind.to_owned() };
            assert_eq!(kind_of(version, kind), Err(unknown));
        }
    }

    #[test]
    fn a_malformed_object_says_where_and_why() {
        let error = Object::from_json(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "edge", "namespace": "shop"},
            "spec": {"gatewayClassName": "c", "listeners": [{"name": "http", "port": "eighty", "protocol": "HTTP"}]},
        }))
        .expect_err("a port is a number");
        let InvalidObject::Malformed { object, path, reason } = error else { panic!("{error:?}") };
        assert_eq!(object, ObjectRef::new(Kind::Gateway, "shop", "edge"));
        assert_eq!(path, "spec.listeners[0].port");
        assert!(reason.contains("eighty"), "{reason}");
    }

    #[test]
    fn what_tools_print_is_read() {
        // Empty lists as null, times as null, a status that is still empty or that does not fit.
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": null, "ports": null,
            "metadata": {"name": "web-1", "creationTimestamp": null},
        });
        assert!(Object::from_json(slice).is_ok());
        for status in [json!({}), json!({"parents": null}), json!("none yet")] {
            let route = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "web"},
                "spec": {"hostnames": null, "rules": null}, "status": status,
            });
            assert_eq!(Object::from_json(route).map(|o| o.kind()), Ok(Kind::HttpRoute), "{status}");
        }
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for value in
            [json!(null), json!([]), json!({}), json!({"kind": "Service"}), json!({"apiVersion": "v1", "kind": "Service"})]
        {
            assert!(matches!(Object::from_json(value.clone()), Err(InvalidObject::NotAnObject(_))), "{value}");
        }
    }

    #[test]
    fn an_error_in_a_secret_does_not_quote_it() {
        let value = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"tunnel-token": "not base64: hunter2"}});
        let error = Object::from_json(value).expect_err("not base64");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn a_head_that_is_no_text_is_refused_and_not_overlooked() {
        for (pointer, wrong) in [
            ("/metadata/namespace", json!(false)),
            ("/metadata/namespace", json!(12)),
            ("/metadata/name", json!(1.5)),
            ("/kind", json!(["Service"])),
            ("/apiVersion", json!({})),
        ] {
            let mut value = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}});
            *value.pointer_mut(pointer).expect("it is there") = wrong;
            let error = Object::from_json(value).expect_err(pointer).to_string();
            assert!(error.contains(&pointer[1..].replace('/', ".")), "{error}");
        }
    }

    #[test]
    fn an_object_without_a_namespace_is_in_default() {
        let value = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
        let object = Object::from_json(value).expect("a service");
        assert_eq!(*object.object_ref(), ObjectRef::new(Kind::Service, "default", "web"));
    }
}
