#![no_main]

#[path = "../targets/matching.rs"]
mod matching;

libfuzzer_sys::fuzz_target!(|data: &[u8]| matching::target(data));
