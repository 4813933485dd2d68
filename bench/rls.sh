#!/usr/bin/env bash
# Rate limit services over gRPC beside each other, and what they add to a request through Envoy.
#
#   bench/rls.sh [WORK...]      (default: memory hold held store place envoy; `count` needs valgrind)
#
#   memory   50 connections with 10 streams each, one descriptor, 100,000 values, 100 a minute for each: Tidegate, throttlecrab-server
#            (if THROTTLECRAB_SERVER names it: `cargo install throttlecrab-server`, with protoc), envoyproxy/ratelimit over its Redis
#   store    the same for servers whose limits are in Redis: Tidegate with `--store` (exact), envoyproxy/ratelimit
#   place    the same for `tidegate ratelimit`, whose settings are the environment of envoyproxy/ratelimit: over Redis, next to Tidegate with
#            the same store and envoyproxy/ratelimit; and without REDIS_URL, from memory
#   hold     the same on Tidegate for a rule with `hold`: each stream asks and reports in turns; next to `memory`, a call each
#   held     only questions of such a rule, a million and more: what an open hold takes of memory
#   count    instructions of a call with five descriptors, by callgrind: Tidegate, and a service of tonic that answers without deciding; the
#            difference of runs with 640 and 2,640 calls, ten at a time. DUMPS names a directory that keeps what callgrind writes
#   five     such calls, for a second opinion in processor time: the same two, and envoyproxy/ratelimit over its Redis
#   envoy    1,000 requests a second through Envoy without a limit, with a call for each request (RLS), with quotas (RLQS)
#
# ROUNDS (3) and SECONDS_EACH (5, after a warm-up of one) say how long. TIDEGATE names a built program. All servers run at once and
# take turns. One JSON object a line, for each round: `cpu_us` is what the service's process spent on a request, in the kernel too.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ -z "${TIDEGATE:-}" ]; then
    cargo build --profile dist --bin tidegate --features full >&2
    TIDEGATE=target/dist/tidegate
fi
if [ -z "${RLS_LOAD:-}" ]; then
    cargo build --release --manifest-path bench/rls/Cargo.toml >&2
    RLS_LOAD=bench/rls/target/release/rls-load
fi
constant=$(dirname "$RLS_LOAD")/rls-constant

mkdir -p "$scratch/ratelimit/config" "$scratch/holds"
cat >"$scratch/ratelimit/config/bench.yaml" <<'YAML'
domain: bench
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: plan, rate_limit: {unit: second, requests_per_unit: 100000}}
YAML
# envoyproxy/ratelimit refuses a file with a key that it does not know.
cat "$scratch/ratelimit/config/bench.yaml" - >"$scratch/holds/bench.yaml" <<'YAML'
  - {key: call, rate_limit: {unit: hour, requests_per_unit: 4000000000, hold: 5m}}
YAML
config=$scratch/ratelimit/config

declare -A pid port
cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}
listens() { # listens PORT
    until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do sleep 0.05; done
}
redis() { # redis PORT
    redis-server --port "$1" --bind 127.0.0.1 --save "" --appendonly no --dir "$scratch" >/dev/null &
    listens "$1"
}
tidegate() { # tidegate NAME PORT OPTION...
    local options=(--http off --resp off --grpc "127.0.0.1:$2" --envoy-config "$config" "${@:3}")
    [[ " ${options[*]} " == *" --admin "* ]] || options+=(--admin off)
    "$TIDEGATE" serve "${options[@]}" \
        >/dev/null 2>&1 &
    pid[$1]=$! port[$1]=$2
    listens "$2"
}
by_environment() { # by_environment NAME PORT REDIS PROGRAM ARGUMENT...
    RUNTIME_ROOT=$scratch RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_WATCH_ROOT=false USE_STATSD=false LOG_LEVEL=error \
        PORT=$(($2 + 100)) DEBUG_PORT=$(($2 + 200)) GRPC_PORT=$2 REDIS_SOCKET_TYPE=tcp REDIS_URL=$3 \
        "${@:4}" >/dev/null 2>&1 &
    pid[$1]=$! port[$1]=$2
    listens "$2"
}
ratelimit() { # ratelimit PORT REDIS-PORT
    by_environment ratelimit "$1" "127.0.0.1:$2" "$(scripts/servers.sh ratelimit)"
}

