//! The Kubernetes objects we read, in one place: Gateway API types (generated), core types and our own CRDs. No verdicts here:
//! what an object means is decided in [`translate`](super::translate).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

#[expect(unreachable_pub, reason = "the schema derive repeats the item where nobody can reach it")]
mod external_backend;
#[expect(unreachable_pub, reason = "the schema derive repeats the item where nobody can reach it")]
mod gateway_class_config;
#[expect(unreachable_pub, reason = "the schema derive repeats the item where nobody can reach it")]
mod gateway_config;
pub mod view;

pub use self::external_backend::{ExternalBackend, ExternalBackendSpec, Scheme};
pub use self::gateway_class_config::{GatewayClassConfig, GatewayClassConfigSpec, Planes};
pub use self::gateway_config::{Autoscaling, GatewayConfig, GatewayConfigSpec, ListenMode, SecretKeyRef};

#[allow(missing_docs, unreachable_pub, reason = "generated from the CRDs without the upstream descriptions")]
#[allow(clippy::all, reason = "generated")]
pub mod gateway_api {
    pub mod backend_tls_policy;
    pub mod gateway;
    pub mod gateway_class;
    pub mod grpc_route;
    pub mod http_route;
    pub mod listener_set;
    pub mod reference_grant;
    pub mod tcp_route;
    pub mod tls_route;
    pub mod udp_route;
}

/// The definitions of our own kinds, as `generate crds` writes them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![GatewayConfig::crd(), GatewayClassConfig::crd(), ExternalBackend::crd()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(crd: &CustomResourceDefinition) -> String {
        serde_json::to_string(crd).expect("a CRD is JSON")
    }

    #[test]
    fn our_crds_carry_their_cross_field_rules() {
        let all = crds();
        let names: Vec<_> = all.iter().map(|c| c.metadata.name.clone().unwrap_or_default()).collect();
        assert_eq!(
            names,
            ["gatewayconfigs.cf.k8s.lex.la", "gatewayclassconfigs.cf.k8s.lex.la", "externalbackends.cf.k8s.lex.la"]
        );
        let config = rules(&all[0]);
        assert!(config.contains("tunnelTokenSecretRef is required unless listenMode is Direct"), "{config}");
        assert!(config.contains("replicas and autoscaling exclude each other"), "{config}");
        assert!(config.contains(r#""default":"tunnel-token""#), "{config}");
        let class = rules(&all[1]);
        assert!(class.contains("[0-9a-f]{32}") && class.contains(r#""minimum":1"#), "{class}");
        assert!(!rules(&all[2]).contains("tunnel"), "kinds are told apart");
    }

    #[test]
    fn replicas_has_no_schema_default() {
        // X30: a default would defeat the exclusivity with autoscaling.
        let crd = serde_json::to_value(&crds()[0]).expect("a CRD is JSON");
        let replicas = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"];
        assert_eq!(replicas["maximum"].as_f64(), Some(100.0), "{replicas}");
        assert!(replicas.get("default").is_none(), "{replicas}");
    }
}
