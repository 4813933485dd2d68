#!/usr/bin/env bash
# What watching costs a decision: servers with heavy keys, traces and histories on or off take turns under redis-benchmark with 50
# connections, pipelines of 16, and 100,000 keys that all come equally often (the worst case for heavy keys: nearly every name that is
# kept gives way to the next).
#
#   bench/cost.sh [ROUNDS] [REQUESTS]      (defaults 9 and 2000000; TIDEGATE=PROGRAM for a program that is built)
#
# One JSON object a line for each server: the median over the rounds of the processor time of its process for a request, and of that
# beside the first server's in the same round. The first server comes twice: the second line shows the noise.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-9} requests=${2:-2000000}
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

tidegate=${TIDEGATE:-target/dist/tidegate}
[ -n "${TIDEGATE:-}" ] || cargo build --profile dist --bin tidegate --features full >&2
echo 'limits: [{name: bucket, limit: 100/1m}]' >"$scratch/rules.yaml"
servers=(usual again no-heavy-keys no-history trace-10% trace-100%)
declare -A options=(
    [usual]="" [again]="" [no-heavy-keys]="--top-keys 0" [no-history]="--history-memory off"
    [trace-10%]="--trace-keys 10%" [trace-100%]="--trace-keys 100%"
) ports pids
port=16382
for who in "${servers[@]}"; do
    ports[$who]=$((port++))
    # shellcheck disable=SC2086 # an option and its value
    "$tidegate" serve --http off --admin off --resp 127.0.0.1:${ports[$who]} --rules "$scratch/rules.yaml" ${options[$who]} >/dev/null 2>&1 &
    pids[$who]=$!
    until redis-cli -p ${ports[$who]} PING >/dev/null 2>&1; do kill -0 ${pids[$who]}; done
done

cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}

for ((round = 0; round < rounds; round++)); do
    # Each round begins with another server, so that none has the warmer machine.
    for ((turn = 0; turn < ${#servers[@]}; turn++)); do
        who=${servers[(turn + round) % ${#servers[@]}]}
        before=$(cpu ${pids[$who]})
        redis-benchmark -p ${ports[$who]} -c 50 -n "$requests" -r 100000 -P 16 --csv ACQUIRE bucket key:__rand_int__ >/dev/null 2>&1
        after=$(cpu ${pids[$who]})
        awk -v t=$((after - before)) -v n="$requests" -v hz="$(getconf CLK_TCK)" 'BEGIN { print t / hz / n * 1e9 }' >>"$scratch/$who"
    done
done

median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.3f", v[int((NR + 1) / 2)] }'; }
for who in "${servers[@]}"; do
    beside=$(paste "$scratch/$who" "$scratch/usual" | awk '{ print $1 / $2 }' | median)
    echo "{\"work\":\"resp-pipeline-16\",\"server\":\"$who\",\"cpu_ns_per_op\":$(median <"$scratch/$who"),\"beside_usual\":$beside}"
done
