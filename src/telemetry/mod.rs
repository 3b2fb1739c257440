//! Setup of logs. What is logged and counted lives with the code that does it.

pub mod log;
