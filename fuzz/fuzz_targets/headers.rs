#![no_main]

#[path = "../targets/headers.rs"]
mod headers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| headers::target(data));
