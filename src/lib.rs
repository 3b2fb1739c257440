//! kubectl-cftunnel as a library: what the binary, the tests and the benchmarks share.

pub mod cluster;
pub mod commands;
pub mod edge;
pub mod gateway;
pub mod proxy;
pub mod telemetry;
