#!/usr/bin/env bash
# Checks that no dependency in Cargo.lock declares a newer Rust than `rust-version` in Cargo.toml. Tidegate's own code is checked by a lint
# of clippy, `incompatible_msrv`, which scripts/test.sh denies with all others. If that Rust is installed (rustup toolchain install),
# this also builds with it.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
cargo metadata --format-version 1 --locked --all-features | python3 -c '
import json, sys

def parts(version):
    return [int(part) for part in version.split(".")][:2]

oldest = sys.argv[1]
newer = [
    "{} {} needs Rust {}".format(package["name"], package["version"], package["rust_version"])
    for package in json.load(sys.stdin)["packages"]
    if package["rust_version"] and parts(package["rust_version"]) > parts(oldest)
]
print("\n".join(newer), end="\n" if newer else "")
sys.exit(bool(newer))
' "$oldest" || {
    echo "rust-version promises $oldest: take older versions of these (cargo update --precise), or raise it" >&2
    exit 1
}
if command -v rustup >/dev/null && rustup run "$oldest" rustc --version >/dev/null 2>&1; then
    rustup run "$oldest" cargo check --workspace --all-features --locked --quiet --target-dir target/msrv
else
    echo "Rust $oldest is not installed here: dependencies checked, not built"
fi
