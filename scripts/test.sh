#!/usr/bin/env bash
# Runs every check and test that a change must pass. Installs what they need: with apt-get on Debian and its kin; elsewhere it
# names what is missing. Each stage counts in the last line, the sum; each failed stage is repeated above it with its reason.
# TIDEGATE_LONG=1 makes the attacks on the server and the floods of keys long, runs all simulations of adaptive limits, tests all of the
# shared store on each version of it, and runs what is built for longer than it is tested: helm, grpcurl, the quotas of Envoy AI Gateway.
#
# scripts/test.sh --interop runs only the comparisons: with Sentinel, which needs a JDK and Maven, with envoyproxy/ratelimit and
# grpcurl, which need Go, and with the Python packages of OpenAI and LiteLLM. Without --interop they come last; those with Go only if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints a title with the minutes since the start.
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

# Debian has Python's venv in a package without a command.
need_venv() {
    python3 -c 'import ensurepip' 2>/dev/null && return
    command -v apt-get >/dev/null || { echo "the tests need Python's venv with ensurepip" >&2; exit 1; }
    DEBIAN_FRONTEND=noninteractive $([ "$(id -u)" = 0 ] || echo sudo) apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
}

scratch=$(mktemp -d)
passed=0
failed=0
failures=() # one text for each failed stage
skipped=()  # "what is not tested (why)"
again=()    # tests that failed among others, and passed alone
title="the installation of what the tests need"
begun=()    # titles of stages that run next to others, their commands and processes
commands=()
processes=()
program=$PWD/target/debug/tidegate
[ -z "${CARGO_TARGET_DIR:-}" ] || program=$(realpath -m "$CARGO_TARGET_DIR")/debug/tidegate

