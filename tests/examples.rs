//! Every folder of `examples/` is served as it is: no finding of any weight that `lint --strict` would refuse.

use std::path::Path;
use std::process::Command;

#[test]
fn every_example_lints_clean() {
    let mut seen = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).expect("examples/") {
        let folder = entry.expect("readable").path();
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-cftunnel"))
            .env_clear()
            .args(["lint", "--strict", "--from-file"])
            .arg(&folder)
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}:\n{text}\n{}", folder.display(), String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("0 errors, 0 warnings"), "{text}");
        seen += 1;
    }
    assert!(seen >= 2, "examples/ has {seen} folders");
}
