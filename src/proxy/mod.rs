//! The data plane: route table, request path, tunnel connector, config API. Knows the document it is given, not Kubernetes.

pub mod admin;
pub mod config;
pub mod connector;
pub mod direct;
pub mod drain;
pub mod error;
pub mod http;
pub mod metrics;
pub mod table;
pub mod workers;
