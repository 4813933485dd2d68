#!/usr/bin/env bash
# Everything that must hold before a change lands. TIDEGATE_LONG=1 makes the attacks on the server and the floods of keys long
# ones, and runs all simulations of adaptive limits. Installs what the tests need: on Debian and its kin by apt-get,
# elsewhere it says what is missing. The last lines are the test runner's own, and their sum.
#
# scripts/test.sh --interop runs only the comparison with envoyproxy/ratelimit and grpcurl, which need Go. Without --interop it
# comes last if Go is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# With the minutes since the start.
say() { printf '\n== %s [%d:%02d]\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    if command -v apt-get >/dev/null; then
        say "installing $2"
        local sudo=""
        [ "$(id -u)" = 0 ] || sudo="sudo"
        $sudo apt-get update -qq
        DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$2" >/dev/null
        # The tests start their own servers on free ports.
        command -v systemctl >/dev/null && $sudo systemctl disable --now "$2" >/dev/null 2>&1 || true
    else
        echo "the tests need $1: install the package that has it (Debian: $2)" >&2
        exit 1
    fi
}

results=$(mktemp)
trap 'rm -f "$results"' EXIT
failed=0
tests() { # tests TITLE CARGO-TEST-ARGUMENT...
    say "$1"
    # A test that hangs is a failure with a name, not a run that never ends.
    timeout --signal=INT 30m cargo test --all-features --locked "${@:2}" 2>&1 | tee -a "$results" || failed=1
}
sum() {
    awk '/^test result:/ { passed += $4; failed += $6 } END { print ""; print passed " passed, " failed " failed" }' "$results"
    exit $failed
}
interop() {
    TIDEGATE_RATELIMIT=$(scripts/servers.sh ratelimit)
    export TIDEGATE_RATELIMIT
    local known=()
    if [ -n "${TIDEGATE_GRPCURL:-}" ] || { [ -z "${TIDEGATE_OFFLINE:-}" ] && command -v go >/dev/null; }; then
        TIDEGATE_GRPCURL=$(scripts/servers.sh grpcurl)
        export TIDEGATE_GRPCURL
    else
        say "there is no Go, or TIDEGATE_OFFLINE is set: NOT tested with grpcurl"
        known=(--skip interop::grpcurl)
    fi
    tests "grpcurl, and the same requests to envoyproxy/ratelimit" -p tidegate-server --test grpc -- --ignored interop --show-output \
        ${known[@]+"${known[@]}"}
}

need cc gcc
need redis-server redis-server
need redis-cli redis-tools

case "${1:-}" in
"") ;;
--interop)
    interop
    sum
    ;;
*)
    echo "scripts/test.sh: $1 is not known; there is --interop, or nothing" >&2
    exit 2
    ;;
esac

# The shared store is also tested on the oldest Redis that is supported, and on Valkey, and gRPC with Envoy: fetched now, so
# that a network that is not there is told before anything else.
if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
    say "TIDEGATE_OFFLINE is set: NOT tested on Redis 6.2 and Valkey, and NOT with Envoy"
else
    say "Redis 6.2, Valkey and Envoy"
    redis62=$(scripts/servers.sh redis-6.2)
    valkey=$(scripts/servers.sh valkey)
    TIDEGATE_ENVOY=$(scripts/servers.sh envoy)
    export TIDEGATE_ENVOY
fi

need python3 python3
need nginx nginx
need haproxy haproxy
if command -v promtool >/dev/null; then # of Debian's package prometheus, which is large
    promtool test rules packaging/prometheus/alerts.test.yaml
else
    say "there is no promtool: the alert rules are NOT tested"
fi
if command -v helm >/dev/null; then
    helm lint --strict --quiet packaging/helm/tidegate
    helm template tidegate packaging/helm/tidegate --kube-version 1.30.0 --set store.url=redis://valkey,tls.secret=a,access.secret=b >/dev/null
else
    say "there is no helm: the chart's templates are NOT rendered"
fi
need chromium chromium
need valgrind valgrind
need curl curl
need node nodejs
need npm npm
typos=$(scripts/tools.sh typos)
deny=$(scripts/tools.sh cargo-deny)

say "formatting, spelling and lints"
cargo fmt --all --check
"$typos"
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings

say "licences, sources and banned crates"
"$deny" --all-features --locked check --hide-inclusion-graph bans licenses sources

