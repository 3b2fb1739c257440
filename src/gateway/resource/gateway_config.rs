//! GatewayConfig: what a tenant sets for the plane of one Gateway (S0 "GatewayConfig reference"). It has no tunnel id on purpose:
//! the identity of the tunnel is read from its token, so that the two cannot drift apart.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Parameters of one Gateway's data plane, named by the Gateway's `spec.infrastructure.parametersRef`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cf.k8s.lex.la",
    version = "v1alpha1",
    kind = "GatewayConfig",
    doc = "Parameters of the data plane of one Gateway, in the Gateway's namespace.",
    plural = "gatewayconfigs",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.tunnelTokenSecretRef) || self.listenMode == 'Direct'")
    .message("tunnelTokenSecretRef is required unless listenMode is Direct"))]
#[x_kube(validation = Rule::new("!(has(self.replicas) && has(self.autoscaling))")
    .message("replicas and autoscaling exclude each other"))]
pub struct GatewayConfigSpec {
    /// How requests reach the plane. The controllerName of the GatewayClass decides; a value that differs from it is refused.
    #[serde(default)]
    pub listen_mode: ListenMode,
    /// Secret with the tunnel's connector token, in this namespace. Its key defaults to `tunnel-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "token_ref")]
    pub tunnel_token_secret_ref: Option<SecretKeyRef>,
    /// Secret with the Cloudflare API token that writes this tunnel's document; the class's own when absent. Its key defaults to `api-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "credentials_ref")]
    pub cloudflare_credentials_secret_ref: Option<SecretKeyRef>,
    /// Secret with the bearer token of the plane's config API; generated when absent. Its key defaults to `auth-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "auth_ref")]
    pub auth_token_secret_ref: Option<SecretKeyRef>,
    /// Proxy replicas; 2 when neither this nor `autoscaling` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: Option<i32>,
    /// Scales the proxy on its requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Compute resources of the proxy container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Image of the proxy, one of those that the operator allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// How requests reach a plane.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenMode {
    /// Over connections of our own Cloudflare Tunnel connector.
    #[default]
    Tunnel,
    /// Over listener ports that the plane binds.
    Direct,
}

/// A key of a Secret in the same namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key within the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Bounds of the number of replicas, and what it follows (S0 "Autoscaling").
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas").message("minReplicas may not exceed maxReplicas"))]
pub struct Autoscaling {
    /// Fewest replicas.
    #[schemars(range(min = 1, max = 100))]
    pub min_replicas: i32,
    /// Most replicas.
    #[schemars(range(min = 1, max = 100))]
    pub max_replicas: i32,
    /// Requests in flight that one Pod is meant to carry.
    #[schemars(range(min = 1))]
    pub target_inflight_per_pod: i32,
}

fn token_ref(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    key_ref("tunnel-token", "Secret with the tunnel's connector token, in this namespace.")
}

fn credentials_ref(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    key_ref("api-token", "Secret with the Cloudflare API token that writes this tunnel's document, in this namespace.")
}

fn auth_ref(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    key_ref("auth-token", "Secret with the bearer token of the plane's config API, in this namespace.")
}

/// The schema of a [`SecretKeyRef`] whose key has a default: each field has its own.
pub(super) fn key_ref(default_key: &str, description: &str) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "description": description,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Name of the Secret."},
            "key": {"type": "string", "default": default_key, "description": "Key within the Secret."},
        },
    })
}
