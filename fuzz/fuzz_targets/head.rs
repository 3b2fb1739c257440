#![no_main]

#[path = "../targets/head.rs"]
mod head;

libfuzzer_sys::fuzz_target!(|data: &[u8]| head::target(data));
