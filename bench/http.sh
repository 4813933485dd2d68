#!/usr/bin/env bash
# `POST /v1/acquire` beside a hyper server that answers a constant (bench/peers/src/bin/constant-http.rs), with wrk: one thread, 64
# connections, 100,000 keys that come equally often. `constant` is the body alone, `constant-as-long` also has fields as long as
# Tidegate's, which wrk must read. Needs wrk (Debian package wrk).
#
#   bench/http.sh [ROUNDS] [SECONDS]      (defaults 5 and 3)
#
# The servers take turns within a round, so that what else the machine does falls on both. One JSON object a line, the median of the
# rounds: requests a second, and what the server's process spent on a request (ns, in the kernel too; ticks of 10 ms). TIDEGATE and
# CONSTANT name programs that are built already.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-3}
if [ -z "${TIDEGATE:-}" ]; then
    cargo build --profile dist --quiet -p tidegate-cli --features full
    TIDEGATE=target/dist/tidegate
fi
if [ -z "${CONSTANT:-}" ]; then
    cargo build --release --quiet --manifest-path bench/peers/Cargo.toml --bin constant-http
    CONSTANT=bench/peers/target/release/constant-http
fi
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

cat >"$scratch/rules.yaml" <<'RULES'
limits:
  - {name: bucket, limit: 1000000/1s, algorithm: token-bucket}
RULES
cat >"$scratch/acquire.lua" <<'LUA'
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
function request()
  return wrk.format(nil, nil, nil, string.format('{"limit":"bucket","key":"user:%d"}', math.random(100000)))
end
LUA
http_port=16490 constant_port=16491 as_long_port=16492
"$TIDEGATE" serve --resp off --admin off --http 127.0.0.1:$http_port --rules "$scratch/rules.yaml" >"$scratch/tidegate.log" 2>&1 &
tidegate=$!
"$CONSTANT" 127.0.0.1:$constant_port >"$scratch/constant.log" 2>&1 &
constant=$!
"$CONSTANT" 127.0.0.1:$as_long_port --fields >"$scratch/constant-as-long.log" 2>&1 &
as_long=$!
for port in $http_port $constant_port $as_long_port; do
    until curl -so /dev/null "http://127.0.0.1:$port/healthz"; do
        kill -0 $tidegate $constant $as_long || { cat "$scratch"/*.log >&2; exit 1; }
        sleep 0.05
    done
done

cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}

one() { # who, pid, url, further arguments of wrk
    local who=$1 pid=$2 url=$3 before
    shift 3
    before=$(cpu "$pid")
    wrk -t1 -c64 -d"${seconds}s" "$@" "$url" >"$scratch/wrk"
    grep -q 'Non-2xx' "$scratch/wrk" && { cat "$scratch/wrk" >&2; exit 1; }
    awk -v t=$(($(cpu "$pid") - before)) -v hz="$(getconf CLK_TCK)" \
        '/requests in/ { n = $1 } /^Requests\/sec/ { r = $2 } END { printf "%.0f %.0f\n", r, t / hz / n * 1e9 }' \
        "$scratch/wrk" >>"$scratch/$who"
}

for ((round = 0; round < rounds; round++)); do
    one acquire $tidegate "http://127.0.0.1:$http_port/v1/acquire" -s "$scratch/acquire.lua"
    one constant $constant "http://127.0.0.1:$constant_port/v1/acquire" -s "$scratch/acquire.lua"
    one constant-as-long $as_long "http://127.0.0.1:$as_long_port/v1/acquire" -s "$scratch/acquire.lua"
    one healthz $tidegate "http://127.0.0.1:$http_port/healthz"
done

median() { cut -d' ' -f"$2" "$1" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for who in acquire constant constant-as-long healthz; do
    echo "{\"work\":\"http\",\"who\":\"$who\",\"per_second\":$(median "$scratch/$who" 1),\"cpu_ns\":$(median "$scratch/$who" 2)}"
done
