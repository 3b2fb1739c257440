//! The pure core: objects in, routing and verdicts out. No I/O, no clock, no async; the same input gives the same bytes.

pub mod hostname;
pub mod id;
pub mod ir;
pub mod resource;
pub mod token;
