#![no_main]

#[path = "../targets/document.rs"]
mod document;

libfuzzer_sys::fuzz_target!(|data: &[u8]| document::target(data));
