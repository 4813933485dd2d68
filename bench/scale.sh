#!/usr/bin/env bash
# What sharing one hot limit costs by the number of servers and the distance to the store: the simulated part of docs/src/scale.md.
#
# usage: bench/scale.sh [TIDEGATE]
#
# 100,000 requests in ten seconds for one key, at random moments, dealt over the servers, of a limit of 10000/1s: all fit on
# average. Prints a table of what the servers admit of what one place admits, by how much they are over, and round trips a decision.
set -euo pipefail

tidegate=${1:-}
if [ -z "$tidegate" ]; then
    cargo build --release --quiet -p tidegate-cli
    tidegate=$(dirname "$0")/../target/release/tidegate
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