# Prints what was skipped, what failed, and the sum, also if the script ends early.
finish() {
    local status=$?
    trap - EXIT
    # `exit 2` is for wrong arguments.
    if [ "$status" != 0 ] && [ "$status" != 2 ]; then
        failed=$((failed + 1))
        failures+=("$title: the script ended with status $status")
    fi
    [ ${#skipped[@]} = 0 ] || printf '\nNOT tested: %s\n' "$(printf '%s; ' "${skipped[@]}" | sed 's/; $//')"
    [ ${#again[@]} = 0 ] || printf '\nfailed at first, and passed when it ran alone: %s\n' "${again[@]}"
    [ ${#failures[@]} = 0 ] || printf '\nfailed: %s\n' "${failures[@]}"
    rm -rf "$scratch"
    [ "$status" = 2 ] && exit 2
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" = 0 ]
    exit
}
trap finish EXIT

# Runs a command in a subshell, prints its output, and counts it. The stages after a failed one still run.
stage() { # stage TITLE COMMAND...
    title=$1
    say "$title"
    local status
    set +e # in a condition, `set -e` would have no effect within the command
    (set -e; "${@:2}") 2>&1 | tee "$scratch/output"
    status=${PIPESTATUS[0]}
    set -e
    count "$scratch/output" "$status"
}

# Starts a stage that runs next to those that follow, until `collect` waits for it.
begin() { # begin TITLE COMMAND...
    begun+=("$1")
    commands+=("$(printf '%q ' "${@:2}")")
    (set -e; "${@:2}") >"$scratch/begun${#begun[@]}" 2>&1 &
    processes+=($!) # `count` replaces $!, because it reads from a process
}

# A stage that failed next to others runs once more, alone; programs of tests do this for each test.
collect() {
    local at before status statuses=()
    for at in "${!begun[@]}"; do
        status=0
        wait "${processes[at]}" || status=$?
        statuses+=("$status")
    done
    for at in "${!begun[@]}"; do
        title=${begun[at]}
        say "$title"
        cat "$scratch/begun$((at + 1))"
        if [ "${statuses[at]}" != 0 ] && ! grep -q '^test result:' "$scratch/begun$((at + 1))"; then
            reason "$scratch/begun$((at + 1))" >"$scratch/first"
            before=$failed
            eval stage '"$title, once more"' "${commands[at]}"
            [ "$failed" != "$before" ] || again+=("${begun[at]}"$'\n'"$(cat "$scratch/first")")
        else
            count "$scratch/begun$((at + 1))" "${statuses[at]}"
        fi
    done
    begun=()
    commands=()
    processes=()
}

# A stage with cargo tests counts as these, any other as one. A test that passed only when it ran again alone is named at the end.
count() { # count OUTPUT STATUS
    local good bad once_more
    read -r good bad < <(awk '/^test result:/ { good += $4; bad += $6 } /^again: / { good++; bad-- } END { print good + 0, bad + 0 }' "$1")
    while read -r once_more; do again+=("$once_more"); done < <(sed -n 's/^again: //p' "$1")
    [ "$2" = 0 ] || [ "$bad" != 0 ] || bad=1
    [ "$good" != 0 ] || [ "$bad" != 0 ] || good=1
    passed=$((passed + good))
    failed=$((failed + bad))
    [ "$2" = 0 ] || failures+=("$title (status $2)"$'\n'"$(reason "$1")")
}

# The lines that name a failure, else the last ones.
reason() { # reason OUTPUT
    { grep -E '^(error|test .* FAILED$)|panicked at' "$1" || tail -n 25 "$1"; } | tail -n 30 | sed 's/^/    /'
}

tests() { # tests TITLE CARGO-TEST-ARGUMENT...
    # A test that hangs is a failure with a name, not a run that never ends. Always the whole workspace: the dependencies of one package
    # alone have other features, and would be built again.
    stage "$1" timeout --signal=INT 30m cargo test --workspace --all-features --locked --no-fail-fast "${@:2}"
}

# Sentinel's jars are fetched, and its programs compiled.
sentinel() {
    if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
        skipped+=("Sentinel (TIDEGATE_OFFLINE)")
        return
    fi
    need javac default-jdk-headless
    need mvn maven
    TIDEGATE_SENTINEL=$(scripts/servers.sh sentinel)
    export TIDEGATE_SENTINEL
    tests "Sentinel's own decisions and client" --test sentinel -- --ignored interop --show-output
    tests "a killed token server of Sentinel's clients" --test sentinel_failover -- --ignored interop --show-output
}

# Debian's etcd, for rules from its keys.
configuration_services() {
    need etcd etcd-server
    tests "rules from etcd" --test http_source -- --ignored itself
}

interop() {
    TIDEGATE_RATELIMIT=$(scripts/servers.sh ratelimit)
    export TIDEGATE_RATELIMIT
    local known=()
    if command -v go >/dev/null && [ -z "${TIDEGATE_OFFLINE:-}" ]; then
        TIDEGATE_CONTROL_PLANE=$(scripts/servers.sh control-plane)
        TIDEGATE_GATEWAY=$(scripts/servers.sh gateway)
        export TIDEGATE_CONTROL_PLANE TIDEGATE_GATEWAY
    else
        skipped+=("go-control-plane, and the configurations of Envoy Gateway (no Go, or TIDEGATE_OFFLINE)")
        known=(--skip interop::control_plane --skip interop::gateway)
    fi
    # Go builds grpcurl for one minute, and the quotas of Envoy AI Gateway for three.
    if [ -n "${TIDEGATE_LONG:-}" ] && [ -n "${TIDEGATE_GATEWAY:-}" ]; then
        TIDEGATE_GRPCURL=$(scripts/servers.sh grpcurl)
        TIDEGATE_AI_GATEWAY_QUOTAS=$(scripts/servers.sh ai-gateway-quotas)
        export TIDEGATE_GRPCURL TIDEGATE_AI_GATEWAY_QUOTAS
    fi
    if [ -z "${TIDEGATE_GRPCURL:-}" ]; then
        skipped+=("grpcurl (no TIDEGATE_LONG, no Go, or TIDEGATE_OFFLINE)")
        known+=(--skip interop::grpcurl)
    fi
    if [ -n "${TIDEGATE_GATEWAY:-}" ]; then
        local unbuilt=()
        if [ -z "${TIDEGATE_AI_GATEWAY_QUOTAS:-}" ]; then
            skipped+=("the quotas of Envoy AI Gateway (no TIDEGATE_LONG)")
            unbuilt=(--skip quotas::)
        fi
        TIDEGATE_AI_GATEWAY=$(scripts/servers.sh ai-gateway)
        TIDEGATE_ENVOY=$(scripts/servers.sh envoy)
        export TIDEGATE_AI_GATEWAY TIDEGATE_ENVOY
        tests "Envoy AI Gateway's names, ports and quotas" --test packaging --test envoy_proxy -- --ignored interop_ai_gateway \
            ${unbuilt[@]+"${unbuilt[@]}"}
        if TIDEGATE_KGATEWAY=$(scripts/servers.sh kgateway); then
            export TIDEGATE_KGATEWAY
            tests "kgateway's policies" --test envoy_proxy -- --ignored interop_kgateway
        else
            skipped+=("kgateway's policies (its module cannot be fetched)")
        fi
    fi
    tests "grpcurl, and the same requests to envoyproxy/ratelimit" --test grpc -- --ignored interop --show-output \
        ${known[@]+"${known[@]}"}
    local programs="Envoy Gateway with its own Envoy, and the integration tests of envoyproxy/ratelimit"
    if [ -z "${TIDEGATE_LONG:-}" ]; then
        skipped+=("$programs (no TIDEGATE_LONG)")
    elif [ -z "${TIDEGATE_GATEWAY:-}" ] || [ "$(id -u)" != 0 ]; then
        skipped+=("$programs (no Go, no root, or TIDEGATE_OFFLINE)")
    else
        need ip iproute2
        TIDEGATE_ENVOY=$(scripts/servers.sh envoy)
        TIDEGATE_ENVOY_GATEWAY=$(scripts/servers.sh envoy-gateway)
        TIDEGATE_RATELIMIT_TESTS=$(scripts/servers.sh ratelimit-tests)
        export TIDEGATE_ENVOY TIDEGATE_ENVOY_GATEWAY TIDEGATE_RATELIMIT_TESTS
        tests "$programs" --test envoy_proxy -- --ignored interop --show-output
    fi
}

limitador() {
    stage "reservations compared with the crate limitador" \
        cargo run --quiet --locked --manifest-path bench/limitador/Cargo.toml -- "$([ -n "${TIDEGATE_LONG:-}" ] && echo 100000 || echo 20000)"
}

# The clients of language models, with the packages from PyPI and a stand-in for the provider.
model_clients() {
    if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
        skipped+=("the clients of language models (TIDEGATE_OFFLINE)")
        return
    fi
    need python3 python3
    need_venv
    # With the features that it has in the tests: nothing to build after them.
    stage "the server for the clients of language models" \
        cargo test --quiet --workspace --all-features --locked --no-run --test sentinel
    # Mostly they are fetched and started, on one processor.
    begin "the clients of language models" clients/test_models.py
}

# The client libraries of Redis and Valkey, at their defaults.
resp_clients() {
    if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
        skipped+=("the client libraries of Redis and Valkey (TIDEGATE_OFFLINE)")
        return
    fi
    need python3 python3
    need_venv
    stage "the server for the client libraries" \
        cargo test --quiet --workspace --all-features --locked --no-run --test sentinel
    stage "the client libraries of Redis and Valkey" scripts/clients/run.py "$program"
    stage "client libraries that wait in line" scripts/clients/waiting/run.py "$program"
    stage "HTTP and gRPC clients that retry" scripts/clients/retries/run.py
}

need cc gcc
need redis-server redis-server
need redis-cli redis-tools

case "${1:-}" in
"") ;;
--interop)
    sentinel
    configuration_services
    interop
    limitador
    model_clients
    collect
    resp_clients
    exit
    ;;
*)
    echo "scripts/test.sh: $1 is not known; there is --interop, or nothing" >&2
    exit 2
    ;;
esac

# The shared store is also tested on the oldest Redis that is supported and on Valkey, and gRPC with Envoy. They are fetched
# first, so that a missing network ends the script at once.
if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
    skipped+=("Redis 6.2, Valkey and Envoy (TIDEGATE_OFFLINE)")
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
need chromium chromium
need valgrind valgrind
need curl curl
need node nodejs
need npm npm
typos=$(scripts/tools.sh typos)

if command -v promtool >/dev/null || { [ -z "${TIDEGATE_OFFLINE:-}" ] && command -v apt-get >/dev/null; }; then
    stage "the alert rules" "$(scripts/tools.sh promtool)" test rules packaging/prometheus/alerts.test.yaml
else
    skipped+=("the alert rules (no promtool, and no apt or TIDEGATE_OFFLINE)")
fi

chart() {
    "$TIDEGATE_HELM" lint --strict --quiet packaging/helm/tidegate
    "$TIDEGATE_HELM" template tidegate packaging/helm/tidegate --kube-version 1.30.0 --set store.url=redis://valkey,tls.secret=a,access.secret=b \
        --set replicas=3,autoscaling.enabled=true,admin.expose=true,podMonitor.enabled=true,podMonitor.tokenSecret=t,podMonitor.serverName=n >/dev/null
    # More than one pod without a store would multiply the limits, and a value that there is not is a mistake.
    "$TIDEGATE_HELM" template tidegate packaging/helm/tidegate --kube-version 1.30.0 --set aiGateway.enabled=true,aiGateway.options.hold=2m |
        grep -q 'http://ai-gateway-controller.envoy-ai-gateway-system:18002?node=envoy-ai-gateway-ratelimit&option=hold=2m"'
    ! "$TIDEGATE_HELM" template tidegate packaging/helm/tidegate --kube-version 1.30.0 --set replicas=2 >/dev/null 2>&1
    ! "$TIDEGATE_HELM" template tidegate packaging/helm/tidegate --kube-version 1.30.0 --set replica=2 >/dev/null 2>&1
    # The control plane is exposed only with credentials.
    "$TIDEGATE_HELM" template tidegate packaging/helm/tidegate --kube-version 1.30.0 | grep -q 'value: "127.0.0.1:8082"'
    ! "$TIDEGATE_HELM" template tidegate packaging/helm/tidegate --kube-version 1.30.0 --set admin.expose=true >/dev/null 2>&1
}
# Without helm on the machine, Go builds it for three minutes.
if command -v helm >/dev/null || { [ -n "${TIDEGATE_LONG:-}" ] && [ -z "${TIDEGATE_OFFLINE:-}" ] && command -v go >/dev/null; }; then
    TIDEGATE_HELM=$(scripts/tools.sh helm) # a test of the packages renders the chart with it, too
    export TIDEGATE_HELM
    stage "the templates of the chart" chart
else
    skipped+=("the templates of the chart (no helm; TIDEGATE_LONG=1 builds it where Go and a network are)")
fi

stage "formatting" cargo fmt --all --check
stage "spelling" "$typos"
stage "plain English" scripts/style.py
stage "modules import only what is below them" scripts/layers.py
stage "what could panic on a request has a reason" scripts/panics.py
loom() {
    RUSTFLAGS="--cfg loom" cargo test --locked --release --target-dir target/loom \
        -p tidegate-core -p tidegate-limiter -p tidegate-flow --lib --test 'loom_*'
}
# Its longest model keeps one processor busy for minutes.
begin "lock-free pieces in every interleaving (loom)" loom
stage "lints" cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
if command -v cargo-deny >/dev/null; then
    stage "licences, sources and banned crates" \
        cargo-deny --all-features --locked check --hide-inclusion-graph bans licenses sources
else
    skipped+=("licences, sources and banned crates (no cargo-deny; the workflow has a job for them)")
fi

packages() {
    local crate file
    local all=(--workspace --exclude tidegate-redis-servers --locked --allow-dirty --no-verify --quiet)
    # All that a registry asks of a package, but for the upload. scripts/packages.sh builds and tests them.
    if [ -z "${TIDEGATE_OFFLINE:-}" ]; then cargo publish --dry-run "${all[@]}"; else cargo package "${all[@]}"; fi
    for crate in crates/*/; do
        grep -q '^publish = false' "$crate/Cargo.toml" && continue
        cargo package --list --allow-dirty --locked --quiet --manifest-path "$crate/Cargo.toml" >"$scratch/packaged"
        for file in README.md LICENSE-APACHE LICENSE-MIT; do
            grep -qx "$file" "$scratch/packaged" || { echo "the package of $crate has no $file" >&2; return 1; }
        done
    done
}
stage "the packages as they would be published" packages
stage "the oldest Rust that is promised" scripts/msrv.sh
documentation() {
    scripts/docs.py
    bench/chart.py --check
}
stage "documentation" documentation
stage "the public API, its documentation and its snapshot" cargo run --quiet --locked --manifest-path api/Cargo.toml
stage "the core without the standard library" cargo check --locked --quiet -p tidegate-core --no-default-features
features() {
    cargo clippy --locked --quiet -p tidegate-cli --no-default-features -- -D warnings
    cargo clippy --locked --quiet -p tidegate-cli --features grpc,webhook -- -D warnings
}
if [ -n "${TIDEGATE_LONG:-}" ]; then
    stage "the command with none and with some of its features" features
else
    skipped+=("the command with none and with some of its features (no TIDEGATE_LONG; the workflow has a job for them)")
fi

if rustup target list --installed 2>/dev/null | grep -qx x86_64-unknown-linux-musl; then
    stage "the calls to the system with musl, which the released binaries have" \
        cargo check --locked --quiet -p tidegate-limiter --target x86_64-unknown-linux-musl
else
    skipped+=("the system calls with musl (rustup has no target x86_64-unknown-linux-musl)")
fi

collect
# Each example fails if it does not show what it promises.
examples() {
    cargo build --workspace --all-features --examples --locked --quiet
    local programs=${CARGO_TARGET_DIR:-target}/debug/examples
    "$programs/hot_keys"
    "$programs/http_breaker"
    "$programs/axum_overload" --short
}
stage "examples of flow control" examples

if [ "$(uname -m)" = x86_64 ]; then
    stage "instructions of hot calls and their counts" \
        cargo run --quiet --locked --release --manifest-path bench/instructions/Cargo.toml
else
    skipped+=("the instructions of hot calls (not x86-64)")
fi

stage "tests" scripts/programs.py

# Of the program that the tests have built. A browser mostly waits.
if [ -n "${TIDEGATE_OFFLINE:-}" ] && [ ! -d scripts/pages/node_modules ]; then
    skipped+=("the dashboard in a browser (TIDEGATE_OFFLINE)")
else
    begin "the dashboard in a browser" env TIDEGATE="$program" scripts/pages.sh
fi
tests "examples in the documentation" --doc
sentinel
configuration_services
collect

if command -v dpkg-deb >/dev/null; then
    # Mostly compression, on one processor. The release's own program is static and takes ten minutes.
    begin "the archive and the Debian package of a release" scripts/release.sh --target "$(uname -m)-unknown-linux-gnu" \
        --program "$program" "$scratch/dist"
else
    skipped+=("the archive and the Debian package of a release (no dpkg-deb)")
fi

# The middleware to copy, with the real frameworks.
if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
    skipped+=("the middleware in clients/ (TIDEGATE_OFFLINE)")
else
    frameworks=(fastapi django express fastify)
    if command -v go >/dev/null; then frameworks+=(go); else skipped+=("clients/nethttp.go (no Go)"); fi
    if command -v mvn >/dev/null; then frameworks+=(spring); else skipped+=("clients/TidegateFilter.java (no Maven)"); fi
    need_venv
    begin "the middleware in clients/" env TIDEGATE_PROGRAM="$program" clients/test.py "${frameworks[@]}"
fi
if [ -n "${TIDEGATE_OFFLINE:-}" ] && [ -z "${TIDEGATE_RATELIMIT:-}" ]; then
    skipped+=("the comparison with envoyproxy/ratelimit (TIDEGATE_OFFLINE)")
elif command -v go >/dev/null || [ -n "${TIDEGATE_RATELIMIT:-}" ]; then
    interop
else
    skipped+=("the comparison with envoyproxy/ratelimit (no Go)")
fi
collect
model_clients
benches() {
    local manifest
    for manifest in bench/*/Cargo.toml; do cargo check --quiet --locked --all-targets --manifest-path "$manifest"; done
}
if [ -n "${TIDEGATE_LONG:-}" ]; then
    collect
    resp_clients
    limitador
    stage "the types of Envoy's messages" cargo run --quiet --locked --manifest-path proto/Cargo.toml
    stage "the benches compile" benches
    if [ -n "${TIDEGATE_OFFLINE:-}" ]; then
        skipped+=("the logs of real servers, fronts with their real programs, and other limiters (TIDEGATE_OFFLINE)")
    else
        need apache2 apache2
        need lighttpd lighttpd
        need varnishd varnish
        need squid squid
        need traffic_server trafficserver
        [ -e /usr/share/lua/5.3/socket.lua ] || need lua-socket lua-socket
        need mvn maven
        need javac default-jdk-headless
        need_venv
        stage "the logs of real servers" scripts/producers.py
        stage "fronts with their real programs" scripts/fronts.py
        stage "other limiters and the rules that replace them" scripts/migrate.py
        stage "the engines of a store, and what looks like one" scripts/stores.py
    fi
    flood=(--release --test flood)
    tests "the memory of a flooded limiter, alone in its process" "${flood[@]}" -- --ignored memory_follows_the_keys
    tests "a hundred million made-up keys" "${flood[@]}" -- --ignored --test-threads=1 hundred_million
    tests "a million tenants' plans in a store" --release --test orders -- --ignored
    stage "the fuzz targets on their inputs" scripts/fuzz.sh --replay
    tests "lines on the wire against a model, a million steps" --lib -- --ignored a_million_random_steps
    tests "every longer history of a line" --release --test line_model -- --ignored
    tests "a million values of a hot parameter" --release --test hot_params -- --ignored
    tests "Envoy's usual timeout at 2,000 requests a second" --test envoy_proxy -- --ignored --skip interop --show-output
    tests "real servers beside the simulator" --test store -- --ignored
    tests "adaptive limits, all simulations" --release --test adaptive_simulation -- --ignored
fi
if [ -z "${TIDEGATE_OFFLINE:-}" ]; then
    # The two at once: their tests mostly wait for servers that are away. This build of Redis 6.2 has no TLS.
    which=(--package redis --alone)
    [ -n "${TIDEGATE_LONG:-}" ] || which+=(--version)
    begin "the shared store on $("$redis62" --version)" env TIDEGATE_REDIS_SERVER="$redis62" \
        scripts/programs.py "${which[@]}" -- --skip tls_connects_only_to_trusted_servers \
        --skip each_mode_decides_in_a_cluster_with_tls --skip a_plain_address_of_a_tls_server_gives_a_hint \
        --skip an_authority_that_changes_in_its_file
    stage "the shared store on $("$valkey" --version)" env TIDEGATE_REDIS_SERVER="$valkey" scripts/programs.py "${which[@]}"
fi
collect
