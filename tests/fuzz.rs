//! Replays the corpus of every fuzz target: each input once did something new. `fuzz/README.md` says how to find more.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the last input named is the one that failed")]

use std::fs;
use std::path::Path;

macro_rules! targets {
    ($($name:ident $path:literal)*) => {
        $(
            #[path = $path]
            mod $name;

            #[test]
            fn $name() {
                replay(stringify!($name), $name::target);
            }
        )*

        #[test]
        fn no_target_is_left_out() {
            let known = [$(stringify!($name)),*];
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
            for (sub, suffix) in [("targets", ".rs"), ("fuzz_targets", ".rs"), ("corpus", "")] {
                let mut names: Vec<String> = fs::read_dir(folder.join(sub))
                    .expect("a folder")
                    .map(|e| e.expect("an entry").file_name().into_string().expect("a text"))
                    .map(|name| name.trim_end_matches(suffix).to_owned())
                    .collect();
                names.sort();
                let mut known = known.to_vec();
                known.sort_unstable();
                assert_eq!(names, known, "fuzz/{sub}");
            }
        }
    };
}

targets! {
    connect "../fuzz/targets/connect.rs"
    document "../fuzz/targets/document.rs"
    head "../fuzz/targets/head.rs"
    headers "../fuzz/targets/headers.rs"
    matching "../fuzz/targets/matching.rs"
    objects "../fuzz/targets/objects.rs"
    response "../fuzz/targets/response.rs"
    rpc "../fuzz/targets/rpc.rs"
    token "../fuzz/targets/token.rs"
}

fn replay(name: &str, target: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        target(&fs::read(&path).expect("an input"));
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}
