#![no_main]

#[path = "../targets/connect.rs"]
mod connect;

libfuzzer_sys::fuzz_target!(|data: &[u8]| connect::target(data));
