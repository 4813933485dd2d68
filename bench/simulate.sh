#!/usr/bin/env bash
# How fast `tidegate simulate` reads a log, beside goaccess where it is installed, and how long it looks for a limit.
#
# usage: bench/simulate.sh ACCESS.log [REQUESTS_PER_SECOND]
#
# The log is repeated until it has a gigabyte. Time is that of the processor (user and system), so that both programs may
# run on a machine that does something else; each runs three times, and the fastest counts. tidegate also replays every
# request through one algorithm, which goaccess does not.
set -euo pipefail

log=${1:?usage: bench/simulate.sh ACCESS.log [REQUESTS_PER_SECOND]}
cargo build --profile dist --quiet -p tidegate-cli --features full
tidegate=$(dirname "$0")/../target/dist/tidegate
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $log in
    *.gz) gzip -dc "$log" >"$work/once" ;;
    *) cp "$log" "$work/once" ;;
esac
size=$(stat -c %s "$work/once")
for _ in $(seq $((1000000000 / size + 1))); do cat "$work/once"; done >"$work/log"
size=$(stat -c %s "$work/log")

# The fastest of three, in seconds of the processor.
fastest() {
    for _ in 1 2 3; do
        TIMEFORMAT='%U %S'
        { time "$@" >/dev/null 2>&1; } 2>&1 | awk '{ print $1 + $2 }'
    done | sort -n | head -1
}

report() {
    awk -v name="$1" -v size="$size" -v seconds="$2" \
        'BEGIN { printf "%-28s %6.2f s of the processor, %5.0f MB/s\n", name, seconds, size / seconds / 1e6 }'
}

report "tidegate simulate" "$(fastest "$tidegate" simulate "$work/log" --limit 1000/1m \
    --algorithm fixed-window --threads 1)"
if command -v goaccess >/dev/null; then
    report "goaccess" "$(fastest goaccess "$work/log" --log-format=COMBINED --no-progress -o "$work/page.json")"
else
    echo "goaccess is not installed (Debian package goaccess)"
fi

if [ $# -gt 1 ]; then
    echo "looking for limits in $2:"
    TIMEFORMAT='%R s, %U s of the processor'
    time "$tidegate" simulate "$2" --suggest --window 1m --deny-requests 0.1% --spread
fi
