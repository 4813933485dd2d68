#!/usr/bin/env bash
# Tests the packages as a registry would have them: packs every crate that is published, unpacks the packages beside each other, and
# runs their tests there, each with its default features and then all packages with every feature. The feature `servers` stays off: its
# tests need the crate `tidegate-redis-servers`, which is not published.
#
# It builds every test once more, so scripts/test.sh leaves it out (there the packages are only packed).
#
#   scripts/packages.sh [CRATE ...]      only these crates
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR=$target
unpacked=$target/unpacked

cargo package --workspace --exclude tidegate-redis-servers --locked --allow-dirty --no-verify --quiet
rm -rf "$unpacked"
mkdir -p "$unpacked"
for package in $(cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] is None:
        print(package["name"] + "-" + package["version"])'); do
    tar -xzf "$target/package/$package.crate" -C "$unpacked"
    mv "$unpacked/$package" "$unpacked/${package%-*}"
done

# The packages name each other by version; here they find each other instead of a registry.
(
    echo '[workspace]'
    echo 'resolver = "3"'
    echo 'members = ["*"]'
    echo 'exclude = ["target"]'
    echo '[patch.crates-io]'
    for crate in "$unpacked"/*/; do
        crate=$(basename "$crate")
        echo "$crate = { path = \"$crate\" }"
    done
    # The same profiles as the checkout, so that dependencies are not built twice.
    sed -n '/^\[profile/,/^$/p' Cargo.toml
) >"$unpacked/Cargo.toml"
cp Cargo.lock "$unpacked/"

crates=("$@")
if [ $# = 0 ]; then
    for crate in "$unpacked"/*/; do crates+=("$(basename "$crate")"); done
fi
# The features of the chosen crates, but for `servers`.
features() {
    (cd "$unpacked" && cargo metadata --no-deps --format-version 1) | python3 -c '
import json, sys
chosen = set(sys.argv[1:])
print(",".join(
    package["name"] + "/" + feature
    for package in json.load(sys.stdin)["packages"] if package["name"] in chosen
    for feature in package["features"] if feature not in ("servers", "default")
))' "$@"
}
all=$(features "${crates[@]}")
selected=()
for crate in "${crates[@]}"; do selected+=(-p "$crate"); done
failed=()
for crate in "${crates[@]}"; do
    printf '\n== %s from its package\n' "$crate"
    (cd "$unpacked" && cargo test --quiet -p "$crate") || failed+=("$crate")
done
printf '\n== all features but servers\n'
(cd "$unpacked" && cargo test --quiet "${selected[@]}" --features "$all") || failed+=("all features")
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
