#!/usr/bin/env bash
# Prints the path of a checking tool that scripts/test.sh runs beside cargo's own:
#
#   scripts/tools.sh typos        spelling (a wheel of PyPI, pinned by version)
#   scripts/tools.sh cargo-deny   licences, sources and banned crates, for the workflow (built by cargo install; five minutes, once)
#   scripts/tools.sh promtool     rules of Prometheus (from Debian's package prometheus)
#   scripts/tools.sh helm         charts of Kubernetes (built by go install; three minutes, once)
#
# Each is fetched once into ${XDG_CACHE_HOME:-~/.cache}/tidegate/tools; nothing is installed system-wide. A tool that is on
# the PATH already is taken as it is.
set -euo pipefail

TYPOS=1.52.0
CARGO_DENY=0.20.2
HELM=v3.18.6
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
promtool)
    command -v promtool && exit
    program="$cache/bin/promtool"
    if [ ! -x "$program" ]; then
        new=$(mktemp -d)
        trap "rm -rf '$new'" EXIT
        (cd "$new" && apt-get download -qq prometheus >&2 && dpkg-deb -x prometheus_*.deb .) ||
            die "promtool cannot be fetched with apt: install it"
        mkdir -p "$cache/bin"
        mv "$new/usr/bin/promtool" "$program"
    fi
    ;;
helm)
    command -v helm && exit
    program="$cache/bin/helm"
    if [ ! -x "$program" ]; then
        echo "building helm $HELM (three minutes, once)" >&2
        GOBIN="$cache/bin" go install "helm.sh/helm/v3/cmd/helm@$HELM" >&2 ||
            die "helm $HELM cannot be built with Go; see above"
    fi
    ;;
*) die "which one: typos, cargo-deny, promtool or helm?" ;;
esac
echo "$program"
