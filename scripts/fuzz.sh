#!/usr/bin/env bash
# Fuzzes one target after the other with the address sanitizer, from the inputs in fuzz/seeds and those found before in fuzz/corpus. Prints
# how often each ran and the sum. Needs cargo-fuzz. A compiler without nightly features will do.
#
# scripts/fuzz.sh [--seconds N] [TARGET ...]    N for each target, 180 without it
# scripts/fuzz.sh --replay                      runs each input of fuzz/seeds once, without cargo-fuzz and without a sanitizer
# scripts/fuzz.sh --keep                        keeps in fuzz/seeds the smallest inputs of fuzz/corpus that reach as much
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

seconds=180
mode=fuzz
while [ $# -gt 0 ]; do
    case "$1" in
    --seconds) seconds=$2 && shift ;;
    --replay) mode=replay ;;
    --keep) mode=keep ;;
    -*) echo "scripts/fuzz.sh: $1 is not known" >&2 && exit 2 ;;
    *) break ;;
    esac
    shift
done
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cd fuzz_targets && ls ./*.rs | sed 's|^\./||; s|\.rs$||')

if [ "$mode" = replay ]; then
    cargo build --locked --quiet --bins
    for target in "${targets[@]}"; do
        [ -d "seeds/$target" ] || continue
        "${CARGO_TARGET_DIR:-target}/debug/$target" -runs=0 "seeds/$target" 2>"/tmp/replay-$$" ||
            { cat "/tmp/replay-$$" >&2 && exit 1; }
        echo "$target: $(find "seeds/$target" -type f | wc -l) inputs"
    done
    rm -f "/tmp/replay-$$"
    exit
fi

export RUSTC_BOOTSTRAP=1
[ -n "${TIDEGATE_FUZZ_BUILT:-}" ] || cargo fuzz build
built=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release
sum=0
failed=()
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "seeds/$target" "artifacts/$target"
    if [ "$mode" = keep ]; then
        rm -rf "corpus/$target.least" && mkdir "corpus/$target.least"
        # By the branches they reach and not how often, so that few are left.
        "$built/$target" -set_cover_merge=1 -use_counters=0 -max_len=512 "corpus/$target.least" "seeds/$target" "corpus/$target" 2>"corpus/$target.log"
        rm -r "seeds/$target" && mv "corpus/$target.least" "seeds/$target"
        continue
    fi
    "$built/$target" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=60 -print_funcs=0 -print_final_stats=1 \
        -artifact_prefix="artifacts/$target/" "corpus/$target" "seeds/$target" 2>"corpus/$target.log" || failed+=("$target")
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "corpus/$target.log" | tail -n 1)
    sum=$((sum + ${runs:-0}))
    echo "$target: ${runs:-0} runs in $seconds s, $(find "corpus/$target" -type f | wc -l) inputs"
done
[ "$mode" = keep ] && du -sh seeds && exit
echo "$sum runs"
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2 && exit 1; }
