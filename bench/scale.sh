#!/usr/bin/env bash
# What sharing one hot limit costs by the number of servers and the distance to the store: the simulated part of docs/src/scale.md, and
# sixteen real servers compared with the simulator (bench/scale.py, about seven minutes; SECONDS_OF_LOAD=2 takes three and is less exact).
#
# usage: bench/scale.sh [TIDEGATE] [DELAY]      (both built here by default)
#
# 100,000 requests in ten seconds for one key, at random moments, dealt over the servers, of a limit of 10000/1s: all fit on
# average. Prints a table of what the servers admit of what one place admits, by how much they are over, and round trips a decision.
set -euo pipefail

tidegate=${1:-} delay=${2:-} build=$(dirname "$0")/../target
if [ -z "$tidegate" ]; then
    cargo build --profile dist --quiet -p tidegate-cli --features full
    tidegate=$build/dist/tidegate
fi
if [ -z "$delay" ]; then
    cargo build --release --quiet -p tidegate-redis-servers --example delay
    delay=$build/release/examples/delay
fi

echo "| servers | round trip | mode | algorithm | admitted of one place | over by | round trips a decision |"
echo "|---|---|---|---|---|---|---|"
for nodes in 1 2 4 16 100 1000; do
    for rtt in 500us 80ms; do
        for mode in leased reported; do
            "$tidegate" simulate --synthetic --sources 1 --requests 100000 --duration 10s --limit 10000/1s \
                --algorithm sliding-window,token-bucket --nodes "$nodes" --mode "$mode" --rtt "$rtt" --format json |
                python3 -c '
import json, sys
nodes, rtt = sys.argv[1:]
for trial in json.load(sys.stdin)["trials"]:
    for row in trial["results"]:
        shared = row["shared"]
        share = 100 * row["admitted"] / shared["admitted_in_one_place"]
        trips = shared["round_trips"] / (row["admitted"] + row["denied"])
        print(f"""| {nodes} | {rtt} | {shared["mode"]} | {row["algorithm"]} | {share:.1f} % | {shared["over"]} | {trips:.3f} |""")
' "$nodes" "$rtt"
        done
    done
done

# Three regions 80 ms apart, four servers in each, that have 60, 30 and 10 % of the same demand. With one store the servers of
# two regions have a round trip of 80 ms; the simulator has one distance for all servers, so all have it here. With a store in
# each region, its part of the limit is set beforehand.
echo
echo "| regions | mode | algorithm | admitted of one place | over by | round trips a decision |"
echo "|---|---|---|---|---|---|"
regions() { # name, round trip, mode, then for each store: servers, requests in 10 s, its part of the limit
    local name=$1 rtt=$2 mode=$3 nodes requests limit
    shift 3
    while [ $# -gt 0 ]; do
        nodes=$1 requests=$2 limit=$3
        shift 3
        "$tidegate" simulate --synthetic --sources 1 --requests "$requests" --duration 10s --limit "$limit/1s" \
            --algorithm sliding-window,token-bucket --nodes "$nodes" --mode "$mode" --rtt "$rtt" --format json
    done | python3 -c '
import json, sys
name, mode, whole = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
text, at, rows = sys.stdin.read(), 0, {}
while at < len(text.rstrip()):
    report, end = json.JSONDecoder().raw_decode(text[at:])
    at += end
    at += len(text[at:]) - len(text[at:].lstrip())
    for trial in report["trials"]:
        for row in trial["results"]:
            sums = rows.setdefault(row["algorithm"], [0, 0, 0])
            for place, more in enumerate((row["admitted"], row["shared"]["over"], row["shared"]["round_trips"])):
                sums[place] += more
for algorithm, (admitted, over, trips) in rows.items():
    share = 100 * admitted / whole[algorithm]
    print(f"| {name} | {mode} | {algorithm} | {share:.1f} % | {over} | {trips / 100000:.3f} |")
' "$name" "$mode" "$whole"
}
whole=$("$tidegate" simulate --synthetic --sources 1 --requests 100000 --duration 10s --limit 10000/1s \
    --algorithm sliding-window,token-bucket --format json | python3 -c '
import json, sys
print(json.dumps({row["algorithm"]: row["admitted"] for trial in json.load(sys.stdin)["trials"] for row in trial["results"]}))')
for mode in leased reported; do
    regions "one store" 80ms $mode 12 100000 10000
    regions "a store each, thirds" 500us $mode 4 60000 3333 4 30000 3333 4 10000 3334
    regions "a store each, by demand" 500us $mode 4 60000 6000 4 30000 3000 4 10000 1000
done
echo
python3 "$(dirname "$0")/scale.py" "$tidegate" "$delay" "${SECONDS_OF_LOAD:-6}"
