#![no_main]

#[path = "../targets/token.rs"]
mod token;

libfuzzer_sys::fuzz_target!(|data: &[u8]| token::target(data));
