#!/usr/bin/env bash
# Takes the pictures of the dashboard and of the simulator's report that the book shows, with a real browser: Debian's chromium and nodejs,
# and playwright-core from npm. What is shown is `tidegate demo` after five minutes, and a report on synthetic traffic.
#
#   scripts/pictures.sh       writes docs/src/pictures/{dashboard,key,what-if,report}.png
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$scratch"' EXIT

tidegate=${TIDEGATE:-}
if [ -z "$tidegate" ]; then
    cargo build --locked --quiet -p tidegate-cli --features full
    tidegate=${CARGO_TARGET_DIR:-target}/debug/tidegate
fi
[ -d scripts/pages/node_modules ] || npm install --prefix scripts/pages --no-package-lock --no-audit --no-fund --loglevel=error

touch "$scratch/told"
"$tidegate" demo --http 127.0.0.1:0 --resp 127.0.0.1:0 --admin 127.0.0.1:0 >"$scratch/told" 2>"$scratch/log" &
demo=$!
until grep -q '^The demo' "$scratch/told"; do
    kill -0 $demo || { cat "$scratch/log" >&2; exit 1; }
    read -rt 0.1 <> <(:) || true
done
admin=$(sed -n 's|^ *admin *\(http:[^ ,]*\).*|\1|p' "$scratch/told")

"$tidegate" simulate --synthetic --sources 300 --requests 30000 --arrival bursty --limit 20/10s --report "$scratch/report.html" >/dev/null
node scripts/pages/pictures.mjs "$admin" "file://$scratch/report.html" docs/src/pictures
