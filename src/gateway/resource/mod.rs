//! The Kubernetes objects we read, in one place: Gateway API types (generated), core types and our own CRDs.

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
