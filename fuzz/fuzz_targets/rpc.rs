#![no_main]

#[path = "../targets/rpc.rs"]
mod rpc;

libfuzzer_sys::fuzz_target!(|data: &[u8]| rpc::target(data));
