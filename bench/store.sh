#!/usr/bin/env bash
# What a decision costs through `tidegate serve --store`, with redis-benchmark: 50 connections, pipelines of 1 and 16, 1,000
# keys. Beside exact and leased limits: EVALSHA of INCRBY and PEXPIRE straight on the same Redis, and a limit in the memory of a
# server without a store. `-hot` is with one key.
#
#   bench/store.sh [TIDEGATE] [ROUNDS] [REQUESTS]      (defaults: built here, 3 and 400000; a pipeline of 1 gets a quarter)
#
# All take turns within a round, so that what else the machine does falls on each. One JSON object a line, the median of the
# rounds: decisions a second, and for a decision what Tidegate and Redis spent (ns, in the kernel too; ticks of 10 ms), the bytes that
# Redis read and wrote, and the script calls that it ran. `of_direct` is the rate compared with the direct calls of the same round.
set -euo pipefail
cd "$(dirname "$0")/.."
tidegate=${1:-} rounds=${2:-3} requests=${3:-400000}
if [ -z "$tidegate" ]; then
    cargo build --profile dist --quiet -p tidegate-cli --features full
    tidegate=target/dist/tidegate
fi
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$scratch"' EXIT

cat >"$scratch/shared.yaml" <<'RULES'
limits:
  - {name: exact, limit: 1000000/1s, algorithm: token-bucket}
  - {name: leased, limit: 1000000/1s, algorithm: token-bucket, sharing: leased}
RULES
cat >"$scratch/memory.yaml" <<'RULES'
limits:
  - {name: memory, limit: 1000000/1s, algorithm: token-bucket}
RULES
redis_port=16479 shared_port=16480 memory_port=16481
redis-server --port $redis_port --bind 127.0.0.1 --save "" --appendonly no --dir "$scratch" >"$scratch/redis.log" &
redis=$!
"$tidegate" serve --http off --admin off --resp 127.0.0.1:$shared_port --rules "$scratch/shared.yaml" \
    --store redis://127.0.0.1:$redis_port --store-deadline 1s >"$scratch/shared.log" 2>&1 &
shared=$!
"$tidegate" serve --http off --admin off --resp 127.0.0.1:$memory_port --rules "$scratch/memory.yaml" >"$scratch/memory.log" 2>&1 &
memory=$!
reach() { # a process at its port
    until redis-cli -p "$2" PING >/dev/null 2>&1; do
        kill -0 "$1" 2>/dev/null || { cat "$scratch"/*.log >&2; exit 1; }
        sleep 0.05
    done
}
reach $redis $redis_port
reach $shared $shared_port
reach $memory $memory_port
script=$(redis-cli -p $redis_port SCRIPT LOAD \
    "local n = redis.call('INCRBY', KEYS[1], ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return n")

cpu() { # of a process, in clock ticks
    local fields
    read -ra fields <"/proc/$1/stat"
    echo $((fields[13] + fields[14]))
}

bytes() { # that Redis has read and written
    redis-cli -p $redis_port INFO stats | tr -d '\r' |
        awk -F: '/^total_net_(in|out)put_bytes:/ { sum += $2 } END { printf "%.0f", sum }'
}

calls() { # of scripts that Redis has run
    redis-cli -p $redis_port INFO commandstats | tr -d '\r' |
        awk -F'[=,]' '/^cmdstat_eval(sha)?:/ { sum += $2 } END { printf "%.0f", sum }'
}

one() { # who, its process, port, pipeline, command...
    local who=$1 pid=$2 port=$3 pipeline=$4 count=$requests before redis_before bytes_before calls_before rate
    shift 4
    [ "$pipeline" = 1 ] && count=$((requests / 4))
    before=$(cpu "$pid") redis_before=$(cpu $redis) bytes_before=$(bytes) calls_before=$(calls)
    rate=$(timeout 120 redis-benchmark -p "$port" -c 50 -n "$count" -r 1000 -P "$pipeline" --csv "$@" 2>/dev/null |
        tail -1 | cut -d'"' -f4)
    [ "$who" = direct ] && direct_rate=$rate
    awk -v r="$rate" -v d="$direct_rate" -v c=$(($(calls) - calls_before)) -v t=$(($(cpu "$pid") - before)) -v s=$(($(cpu $redis) - redis_before)) -v n="$count" \
        -v hz="$(getconf CLK_TCK)" -v b=$(($(bytes) - bytes_before)) \
        'BEGIN { printf "%.0f %.0f %.0f %.1f %.4f %.3f\n", r, t / hz / n * 1e9, s / hz / n * 1e9, b / n, c / n, r / d }' \
        >>"$scratch/$who-$pipeline"
}

for ((round = 0; round < rounds; round++)); do
    for pipeline in 1 16; do
        one direct $redis $redis_port $pipeline EVALSHA "$script" 1 key:__rand_int__ 1 1000
        one exact $shared $shared_port $pipeline ACQUIRE exact key:__rand_int__
        one leased $shared $shared_port $pipeline ACQUIRE leased key:__rand_int__
        one memory $memory $memory_port $pipeline ACQUIRE memory key:__rand_int__
        one leased-hot $shared $shared_port $pipeline ACQUIRE leased key
        one memory-hot $memory $memory_port $pipeline ACQUIRE memory key
    done
done

median() { cut -d' ' -f"$2" "$1" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for pipeline in 1 16; do
    for who in direct exact leased memory leased-hot memory-hot; do
        file=$scratch/$who-$pipeline
        own=$(median "$file" 2)
        [ $who = direct ] && own=0
        echo "{\"work\":\"store-pipeline-$pipeline\",\"who\":\"$who\",\"per_second\":$(median "$file" 1),\"tidegate_cpu_ns\":$own,\"redis_cpu_ns\":$(median "$file" 3),\"redis_bytes\":$(median "$file" 4),\"calls\":$(median "$file" 5),\"of_direct\":$(median "$file" 6)}"
    done
done
