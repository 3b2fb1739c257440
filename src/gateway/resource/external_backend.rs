//! ExternalBackend: an HTTP(S) origin outside the cluster as the target of a backendRef (S3 "Non-Service backend kinds").

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// An origin outside the cluster. The port of a backendRef that names it is ignored in favour of `spec.port`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cf.k8s.lex.la",
    version = "v1alpha1",
    kind = "ExternalBackend",
    doc = "An HTTP(S) origin outside the cluster, as the target of a backendRef.",
    plural = "externalbackends",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ExternalBackendSpec {
    /// Whether the origin is spoken to in the clear or over TLS.
    pub scheme: Scheme,
    /// Host name or address of the origin.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Port of the origin.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Path before every request's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^/"))]
    pub path: Option<String>,
}

/// How an origin is spoken to.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// In the clear.
    Http,
    /// Over TLS.
    Https,
}
