#!/usr/bin/env bash
# Runs every test. Installs or checks what it needs itself; never skips. Needs root for the network namespace of the lab.
# test.sh [STEP...] runs only the named steps: format lint deny unit doc bench install edge soak
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2
# shellcheck source=lab/setup.sh
. lab/setup.sh

PASSED=0; FAILED=0; started=$SECONDS
step() { # NAME COMMAND...: runs it, says how long it took
  local name=$1 from=$SECONDS rc; shift
  printf '\n=== %s\n' "$name"
  "$@"; rc=$?
  if [ $rc = 0 ]; then PASSED=$((PASSED+1)); else FAILED=$((FAILED+1)); fi
  printf '=== %s: %s in %s s\n' "$name" "$([ $rc = 0 ] && echo ok || echo FAILED)" $((SECONDS-from))
}

setup() {
  need_rust; need_cc
  need curl curl ip iproute2 unshare util-linux shellcheck shellcheck git git
  need_go
  need_gungraun
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || rustup component add rustfmt clippy ||
    die "rustfmt and clippy are missing" "rustup component add rustfmt clippy"
  if ! cargo deny --version >/dev/null 2>&1; then say "installing cargo-deny"; cargo install --locked --quiet cargo-deny || die "cargo-deny could not be installed" "cargo install --locked cargo-deny"; fi
  if ! { unshare --net true || unshare --net --map-root-user true; } 2>/dev/null; then
    die "the lab needs a network namespace, which needs root here" "sudo --preserve-env=PATH ./test.sh"
  fi
}

format() { cargo fmt --check && shellcheck install.sh test.sh .ci/run lab/setup.sh lab/types.sh lab/edge/run lab/layout/run benches/check fuzz/run bench/http/run bench/http/certs.sh; }
lint() { cargo clippy --locked --all-targets --quiet -- -D warnings; }
# Advisories need a database from outside; what can be judged without one is judged here.
deny() { cargo deny check bans licenses sources; }
unit() { cargo test --locked --no-fail-fast; }
doc() { RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --quiet; }
# Instruction counts within 5 % of the committed ones.
bench() { benches/check; }

# The README's first command, into a folder of its own, and what a newcomer does next.
install_and_run() {
  local prefix out pid url rc=0
  prefix=$(mktemp -d) || return 1; out=$prefix/out
  ./install.sh --prefix "$prefix" || return 1
  # Port 0: a test may not depend on a port being free.
  "$prefix/bin/kubectl-cftunnel" serve local --from-file examples/quickstart --demo-backends --listen 127.0.0.1:0 --admin off >"$out" 2>"$prefix/log" & pid=$!
  for _ in $(seq 300); do url=$(grep -o 'curl .*' "$out") && break; sleep 0.1; done
  cat "$out"
  if [ -n "$url" ] && (eval "$url --fail --silent --show-error --max-time 10"); then echo; else echo "the curl line does not work: $url"; tail -20 "$prefix/log"; rc=1; fi
  kill -INT $pid; wait $pid; local code=$?
  [ $code = 0 ] || { echo "Ctrl-C ended with exit code $code"; tail -20 "$prefix/log"; rc=1; }
  ./install.sh --prefix "$prefix" --uninstall || rc=1
  if [ -e "$prefix/bin/kubectl-cftunnel" ]; then echo "uninstall left the binary"; rc=1; fi
  rm -rf "$prefix"; return $rc
}

edge() {
  local bin rc=0 factor=${LIMIT_FACTOR:-2}
  cargo build --release --locked --quiet --bin kubectl-cftunnel || return 1
  bin=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/release/kubectl-cftunnel
  export CONNECTOR_CMD="$bin serve local --from-file {manifests} --edge 127.0.0.1:7844 --edge-ca-file {ca} --tunnel-protocol {proto} --admin off" LIMIT_FACTOR=$factor
  local http=$PWD/lab/edge/manifests-http.yaml
  lab/edge/run prove http2 || rc=1
  lab/edge/run prove auto || rc=1
  lab/edge/run prove quic || rc=1
  MANIFESTS=$http lab/edge/run prove auto || rc=1
  lab/edge/run lifecycle http2 || rc=1
  MANIFESTS=$http lab/edge/run lifecycle quic || rc=1
  lab/edge/run fallback || rc=1
  return $rc
}

# Two minutes of what `just soak` does for an hour.
soak() {
  local bin
  cargo build --release --locked --quiet --bin kubectl-cftunnel || return 1
  bin=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/release/kubectl-cftunnel
  SOAK_BIN=$bin SOAK_SECONDS=${SOAK_SECONDS:-120} cargo test --locked --quiet --test soak
}

[ $# -gt 0 ] || set -- format lint deny unit doc bench install edge soak
setup
for name in "$@"; do
  case $name in
    install) step install install_and_run ;;
    format | lint | deny | unit | doc | bench | edge | soak) step "$name" "$name" ;;
    *) die "unknown step: $name" "the steps are: format lint deny unit doc bench install edge soak" ;;
  esac
done
printf '\nall steps: %s s\n%s passed, %s failed\n' $((SECONDS-started)) $PASSED $FAILED
[ $FAILED = 0 ]
