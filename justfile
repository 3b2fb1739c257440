# Recipes for people who have `just`; ./test.sh is the same without it.

# everything that the gate runs
ci:
    ./test.sh

# one or more steps of it: just step unit edge
step *names:
    ./test.sh {{names}}

# formatting, lints and unit tests: the loop while writing
quick:
    cargo fmt
    cargo clippy --all-targets -- -D warnings
    cargo test

# instruction counts against the committed ones, then wall times of this machine
bench:
    benches/check
    cargo bench --bench times

# commit to the instruction counts of now; say in the commit why they changed
bench-accept:
    benches/check --accept

# rewrite golden outputs; read the diff before you commit it
golden:
    UPDATE_GOLDEN=1 cargo test --test golden

# regenerate completions/ and man/
generated:
    cargo run --quiet -- generate completions --out-dir completions
    cargo run --quiet -- generate man --out-dir man

# lay the functions that run side by side, anew; when the code has changed much
layout:
    lab/layout/run

# regenerate the Gateway API types (needs kopium 0.24 and Go)
types:
    cargo install --locked kopium@0.24.1
    lab/types.sh

# the first command of the README, from the checkout
local *args:
    cargo run --release -- serve local --from-file examples/quickstart --demo-backends {{args}}

# an hour of load and faults against the release binary; its log is committed. just soak 600 for ten minutes
soak seconds="3600":
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --release --locked --bin kubectl-cftunnel
    log=bench/runs/$(date +%F)-$(nproc)-cores/soak.txt
    mkdir -p "$(dirname "$log")"
    { echo "# just soak {{seconds}}, release build, commit $(git rev-parse --short HEAD), $(nproc)-core machine, Linux $(uname -r)"
      SOAK_BIN=$PWD/target/release/kubectl-cftunnel SOAK_SECONDS={{seconds}} cargo test --locked --quiet --test soak
    } 2>&1 | tee "$log"

# nothing but reconnects, as fast as connections come back
reconnects seconds="900":
    cargo build --release --locked --bin kubectl-cftunnel
    SOAK_STORM=1 SOAK_BIN=$PWD/target/release/kubectl-cftunnel SOAK_SECONDS={{seconds}} cargo test --locked --quiet --test soak

# fuzz every target for ten minutes each; needs nightly and cargo-fuzz. just fuzz 60 for a minute
fuzz seconds="600":
    #!/usr/bin/env bash
    set -euo pipefail
    log=bench/runs/$(date +%F)-$(nproc)-cores/fuzz.txt
    mkdir -p "$(dirname "$log")"
    FUZZ_SECONDS={{seconds}} FUZZ_LOG=$PWD/$log fuzz/run
