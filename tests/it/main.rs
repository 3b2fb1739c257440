//! End to end in one process: clients, the built-in edge, the connector, the request path, a backend. Nothing here reaches
//! beyond loopback, and no test depends on another.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod direct;
mod fault;
mod foreign;
mod hostile;
mod life;
mod request;
mod stream;
mod support;
