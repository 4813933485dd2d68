#!/usr/bin/env bash
# What one connection gets through `tidegate serve --store` if the store is far away: one hot key, pipelines of 1 and 64, a store at 5, 40 and
# 80 ms behind a proxy that delays replies (crates/redis-servers/examples/delay.rs), exact and leased limits.
#
#   bench/far.sh [TIDEGATE] [ROUNDS] [DELAY]      (defaults: both built here, and 3)
#
# All take turns within a round, so that what else the machine does falls on each. One JSON object a line, the median of the
# rounds: decisions a second, and the round trips that a pipeline takes.
set -euo pipefail
cd "$(dirname "$0")/.."
tidegate=${1:-} rounds=${2:-3} delay=${3:-}
if [ -z "$tidegate" ]; then
    cargo build --profile dist --quiet -p tidegate-cli --features full
    tidegate=target/dist/tidegate
fi
if [ -z "$delay" ]; then
    cargo build --release --quiet -p tidegate-redis-servers --example delay
    delay=target/release/examples/delay
fi
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

cat >"$scratch/rules.yaml" <<'RULES'
limits:
  - {name: exact, limit: 1000000/1s, algorithm: token-bucket}
  - {name: leased, limit: 1000000/1s, algorithm: token-bucket, sharing: leased}
RULES
distances="5 40 80"
redis_port=16579
redis-server --port $redis_port --bind 127.0.0.1 --save "" --appendonly no --dir "$scratch" >"$scratch/redis.log" &
reach() { # a process at its port
    until redis-cli -p "$2" PING >/dev/null 2>&1; do
        kill -0 "$1" 2>/dev/null || { cat "$scratch"/*.log >&2; exit 1; }
        sleep 0.05
    done
}
reach $! $redis_port
mkfifo "$scratch/never"
exec 9<>"$scratch/never" # keeps the proxies' standard input open
for ms in $distances; do
    "$delay" $redis_port "$ms" <"$scratch/never" >"$scratch/proxy-$ms" &
    until [ -s "$scratch/proxy-$ms" ]; do sleep 0.05; done
    port=$((16580 + ms))
    "$tidegate" serve --http off --admin off --resp 127.0.0.1:$port --rules "$scratch/rules.yaml" --store-prefix "far$ms" \
        --store "redis://127.0.0.1:$(cat "$scratch/proxy-$ms")" --store-deadline 5s >"$scratch/server-$ms.log" 2>&1 &
    reach $! $port
done

for ((round = 0; round < rounds; round++)); do
    for ms in $distances; do
        for pipeline in 1 64; do
            for mode in exact leased; do
                # Two seconds, if a pipeline takes one round trip.
                timeout 600 redis-benchmark -p $((16580 + ms)) -c 1 -n $((pipeline * 2000 / ms)) -P $pipeline --csv \
                    ACQUIRE $mode key 2>/dev/null | tail -1 | cut -d'"' -f4 >>"$scratch/$mode-$ms-$pipeline"
            done
        done
    done
done

for ms in $distances; do
    for pipeline in 1 64; do
        for mode in exact leased; do
            sort -n "$scratch/$mode-$ms-$pipeline" | awk -v mode=$mode -v ms="$ms" -v pipeline=$pipeline '{ v[NR] = $1 } END {
                rate = v[int((NR + 1) / 2)]
                printf "{\"work\":\"far-%d-ms\",\"who\":\"%s\",\"pipeline\":%d,\"per_second\":%.0f,\"trips\":%.2f}\n", \
                    ms, mode, pipeline, rate, pipeline / rate / ms * 1000
            }'
        done
    done
done
