#!/usr/bin/env bash
# `tidegate serve --sentinel-token` beside Sentinel's own token server: requests that each answers, and its processor time. The clients are
# Sentinel's own with 8 threads on its one connection, and a raw client with 8 connections and 32 requests in flight on each. Needs a JDK
# and Maven (scripts/servers.sh sentinel).
#
#   bench/sentinel.sh [ROUNDS] [REQUESTS]      (defaults 5 and 200,000, of each client in a round)
#
# The servers take turns within a round, so that what else the machine does falls on both. A round before them is not counted: Java
# compiles in it. One JSON object a line, the median of the rounds: answers a second, what the server's process spent on a request (ns, in
# the kernel too; ticks of 10 ms), and how many answers of 100,000 the client missed. TIDEGATE names a program that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} requests=${2:-200000}
if [ -z "${TIDEGATE:-}" ]; then
    cargo build --profile dist --quiet -p tidegate-cli --features full
    TIDEGATE=target/dist/tidegate
fi
sentinel=$(scripts/servers.sh sentinel)
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

cat >"$scratch/shop.json" <<'RULES'
[{"resource": "r", "count": 1000, "clusterMode": true, "clusterConfig": {"flowId": 101, "thresholdType": 1}}]
RULES
tidegate_port=16493 sentinel_port=16494
"$TIDEGATE" serve --resp off --http off --admin off --sentinel-token 127.0.0.1:$tidegate_port --sentinel-rules "$scratch/shop.json" \
    --sentinel-max-qps 10000000 >"$scratch/tidegate.log" 2>&1 &
tidegate_pid=$!
"$sentinel" TokenServer $sentinel_port 101 1000 >"$scratch/sentinel.log" 2>&1 &
sentinel_pid=$!
for port in $tidegate_port $sentinel_port; do
    until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        kill -0 $tidegate_pid $sentinel_pid || { cat "$scratch"/*.log >&2; exit 1; }
        sleep 0.05
    done
done

cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}

one() { # work, who, pid, class, arguments
    local file="$scratch/$1.$2" pid=$3 before
    before=$(cpu "$pid")
    "$sentinel" "${@:4}" >"$scratch/said" 2>"$scratch/error" || { cat "$scratch/error" >&2; exit 1; }
    awk -v t=$(($(cpu "$pid") - before)) -v hz="$(getconf CLK_TCK)" \
        '/^-1 / { lost = $2 } /^ms / { ms = $2; next } { n += $2 }
         END { printf "%.0f %.0f %.0f\n", (n - lost) / ms * 1e3, t / hz / n * 1e9, lost / n * 1e5 }' "$scratch/said" >>"$file"
}

for ((round = 0; round <= rounds; round++)); do
    for who in tidegate sentinel; do
        port=${who}_port pid=${who}_pid
        one sentinel-client $who "${!pid}" Client "${!port}" 8 $((requests / 8)) 20 101
        one sentinel-raw $who "${!pid}" Raw "${!port}" 8 32 $((requests / 8)) 101
    done
    [ "$round" -gt 0 ] || rm "$scratch"/sentinel-{client,raw}.*
done

median() { cut -d' ' -f"$2" "$1" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for work in sentinel-client sentinel-raw; do
    for who in tidegate sentinel; do
        file="$scratch/$work.$who"
        echo "{\"work\":\"$work\",\"who\":\"$who\",\"per_second\":$(median "$file" 1),\"cpu_ns\":$(median "$file" 2),\"missed_of_100000\":$(median "$file" 3)}"
    done
done