say "the packages as they would be published"
cargo package --workspace --exclude tidegate-redis-servers --locked --allow-dirty --no-verify --quiet
for crate in crates/*/; do
    grep -q '^publish = false' "$crate/Cargo.toml" && continue
    for file in README.md LICENSE-APACHE LICENSE-MIT; do
        cargo package --list --allow-dirty --locked --quiet --manifest-path "$crate/Cargo.toml" | grep -qx "$file" ||
            { echo "the package of $crate has no $file" >&2; exit 1; }
    done
done

say "the oldest Rust that is promised"
scripts/msrv.sh

say "the public API beside its snapshot"
cargo run --quiet --locked --manifest-path api/Cargo.toml

say "documentation"
scripts/docs.py
bench/chart.py --check
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked --quiet

say "the core without the standard library"
cargo check --locked --quiet -p tidegate-core --no-default-features

if rustup target list --installed 2>/dev/null | grep -qx x86_64-unknown-linux-musl; then
    say "the calls to the system with musl, which the released binaries have"
    cargo check --locked --quiet -p tidegate-limiter --target x86_64-unknown-linux-musl
else
    say "rustup has no target x86_64-unknown-linux-musl: the system calls are NOT checked with musl"
fi

say "examples of flow control"
cargo build --workspace --all-features --examples --locked --quiet
for example in hot_keys http_breaker "axum_overload --short"; do # each fails if it does not show what it promises
    # shellcheck disable=SC2086 # its name and its arguments
    "${CARGO_TARGET_DIR:-target}"/debug/examples/$example
done

say "lock-free pieces in every interleaving (loom)"
RUSTFLAGS="--cfg loom" cargo test --locked --release --target-dir target/loom \
    -p tidegate-core -p tidegate-limiter -p tidegate-flow --lib --test 'loom_*'

if [ "$(uname -m)" = x86_64 ]; then
    say "instructions of hot calls beside their counts"
    cargo run --quiet --locked --release --manifest-path bench/instructions/Cargo.toml
else
    say "this is no x86-64: the instructions of hot calls are NOT counted"
fi

tests "tests" --workspace
if [ -n "${TIDEGATE_OFFLINE:-}" ] && [ -z "${TIDEGATE_RATELIMIT:-}" ]; then
    say "TIDEGATE_OFFLINE is set: NOT compared with envoyproxy/ratelimit"
elif command -v go >/dev/null || [ -n "${TIDEGATE_RATELIMIT:-}" ]; then
    interop
else
    say "there is no Go: NOT compared with envoyproxy/ratelimit"
fi
if [ -n "${TIDEGATE_OFFLINE:-}" ] && [ ! -d scripts/pages/node_modules ]; then
    say "TIDEGATE_OFFLINE is set: the dashboard is NOT looked at with a browser"
else
    say "the dashboard in a browser"
    scripts/pages.sh || failed=1
fi
if [ -n "${TIDEGATE_LONG:-}" ]; then
    flood=(--release -p tidegate-limiter --test flood)
    tests "the memory of a flooded limiter, alone in its process" "${flood[@]}" -- --ignored memory_follows_the_keys
    tests "a hundred million made-up keys" "${flood[@]}" -- --ignored --test-threads=1 hundred_million
    tests "a million values of a hot parameter" --release -p tidegate-flow --test hot_params -- --ignored
    tests "Envoy's usual timeout at 2,000 requests a second" -p tidegate-cli --test envoy_proxy -- --ignored --show-output
    tests "real servers beside the simulator" -p tidegate-cli --test store -- --ignored
    tests "adaptive limits, all simulations" --release -p tidegate-flow --test adaptive_simulation -- --ignored
fi
if [ -z "${TIDEGATE_OFFLINE:-}" ]; then
    # The two at once: their tests mostly wait for servers that are away. This build of Redis 6.2 has no TLS.
    store=(-p tidegate-redis --lib --tests)
    cargo test --all-features --locked --quiet --no-run "${store[@]}"
    old=$(mktemp)
    (
        results=$old
        export TIDEGATE_REDIS_SERVER="$redis62"
        tests "the shared store on $("$redis62" --version)" "${store[@]}" -- --skip tls_connects_only_to_trusted_servers \
            --skip a_plain_address_of_a_tls_server_gives_a_hint
        exit $failed
    ) >"$old.shown" 2>&1 &
    TIDEGATE_REDIS_SERVER="$valkey" tests "the shared store on $("$valkey" --version)" "${store[@]}"
    wait $! || failed=1
    cat "$old.shown"
    cat "$old" >>"$results"
    rm -f "$old" "$old.shown"
fi

sum
