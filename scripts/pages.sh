#!/usr/bin/env bash
# Looks at the dashboard with a real browser (Debian's chromium and nodejs, playwright-core and axe-core from npm): no violation
# of accessibility rules, no error in the console, no request to another host, nothing beside the screen, at 390 and 1440
# pixels, light and dark; a key is blocked with the keyboard alone. The traffic is real: thousands of requests.
#
#   scripts/pages.sh [DIRECTORY]      screenshots go there (default: target/pages)
set -euo pipefail
cd "$(dirname "$0")/.."
directory=$(realpath -m "${1:-target/pages}")
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$scratch"' EXIT

tidegate=${TIDEGATE:-}
if [ -z "$tidegate" ]; then
    cargo build --locked --quiet -p tidegate-cli --features full
    tidegate=${CARGO_TARGET_DIR:-target}/debug/tidegate
fi
[ -d scripts/pages/node_modules ] || npm install --prefix scripts/pages --no-package-lock --no-audit --no-fund --loglevel=error

cat >"$scratch/rules.yaml" <<'RULES'
limits:
  - {name: per-user, limit: 600/1m, algorithm: token-bucket, burst: 40}
  - {name: logins, limit: 20/1m, algorithm: sliding-window, slots: 60}
  - {name: search, limit: 100/1m, shadow: true}
  - {name: everyone, limit: 5000/1s, global: true}
  - {name: payments, limit: 3, algorithm: concurrency}
RULES
touch "$scratch/told"
"$tidegate" serve --http 127.0.0.1:0 --resp off --admin 127.0.0.1:0 --rules "$scratch/rules.yaml" --rules-writable --trace-keys 100% >"$scratch/told" 2>"$scratch/log" &
server=$!
until grep -q '^Try:' "$scratch/told"; do
    kill -0 $server || { cat "$scratch/log" >&2; exit 1; }
    read -rt 0.1 <> <(:) || true
done

# The same over TLS, and so over HTTP/2.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
    -keyout "$scratch/key.pem" -out "$scratch/cert.pem" 2>/dev/null
cp "$scratch/rules.yaml" "$scratch/rules-tls.yaml"
touch "$scratch/tls"
"$tidegate" serve --http 127.0.0.1:0 --resp off --admin 127.0.0.1:0 --tls-cert "$scratch/cert.pem" --tls-key "$scratch/key.pem" \
    --rules "$scratch/rules-tls.yaml" --rules-writable --trace-keys 100% >"$scratch/tls" 2>>"$scratch/log" &
server=$!
until grep -q '^Try:' "$scratch/tls"; do
    kill -0 $server || { cat "$scratch/log" >&2; exit 1; }
    read -rt 0.1 <> <(:) || true
done
address() { sed -n "s|^ *$1 *\(https\{0,1\}:[^ ,]*\).*|\1|p" "$scratch/${2:-told}"; }

# Two servers that share a store, for the page of servers.
port=$(python3 scripts/ports.py)
redis-server --port "$port" --bind 127.0.0.1 --save "" --dir "$scratch" >/dev/null &
store=$!
cat >"$scratch/shared.yaml" <<'RULES'
limits:
  - {name: checkout, limit: 600/1m, on_error: closed}
  - {name: search, limit: 600/1m}
RULES
for name in one two; do
    touch "$scratch/$name"
    "$tidegate" serve --http 127.0.0.1:0 --resp off --admin 127.0.0.1:0 --store "redis://127.0.0.1:$port" --store-deadline 1s --name "$name" \
        --rules "$scratch/shared.yaml" >"$scratch/$name" 2>>"$scratch/log" &
    server=$!
    until grep -q '^Try:' "$scratch/$name"; do
        kill -0 $server || { cat "$scratch/log" >&2; exit 1; }
        read -rt 0.1 <> <(:) || true
    done
done

# Three hundred limits, for what an open page gets.
{ echo "limits:"; for at in $(seq 299); do echo "  - {name: limit-$at, limit: 1000/1m}"; done
    echo "  - {name: tiny, limit: 1/1h, algorithm: sliding-log, max_keys: 8}"; } >"$scratch/many.yaml"
touch "$scratch/many"
"$tidegate" serve --http 127.0.0.1:0 --resp 127.0.0.1:0 --admin 127.0.0.1:0 --rules "$scratch/many.yaml" >"$scratch/many" 2>>"$scratch/log" &
server=$!
until grep -q '^Try:' "$scratch/many"; do
    kill -0 $server || { cat "$scratch/log" >&2; exit 1; }
    read -rt 0.1 <> <(:) || true
done

# A report of the simulator, which is a page of its own.
"$tidegate" simulate --synthetic --sources 300 --requests 30000 --arrival bursty --limit 20/10s --nodes 3 --report "$scratch/report.html" >/dev/null
# Another one with a suggestion: a few clients have most of the requests.
"$tidegate" simulate --synthetic --sources 300 --requests 30000 --zipf 1.6 --suggest --report "$scratch/suggestion.html" >/dev/null

TIDEGATE_SHARED=$(address admin one) TIDEGATE_SHARED_TWO=$(address admin two) TIDEGATE_SHARED_HTTP=$(address HTTP one) TIDEGATE_STORE="$store $port" \
    TIDEGATE_SHARED_RULES="$scratch/shared.yaml" TIDEGATE_SUGGESTION="file://$scratch/suggestion.html" \
    TIDEGATE_MANY=$(address admin many) TIDEGATE_MANY_RESP=$(sed -n 's|^ *RESP *redis://||p' "$scratch/many") TIDEGATE_REPORT="file://$scratch/report.html" \
    TIDEGATE_TLS=$(address admin tls) TIDEGATE_TLS_HTTP=$(address HTTP tls) NODE_EXTRA_CA_CERTS="$scratch/cert.pem" \
    node scripts/pages/check.mjs "$(address admin)" "$(address HTTP)" "$directory"
