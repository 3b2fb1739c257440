//! GatewayClassConfig: what the operator sets for every Gateway of a class (S0 "Sharing a tunnel", "Capping data planes per
//! namespace"; X24). Cluster-scoped, so that no tenant can grant itself what is decided here.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::gateway_config::key_ref;

/// Parameters of a GatewayClass, named by its `spec.parametersRef`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cf.k8s.lex.la",
    version = "v1alpha1",
    kind = "GatewayClassConfig",
    doc = "Parameters of every Gateway of a class; the operator's.",
    plural = "gatewayclassconfigs",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.accountId) || self.accountId.matches('^[0-9a-f]{32}$')")
    .message("accountId has 32 hexadecimal digits"))]
pub struct GatewayClassConfigSpec {
    /// Tunnel of the class's shared plane.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "tunnelID")]
    pub tunnel_id: Option<String>,
    /// Secret with the class's Cloudflare API token. Its key defaults to `api-token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "credentials_ref")]
    pub cloudflare_credentials_secret_ref: Option<NamespacedSecretKeyRef>,
    /// Cloudflare account; found through the API when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
    /// Lets Gateways of different namespaces share a tunnel, and so see each other's routes.
    #[serde(default)]
    pub allow_shared_tunnels: bool,
    /// Most dedicated planes that one namespace may hold; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_data_planes_per_namespace: Option<i32>,
    /// Which plane serves a Gateway without `infrastructure.parametersRef`.
    #[serde(default)]
    pub planes: Planes,
}

/// Which plane serves a Gateway that asks for none of its own.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planes {
    /// One plane for all of them.
    #[default]
    Shared,
    /// One for each of them, with a tunnel of its own.
    PerGateway,
}

/// A key of a Secret; without a namespace, of one in the controller's.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NamespacedSecretKeyRef {
    /// Name of the Secret.
    pub name: String,
    /// Namespace of the Secret; the controller's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Key within the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

fn credentials_ref(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = key_ref("api-token", "Secret with the class's Cloudflare API token.");
    let namespace = serde_json::json!({
        "type": "string", "description": "Namespace of the Secret; the controller's own when absent.",
    });
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        properties.insert("namespace".to_owned(), namespace);
    }
    schema
}
