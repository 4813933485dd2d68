#!/usr/bin/env bash
# Cargo 1.95.0: a profile with `strip = "symbols"` leaves the symbols in the program of a package that has an override in this profile,
# whatever the override sets: `[profile.release.package.small] opt-level = "z"`. Cargo then takes its usual `strip = "debuginfo"`, without
# a word. With `strip = "symbols"` in the override, too, the program has no symbols. (Of Tidegate's own program they were 4 of 24 MB.)
#
# Seen on 2026-11-30, Rust 1.95.0, x86-64 Linux, sizes in bytes:
#   no override: 338544, no symbols
#   opt-level in an override: 438776, symbols
#   opt-level and strip in an override: 338480, no symbols
#
# Needs readelf (Debian package binutils). Fails if a line's end changes, also with another Cargo.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
echo 'fn main() {}' >"$folder/src/main.rs"

build() { # build TITLE EXPECTED LINE...
    cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "small"
version = "0.1.0"
edition = "2024"

[profile.release]
strip = "symbols"
TOML
    [ $# = 2 ] || printf '%s\n' '' '[profile.release.package.small]' "${@:3}" >>"$folder/Cargo.toml"
    cargo build --quiet --release --manifest-path "$folder/Cargo.toml" --target-dir "$folder/target"
    local program=$folder/target/release/small found="no symbols"
    readelf --sections --wide "$program" >"$folder/sections"
    ! grep -q '\.symtab' "$folder/sections" || found=symbols
    echo "$1: $(stat -c %s "$program"), $found"
    [ "$found" = "$2" ]
}

build "no override" "no symbols"
build "opt-level in an override" "symbols" 'opt-level = "z"'
build "opt-level and strip in an override" "no symbols" 'opt-level = "z"' 'strip = "symbols"'