one() { # one WORK WHO KIND OPTION...
    local before after out
    before=$(cpu "${pid[$2]}")
    out=$("$RLS_LOAD" "$3" "127.0.0.1:${port[$2]}" seconds="$seconds" "${@:4}")
    after=$(cpu "${pid[$2]}")
    if [[ $out != *'"failed":0,'* ]]; then
        echo "bench/rls.sh: $2 answered some requests with an error, so its figures are no comparison: $out" >&2
        exit 1
    fi
    # The warm-up is in the ticks, and not in the requests.
    awk -v out="$out" -v work="$1" -v who="$2" -v ticks=$((after - before)) -v s="$seconds" -v hz="$(getconf CLK_TCK)" 'BEGIN {
        split(out, part, /[:,]/)
        printf "{\"work\":\"%s\",\"who\":\"%s\",\"per_second\":%.0f,\"cpu_us\":%.1f,%s}\n", work, who, part[2] / s,
            ticks / hz * 1e6 / (part[2] * (s + 1) / s), out
    }'
}

memory() {
    redis 16379
    tidegate tidegate 16381
    ratelimit 16382 16379
    if [ -n "${THROTTLECRAB_SERVER:-}" ]; then
        "$THROTTLECRAB_SERVER" --grpc --grpc-host 127.0.0.1 --grpc-port 16383 --store-capacity 200000 --log-level error >/dev/null 2>&1 &
        pid[throttlecrab]=$! port[throttlecrab]=16383
        listens 16383
    fi
    for ((round = 0; round < rounds; round++)); do
        one memory tidegate envoy
        [ -z "${THROTTLECRAB_SERVER:-}" ] || one memory throttlecrab throttlecrab
        one memory ratelimit envoy
    done
}

hold() {
    config=$scratch/holds
    tidegate tidegate 16381
    for ((round = 0; round < rounds; round++)); do
        one memory tidegate envoy
        one hold tidegate hold
    done
}

held() {
    local before after
    config=$scratch/holds
    tidegate tidegate 16381 --max-reservations 10000000 --admin 127.0.0.1:16391
    memory_of() { awk '/^VmRSS/ {print $2 * 1024}' "/proc/${pid[tidegate]}/status"; }
    holds() { curl -s http://127.0.0.1:16391/metrics | awk '/^tidegate_reservations / {print $2}'; }
    # What does not grow with the holds: 100,000 keys, connections, threads.
    "$RLS_LOAD" hold 127.0.0.1:16381 seconds=2 >/dev/null
    before="$(holds) $(memory_of)"
    "$RLS_LOAD" held 127.0.0.1:16381 seconds="$seconds" >/dev/null
    after="$(holds) $(memory_of)"
    awk -v before="$before" -v after="$after" 'BEGIN {
        split(before, b, " "); split(after, a, " ")
        printf "{\"work\":\"held\",\"who\":\"tidegate\",\"holds\":%d,\"bytes_each\":%.1f}\n", a[1] - b[1], (a[2] - b[2]) / (a[1] - b[1])
    }'
}

store() {
    redis 16379
    tidegate tidegate 16381 --store redis://127.0.0.1:16379
    ratelimit 16382 16379
    for ((round = 0; round < rounds; round++)); do
        one store tidegate envoy
        one store ratelimit envoy
    done
}

place() {
    local who
    redis 16379
    tidegate serve 16381 --store redis://127.0.0.1:16379
    ratelimit 16382 16379
    by_environment in-place 16383 127.0.0.1:16379 "$TIDEGATE" ratelimit
    by_environment in-place-memory 16384 "" "$TIDEGATE" ratelimit
    for ((round = 0; round < rounds; round++)); do
        for who in serve in-place in-place-memory ratelimit; do
            one place "$who" envoy
        done
    done
}

five() {
    local who
    redis 16379
    tidegate tidegate 16381
    ratelimit 16382 16379
    "$constant" 127.0.0.1:16383 >/dev/null 2>&1 &
    pid[constant]=$! port[constant]=16383
    listens 16383
    for ((round = 0; round < rounds; round++)); do
        for who in tidegate constant ratelimit; do
            one five "$who" five
        done
    done
}

