#!/usr/bin/env bash
# Sourced by install.sh and test.sh: finds what they need, installs Debian packages when it may, else says what to install.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; shift; for line in "$@"; do say "  help: $line"; done; exit 2; }

# may_install: whether Debian packages can be installed without asking anybody.
may_install() { command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; }

# packages NAME...: installs them, or says how.
packages() {
  local as_root=
  [ "$(id -u)" = 0 ] || as_root=sudo
  if ! command -v apt-get >/dev/null; then
    die "these packages are missing: $*" "install them with this system's package manager (the names are Debian's), then run this again"
  fi
  may_install || die "these packages are missing, and installing them needs root: $*" "sudo apt-get update && sudo apt-get install --yes $*"
  say "installing: $*"
  # shellcheck disable=SC2086 # empty or one word
  { $as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $as_root apt-get install --yes -qq --no-install-recommends "$@" >/dev/null; } ||
    die "apt-get could not install: $*" "sudo apt-get update && sudo apt-get install --yes $*"
}

# need COMMAND PACKAGE [COMMAND PACKAGE...]: installs the packages whose command is missing.
need() {
  local missing=()
  while [ $# -gt 0 ]; do
    command -v "$1" >/dev/null || missing+=("$2")
    shift 2
  done
  [ ${#missing[@]} = 0 ] || packages "${missing[@]}"
}

# need_rust: cargo of at least the version that Cargo.toml names. Rust is the one thing we do not install: rustup's is expected.
need_rust() {
  local want have
  # A shell that has not read rustup's environment file yet is the usual state right after installing it.
  if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH; export PATH; fi
  command -v cargo >/dev/null || die "cargo is not on PATH" "install Rust from https://rustup.rs, then run this again"
  want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  have=$(rustc --version | awk '{print $2}')
  [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -1)" = "$want" ] || die "Rust $have is too old, $want or newer is needed" "rustup update stable"
}

# need_cc: a C compiler and its headers, for the cryptography library.
need_cc() {
  if ! printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | ${CC:-cc} -x c -o /dev/null - 2>/dev/null; then
    packages gcc libc6-dev
  fi
}

# need_gungraun: valgrind, and what drives it for the benchmarks, in the one version that their library speaks to.
need_gungraun() {
  local want
  need valgrind valgrind
  want=$(sed -n '/^name = "gungraun"$/{n;s/^version = "\(.*\)"$/\1/p}' Cargo.lock)
  [ "$(gungraun-runner --version 2>/dev/null | grep -o '[0-9.]*$')" = "$want" ] && return
  say "installing gungraun-runner $want"
  cargo install --locked --quiet gungraun-runner --version "=$want" ||
    die "gungraun-runner $want could not be installed" "cargo install --locked gungraun-runner --version =$want"
}

# need_go: Go that can build the peers of lab/. From 1.21 on Go fetches the toolchain that a module asks for; Debian 12's 1.19 cannot, but
# it can download the toolchain as the module that it is.
need_go() {
  local want have dir
  want=$(sed -n 's/^go //p' lab/edge/*/go.mod | sort -V | tail -1)
  case $want in *.*.*) ;; *) want=$want.0 ;; esac
  dir=${XDG_CACHE_HOME:-$HOME/.cache}/cftunnel-go/go$want
  if [ -x "$dir/bin/go" ]; then PATH=$dir/bin:$PATH; export PATH GOTOOLCHAIN=local; return; fi
  need go golang-go
  have=$(go env GOVERSION | sed 's/^go//')
  if [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -1)" = "$want" ]; then return; fi
  if [ "$(printf '1.21\n%s\n' "$have" | sort -V | head -1)" = 1.21 ]; then export GOTOOLCHAIN=auto; return; fi
  say "Go $have is too old, fetching Go $want"
  local arch module zip tmp
  case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
  module=golang.org/toolchain@v0.0.1-go$want.linux-$arch
  # Without its authorities Go trusts nobody; a minimal Debian comes without them.
  [ -n "${SSL_CERT_FILE:-}" ] || [ -e /etc/ssl/certs/ca-certificates.crt ] || packages ca-certificates
  local answer
  answer=$(cd / && go mod download -json "$module" 2>&1) || true
  zip=$(sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$answer")
  [ -d "$zip" ] || die "Go $want or newer is needed, this is $have, and its toolchain could not be fetched: $answer" "install Go 1.21 or newer from https://go.dev/dl"
  tmp=$dir.$$
  if ! { mkdir -p "$(dirname "$dir")" && cp -r "$zip" "$tmp" && chmod -R u+w "$tmp" && chmod +x "$tmp"/bin/* "$tmp"/pkg/tool/*/* && mv -T "$tmp" "$dir"; }; then
    die "Go $want could not be unpacked into $dir"
  fi
  PATH=$dir/bin:$PATH; export PATH GOTOOLCHAIN=local
}
