//! The data plane: route table, request path, tunnel connector, config API. Knows the document it is given, not Kubernetes.

pub mod connector;
pub mod http;
pub mod table;