counted() { # counted CALLS PROGRAM OPTION...: the instructions of a server that listens on 16381, for this number of calls
    local process out=${DUMPS:-$scratch}/callgrind.$(basename "$2").$1
    valgrind --tool=callgrind --callgrind-out-file="$out" "${@:2}" >/dev/null 2>&1 &
    process=$!
    listens 16381
    "$RLS_LOAD" five 127.0.0.1:16381 connections=1 streams=10 calls="$1" >/dev/null
    kill "$process"
    wait "$process" || true
    awk '/^(summary|totals):/ { print $2; exit }' "$out"
}

count() {
    local who few many
    for who in tidegate constant; do
        if [ "$who" = tidegate ]; then
            set -- "$TIDEGATE" serve --http off --resp off --admin off --grpc 127.0.0.1:16381 --envoy-config "$config"
        else
            set -- "$constant" 127.0.0.1:16381
        fi
        few=$(counted 640 "$@")
        many=$(counted 2640 "$@")
        echo "{\"work\":\"count\",\"who\":\"$who\",\"instructions\":$(((many - few) / 2000))}"
    done
}

# One Envoy with these lines as its filter. Its backend is a listener of its own, as Envoy limits no direct answer.
envoy() { # envoy NAME PORT FILTER
    cat >"$scratch/$1.yaml" <<YAML
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: $2}}
      filter_chains:
        - filters:
            - name: http
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: ingress
                http_filters:
$3
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {prefix: /}
                          route:
                            cluster: backend
                            rate_limits:
                              - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
    - address: {socket_address: {address: 127.0.0.1, port_value: $(($2 + 10))}}
      filter_chains:
        - filters:
            - name: http
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: backend
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]
  clusters:
    - name: backend
      connect_timeout: 1s
      load_assignment:
        cluster_name: backend
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: $(($2 + 10))}}}}]}]
    - name: tidegate
      connect_timeout: 1s
      load_assignment:
        cluster_name: tidegate
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 16381}}}}]}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
YAML
    "$(scripts/servers.sh envoy 2>/dev/null)" --config-path "$scratch/$1.yaml" --disable-hot-restart --concurrency 1 --log-level error \
        >/dev/null 2>&1 &
    pid[$1]=$! port[$1]=$2
    listens "$2"
}

envoys() {
    tidegate tidegate 16381
    envoy none 16390 ""
    envoy rls 16391 '                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: bench
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: tidegate}}'
    envoy rlqs 16392 '                  - name: envoy.filters.http.rate_limit_quota
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
                      domain: bench
                      rlqs_server: {envoy_grpc: {cluster_name: tidegate}}
                      bucket_matchers:
                        matcher_list:
                          matchers:
                            - predicate:
                                single_predicate:
                                  input: &user
                                    name: user
                                    typed_config:
                                      "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput
                                      header_name: x-user
                                  value_match: {safe_regex: {google_re2: {}, regex: .+}}
                              on_match:
                                action:
                                  name: quota
                                  typed_config:
                                    "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
                                    bucket_id_builder: {bucket_id_builder: {plan: {string_value: all}}}
                                    reporting_interval: 5s'
    for ((round = 0; round < rounds; round++)); do
        for who in none rls rlqs; do
            one envoy "$who" proxy connections=10 streams=1 rate=1000
        done
    done
}

run() { # run WORK, in a subshell: its servers end with it
    trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null' EXIT
    case "$1" in
    memory) memory ;;
    hold) hold ;;
    held) held ;;
    store) store ;;
    place) place ;;
    count) count ;;
    five) five ;;
    envoy) envoys ;;
    esac
}

for work in "${@:-memory hold held store place envoy}"; do
    for work in $work; do
        case "$work" in
        memory | hold | held | store | place | count | five | envoy) (run "$work") ;;
        *)
            echo "bench/rls.sh: $work is not known; there is memory, hold, held, store, place, count, five and envoy" >&2
            exit 2
            ;;
        esac
    done
done
