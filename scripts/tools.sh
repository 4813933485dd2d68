#!/usr/bin/env bash
# Prints the path of a checking tool that scripts/test.sh runs beside cargo's own:
#
#   scripts/tools.sh typos        spelling (a wheel of PyPI, pinned by version)
#   scripts/tools.sh cargo-deny   licences, sources and banned crates (built by cargo install; five minutes, once)
#
# Each is fetched once into ${XDG_CACHE_HOME:-~/.cache}/tidegate/tools; nothing is installed system-wide. A tool that is on
# the PATH already is taken as it is.
set -euo pipefail

TYPOS=1.52.0
CARGO_DENY=0.20.2
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools"

die() {
    printf 'scripts/tools.sh: %s\n' "$*" >&2
    exit 1
}

case "${1:-}" in
typos)
    command -v typos && exit
    program="$cache/typos-$TYPOS/bin/typos"
    if [ ! -x "$program" ]; then
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
            --target "$cache/typos-$TYPOS" "typos==$TYPOS" >&2 ||
            die "typos $TYPOS cannot be fetched: install python3 with pip, or typos itself"
    fi
    ;;
cargo-deny)
    command -v cargo-deny && exit
    program="$cache/bin/cargo-deny"
    if [ ! -x "$program" ]; then
        echo "building cargo-deny $CARGO_DENY (five minutes, once)" >&2
        cargo install --quiet --locked --root "$cache" --version "$CARGO_DENY" cargo-deny >&2 ||
            die "cargo-deny $CARGO_DENY cannot be built; see above"
    fi
    ;;
*) die "which one: typos or cargo-deny?" ;;
esac
echo "$program"
