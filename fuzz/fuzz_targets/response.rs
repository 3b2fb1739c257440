#![no_main]

#[path = "../targets/response.rs"]
mod response;

libfuzzer_sys::fuzz_target!(|data: &[u8]| response::target(data));
