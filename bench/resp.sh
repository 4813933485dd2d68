#!/usr/bin/env bash
# Tidegate's RESP listener beside Redis, with redis-benchmark: 50 connections, pipelines of 1 and 16, 100,000 keys. As a
# floor, a server that answers without reading (bench/peers/src/bin/echo.rs): the price of the system calls alone.
#
#   bench/resp.sh [ROUNDS] [REQUESTS]      (defaults 5 and 1000000; a pipeline of 1 gets a fifth of the requests)
#
# All servers run at once and take turns, so that what else the machine does falls on both. One JSON object a line, the
# median of the rounds: `ns_per_op` is the time a request took (the inverse of the throughput), `cpu_ns_per_op` what the
# server's process spent on it, in the kernel too (utime + stime, in ticks of 10 ms: mind the digits). TIDEGATE names a built program.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} requests=${2:-1000000}
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

if [ -z "${TIDEGATE:-}" ]; then
    cargo build --profile dist --bin tidegate --features full >&2
    TIDEGATE=target/dist/tidegate
fi
cargo build --release --manifest-path bench/peers/Cargo.toml --bin echo >&2
cat >"$scratch/rules.yaml" <<'RULES'
limits:
  - {name: bucket, limit: 100/1m, algorithm: token-bucket}
  - {name: window, limit: 100/1m, algorithm: sliding-window}
RULES
redis_port=16379 tidegate_port=16380 floor_port=16381
redis-server --port $redis_port --bind 127.0.0.1 --save "" --appendonly no --dir "$scratch" >/dev/null &
redis=$!
"$TIDEGATE" serve --http off --admin off --resp 127.0.0.1:$tidegate_port --rules "$scratch/rules.yaml" >/dev/null &
tidegate=$!
bench/peers/target/release/echo 127.0.0.1:$floor_port >/dev/null &
floor=$!
for port in $redis_port $tidegate_port $floor_port; do
    until redis-cli -p $port PING >/dev/null 2>&1; do kill -0 $redis $tidegate $floor; done
done

cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}

range=100000 # of __rand_int__
one() { # who, pid, port, pipeline, command...
    local who=$1 pid=$2 port=$3 pipeline=$4 before after rate count=$requests
    shift 4
    [ "$pipeline" = 1 ] && count=$((requests / 5))
    before=$(cpu "$pid")
    rate=$(timeout 120 redis-benchmark -p "$port" -c 50 -n "$count" -r "$range" -P "$pipeline" --csv "$@" 2>/dev/null | tail -1 | cut -d'"' -f4)
    after=$(cpu "$pid")
    awk -v r="$rate" -v t=$((after - before)) -v n="$count" -v hz="$(getconf CLK_TCK)" \
        'BEGIN { printf "%.0f %.0f\n", 1e9 / r, t / hz / n * 1e9 }' >>"$scratch/$who-$pipeline"
}

for ((round = 0; round < rounds; round++)); do
    for pipeline in 1 16; do
        one redis $redis $redis_port $pipeline INCR key:__rand_int__
        one tidegate-bucket $tidegate $tidegate_port $pipeline ACQUIRE bucket key:__rand_int__
        one tidegate-window $tidegate $tidegate_port $pipeline ACQUIRE window key:__rand_int__
        one floor $floor $floor_port $pipeline ACQUIRE bucket key:__rand_int__
        # Ids are new each time, so the key has to be one.
        range=1000000000 one tidegate-one $tidegate $tidegate_port $pipeline ACQUIRE bucket key 1
        range=1000000000 one tidegate-id $tidegate $tidegate_port $pipeline ACQUIRE bucket key 1 ID __rand_int__
    done
done

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for pipeline in 1 16; do
    for who in redis tidegate-bucket tidegate-window tidegate-one tidegate-id floor; do
        wall=$(cut -d' ' -f1 "$scratch/$who-$pipeline" | median)
        cpu=$(cut -d' ' -f2 "$scratch/$who-$pipeline" | median)
        suffix=${who#"${who%%-*}"}
        echo "{\"work\":\"resp-pipeline-$pipeline$suffix\",\"who\":\"${who%%-*}\",\"threads\":1,\"ns_per_op\":$wall,\"cpu_ns_per_op\":$cpu}"
    done
done
