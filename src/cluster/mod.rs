//! Where a Snapshot comes from: manifests on disk, later a live cluster.
//!
//! May read files and parse them; may not decide what an object means, and may not print.

pub mod files;
pub mod manifest;
pub mod objects;
pub mod watch;
