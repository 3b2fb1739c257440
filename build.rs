//! Tells the linker to put the functions that run side by side: see "Where the memory goes" in ARCHITECTURE.md.

use std::env::var;

fn main() {
    let script = "data/text-order.ld";
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rerun-if-env-changed=CFTUNNEL_TEXT_ORDER");
    // The two linkers of Rust on Linux, GNU ld and lld, take such a script; for another one there is the switch.
    let elf = var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    let optimised = var("OPT_LEVEL").is_ok_and(|level| level == "3");
    let wanted = var("CFTUNNEL_TEXT_ORDER").as_deref() != Ok("off");
    if elf && optimised && wanted {
        let root = var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
        println!("cargo::rustc-link-arg-bins=-T{root}/{script}");
    }
}
