//! What names an object: its kind, namespace and name. Nothing here knows what the object contains.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

/// Names one object. Reads as `httproute shop/web`, or `gatewayclass cloudflare-tunnel` without a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// The object's kind.
    pub kind: Kind,
    /// The object's namespace; empty for a cluster-scoped kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl ObjectRef {
    /// Names a namespaced object.
    pub fn new(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// Names a cluster-scoped object.
    pub fn cluster(kind: Kind, name: impl Into<String>) -> Self {
        Self::new(kind, "", name)
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_str().to_ascii_lowercase();
        if self.namespace.is_empty() {
            write!(f, "{kind} {}", self.name)
        } else {
            write!(f, "{kind} {}/{}", self.namespace, self.name)
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
