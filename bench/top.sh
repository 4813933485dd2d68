#!/usr/bin/env bash
# What telling heavy keys costs: two servers, one with --top-keys 0 and one as usual, take turns under redis-benchmark with 50
# connections, pipelines of 16, and 100,000 keys that all come equally often (the worst case: nearly every name that is kept
# gives way to the next).
#
#   bench/top.sh [ROUNDS] [REQUESTS]      (defaults 9 and 2000000)
#
# One JSON object a line, the median of the rounds: the processor time of the server's process for a request, and the time.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-9} requests=${2:-2000000}
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

cargo build --release --bin tidegate >&2
echo 'limits: [{name: bucket, limit: 100/1m}]' >"$scratch/rules.yaml"
declare -A names=([off]=0 [on]=1000) ports=([off]=16382 [on]=16383) pids
for who in off on; do
    target/release/tidegate serve --http off --admin off --resp 127.0.0.1:${ports[$who]} --top-keys ${names[$who]} \
        --rules "$scratch/rules.yaml" >/dev/null 2>&1 &
    pids[$who]=$!
    until redis-cli -p ${ports[$who]} PING >/dev/null 2>&1; do kill -0 ${pids[$who]}; done
done

cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}

for ((round = 0; round < rounds; round++)); do
    for who in off on; do
        before=$(cpu ${pids[$who]})
        rate=$(redis-benchmark -p ${ports[$who]} -c 50 -n "$requests" -r 100000 -P 16 --csv ACQUIRE bucket key:__rand_int__ 2>/dev/null | tail -1 | cut -d'"' -f4)
        after=$(cpu ${pids[$who]})
        awk -v r="$rate" -v t=$((after - before)) -v n="$requests" -v hz="$(getconf CLK_TCK)" \
            'BEGIN { printf "%.1f %.1f\n", 1e9 / r, t / hz / n * 1e9 }' >>"$scratch/$who"
    done
done

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for who in off on; do
    echo "{\"work\":\"resp-pipeline-16\",\"heavy_keys\":\"$who\",\"ns_per_op\":$(cut -d' ' -f1 "$scratch/$who" | median),\"cpu_ns_per_op\":$(cut -d' ' -f2 "$scratch/$who" | median)}"
done
