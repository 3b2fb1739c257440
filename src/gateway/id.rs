//! What names an object: its kind, namespace and name. Nothing here knows what the object contains.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kinds this product reads, writes or reports on.
///
/// The order is the order of reports, not of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is the Kubernetes kind of the same name")]
pub enum Kind {
    GatewayClass,
    GatewayClassConfig,
    Gateway,
    GatewayConfig,
    ListenerSet,
    #[serde(rename = "HTTPRoute")]
    HttpRoute,
    #[serde(rename = "GRPCRoute")]
    GrpcRoute,
    #[serde(rename = "TLSRoute")]
    TlsRoute,
    #[serde(rename = "TCPRoute")]
    TcpRoute,
    #[serde(rename = "UDPRoute")]
    UdpRoute,
    #[serde(rename = "BackendTLSPolicy")]
    BackendTlsPolicy,
    ReferenceGrant,
    ExternalBackend,
    Namespace,
    Service,
    EndpointSlice,
    Secret,
    ConfigMap,
}

impl Kind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 18] = [
        Self::GatewayClass,
        Self::GatewayClassConfig,
        Self::Gateway,
        Self::GatewayConfig,
        Self::ListenerSet,
        Self::HttpRoute,
        Self::GrpcRoute,
        Self::TlsRoute,
        Self::TcpRoute,
        Self::UdpRoute,
        Self::BackendTlsPolicy,
        Self::ReferenceGrant,
        Self::ExternalBackend,
        Self::Namespace,
        Self::Service,
        Self::EndpointSlice,
        Self::Secret,
        Self::ConfigMap,
    ];

    /// The kind as Kubernetes spells it, such as `HTTPRoute`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GatewayClass => "GatewayClass",
            Self::GatewayClassConfig => "GatewayClassConfig",
            Self::Gateway => "Gateway",
            Self::GatewayConfig => "GatewayConfig",
            Self::ListenerSet => "ListenerSet",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TlsRoute => "TLSRoute",
            Self::TcpRoute => "TCPRoute",
            Self::UdpRoute => "UDPRoute",
            Self::BackendTlsPolicy => "BackendTLSPolicy",
            Self::ReferenceGrant => "ReferenceGrant",
            Self::ExternalBackend => "ExternalBackend",
            Self::Namespace => "Namespace",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// The API group, empty for the core group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::GatewayClassConfig | Self::GatewayConfig | Self::ExternalBackend => "cf.k8s.lex.la",
            Self::Namespace | Self::Service | Self::Secret | Self::ConfigMap => "",
            Self::EndpointSlice => "discovery.k8s.io",
            _ => "gateway.networking.k8s.io",
        }
    }

    /// Whether objects of this kind live in a namespace.
    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::GatewayClass | Self::GatewayClassConfig | Self::Namespace)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Names one object. Reads as `httproute shop/web`, or `gatewayclass cloudflare-tunnel` without a namespace. Made once and cloned
/// often, so that clones share the text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// The object's kind.
    pub kind: Kind,
    /// Namespace and name, one after the other.
    text: Arc<str>,
    /// Bytes of the namespace.
    split: usize,
}

impl ObjectRef {
    /// Names a namespaced object.
    pub fn new(kind: Kind, namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        let (namespace, name) = (namespace.as_ref(), name.as_ref());
        let split = namespace.len();
        let text = if namespace.is_empty() { Arc::from(name) } else { Arc::from([namespace, name].concat()) };
        Self { kind, text, split }
    }

    /// Names a cluster-scoped object.
    pub fn cluster(kind: Kind, name: impl AsRef<str>) -> Self {
        Self::new(kind, "", name)
    }

    /// The object's namespace; empty for a cluster-scoped kind.
    pub fn namespace(&self) -> &str {
        &self.text[..self.split]
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        &self.text[self.split..]
    }

    /// Its namespace and name, in the order of both.
    pub fn key(&self) -> (&str, &str) {
        self.text.split_at(self.split)
    }
}

impl Ord for ObjectRef {
    fn cmp(&self, other: &Self) -> Ordering {
        self.kind.cmp(&other.kind).then_with(|| self.key().cmp(&other.key()))
    }
}

impl PartialOrd for ObjectRef {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As a document has it: `{"kind": "HTTPRoute", "namespace": "shop", "name": "web"}`.
#[derive(Serialize, Deserialize)]
#[serde(rename = "ObjectRef")]
struct Fields<'a> {
    kind: Kind,
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

impl Serialize for ObjectRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Fields { kind: self.kind, namespace: self.namespace().into(), name: self.name().into() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ObjectRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { kind, namespace, name } = Fields::deserialize(deserializer)?;
        Ok(Self::new(kind, namespace, name))
    }
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectRef({self})")
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_str().to_ascii_lowercase();
        match self.key() {
            ("", name) => write!(f, "{kind} {name}"),
            (namespace, name) => write!(f, "{kind} {namespace}/{name}"),
        }
    }
}

/// A namespace and a name that came as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespacedName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// Why a text is no `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not NAMESPACE/NAME")]
pub struct InvalidNamespacedName(String);

impl FromStr for NamespacedName {
    type Err = InvalidNamespacedName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(InvalidNamespacedName(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_an_object_by_its_parts() {
        for (object, json) in [
            (ObjectRef::new(Kind::HttpRoute, "shop", "web"), r#"{"kind":"HTTPRoute","namespace":"shop","name":"web"}"#),
            (ObjectRef::cluster(Kind::GatewayClass, "c"), r#"{"kind":"GatewayClass","name":"c"}"#),
        ] {
            assert_eq!(serde_json::to_string(&object).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<ObjectRef>(json).expect("an object"), object);
            let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
            assert_eq!(serde_json::from_value::<ObjectRef>(value).expect("an object"), object);
        }
        let escaped: ObjectRef = serde_json::from_str(r#"{"kind":"Service","name":"\u0061"}"#).expect("an object");
        assert_eq!(escaped, ObjectRef::cluster(Kind::Service, "a"));
    }

    #[test]
    fn where_the_namespace_ends_makes_a_difference() {
        let (short, long) = (ObjectRef::new(Kind::Service, "a", "bc"), ObjectRef::new(Kind::Service, "ab", "c"));
        assert!(short != long && short < long);
        assert_eq!((long.namespace(), long.name()), ("ab", "c"));
        assert!(ObjectRef::new(Kind::Service, "ab", "c") > ObjectRef::new(Kind::Service, "a", "d"));
    }
}
