#!/usr/bin/env bash
# Builds kubectl-cftunnel from this checkout and installs it. Needs no root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=lab/setup.sh
. lab/setup.sh

usage() {
  cat <<'TEXT'
Usage: ./install.sh [--prefix DIR] [--dry-run] [--uninstall]

Builds kubectl-cftunnel from this checkout and installs it, its man pages and kubectl's completion hook.

  --prefix DIR  where to install: DIR/bin, DIR/share/man (default: cargo's own folder, whose bin is on PATH)
  --dry-run     say what would be done, change nothing
  --uninstall   remove what an install with the same --prefix has put there
TEXT
}

prefix=${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}
dry=; verb=install
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -gt 1 ] || die "--prefix needs a folder"; prefix=$2; shift ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --dry-run) dry=1 ;;
    --uninstall | uninstall) verb=uninstall ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument: $1" ;;
  esac
  shift
done
[ -n "$prefix" ] || die "--prefix needs a folder"

run() { if [ -n "$dry" ]; then printf 'would run: %s\n' "$*"; else "$@"; fi; }
put() { run install -D -m "$1" "$2" "$3"; }

pages() { find man -name '*.1' -printf '%f\n' | sort; }

if [ $verb = uninstall ]; then
  for file in "$prefix/bin/kubectl-cftunnel" "$prefix/bin/kubectl_complete-cftunnel" $(pages | sed "s#^#$prefix/share/man/man1/#"); do
    [ ! -e "$file" ] || run rm -f "$file"
  done
  [ -n "$dry" ] || say "removed kubectl-cftunnel from $prefix"
  exit 0
fi

mkdir_ok=$prefix; while [ ! -e "$mkdir_ok" ]; do mkdir_ok=$(dirname "$mkdir_ok"); done
[ -w "$mkdir_ok" ] || die "$prefix is not writable" "choose another folder: ./install.sh --prefix \$HOME/.local"
need_rust
[ -n "$dry" ] || need_cc
run cargo build --release --locked --bin kubectl-cftunnel
built=${CARGO_TARGET_DIR:-target}/release/kubectl-cftunnel
put 755 "$built" "$prefix/bin/kubectl-cftunnel"
put 755 completions/kubectl_complete-cftunnel "$prefix/bin/kubectl_complete-cftunnel"
for page in $(pages); do put 644 "man/$page" "$prefix/share/man/man1/$page"; done
[ -z "$dry" ] || exit 0
say "installed $("$prefix/bin/kubectl-cftunnel" version -o name 2>/dev/null || echo kubectl-cftunnel) in $prefix/bin"
case :$PATH: in *:"$prefix/bin":*) ;; *) say "note: $prefix/bin is not on PATH; add it: export PATH=\"$prefix/bin:\$PATH\"" ;; esac
