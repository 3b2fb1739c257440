//! The pure core: objects in, routing and verdicts out. No I/O, no clock, no async; the same input gives the same bytes.

pub mod condition;
pub mod duration;
pub mod finding;
pub mod hostname;
pub mod id;
pub mod ir;
mod lookup;
pub mod pattern;
pub mod resource;
pub mod snapshot;
pub mod token;
pub mod translate;
