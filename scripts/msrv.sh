#!/usr/bin/env bash
# Checks that nothing needs a newer Rust than `rust-version` in Cargo.toml says: the versions of the dependencies in
# Cargo.lock by what they declare, and Tidegate's own code by clippy's `incompatible_msrv`, which knows since when each item
# of the standard library is stable. Where that Rust is installed (rustup toolchain install), it also builds.
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
cargo clippy --workspace --all-features --locked --quiet -- -D clippy::incompatible_msrv
if command -v rustup >/dev/null && rustup run "$oldest" rustc --version >/dev/null 2>&1; then
    rustup run "$oldest" cargo check --workspace --all-features --locked --quiet --target-dir target/msrv
else
    echo "Rust $oldest is not installed here: dependencies and standard library checked, not built"
fi
