#![no_main]

#[path = "../targets/objects.rs"]
mod objects;

libfuzzer_sys::fuzz_target!(|data: &[u8]| objects::target(data));
