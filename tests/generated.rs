//! `completions/` and `man/` are what `generate` writes, byte for byte. `just generated` brings them up to date.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries
        .map(|entry| {
            let entry = entry.expect("readable");
            let text = std::fs::read_to_string(entry.path()).expect("text");
            (entry.file_name().into_string().expect("utf-8"), text)
        })
        .collect()
}

#[test]
fn committed_files_are_what_generate_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (what, folder) in [("completions", "completions"), ("man", "man")] {
        let fresh = tempfile::tempdir().expect("a folder");
        let status = Command::new(env!("CARGO_BIN_EXE_kubectl-cftunnel"))
            .env_clear()
            .args(["generate", what, "--out-dir"])
            .arg(fresh.path())
            .status()
            .expect("runs");
        assert!(status.success());
        let (committed, fresh) = (files(&root.join(folder)), files(fresh.path()));
        let names = |m: &BTreeMap<String, String>| m.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&committed), names(&fresh), "{folder}/ has other files: run `just generated`");
        for (name, text) in fresh {
            assert!(committed[&name] == text, "{folder}/{name} has drifted: run `just generated`");
        }
    }
}

#[test]
fn scripts_are_sound() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("completions");
    for (shell, file) in [("bash", "kubectl-cftunnel.bash"), ("sh", "kubectl_complete-cftunnel")] {
        let status = Command::new(shell).arg("-n").arg(root.join(file)).status().expect("a shell");
        assert!(status.success(), "{file} is no {shell} script");
    }
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(root.join("kubectl_complete-cftunnel")).expect("there").permissions().mode();
    assert!(mode & 0o111 == 0o111, "kubectl runs the script: it must be executable");
}

#[test]
fn every_page_has_examples_or_subcommands() {
    for (name, text) in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("man")) {
        assert!(text.contains(".SH EXAMPLES") || text.contains(".SH SUBCOMMANDS"), "{name}");
    }
}

#[test]
fn crds_are_kubernetes_objects_with_a_schema() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_kubectl-cftunnel")).env_clear().args(["generate", "crds"]).output().expect("runs");
    let text = String::from_utf8(output.stdout).expect("utf-8");
    let documents: Vec<&str> = text.split("---\n").collect();
    assert_eq!(documents.len(), 3, "{text}");
    for document in documents {
        assert!(document.contains("kind: CustomResourceDefinition") && document.contains("openAPIV3Schema"), "{document}");
    }
}
