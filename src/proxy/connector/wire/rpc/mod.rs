//! The RPC streams, for both ends: registration on the control stream (tunnel-protocol §6) and configuration pushes on QUIC
//! (§7). Each peer is plain state: feed it what came with `receive`, send what `take_output` returns, also after an error.

mod configuration;
mod peer;
mod registration;

pub use configuration::{ConfigurationClient, ConfigurationClientEvent, ConfigurationEvent, ConfigurationServer};
pub use peer::CallId;
pub use registration::{RegistrationClient, RegistrationClientEvent, RegistrationEvent, RegistrationServer};

#[cfg(test)]
mod tests;
