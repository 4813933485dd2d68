#!/usr/bin/env bash
# throttled-py 3.5.0, its token bucket (in memory; the script for Redis has the same arithmetic): time counts in whole seconds, and the
# tokens of a second are rounded down before they are added.
# - A bucket of 10 tokens at 10/s admits 10 requests at 1000.95 s, and 10 more 50 ms later, at 1001.00 s: 20 within 50 ms.
# - At 100 tokens a minute, a client that asks each second until it is denied gets 60 a minute: 1.67 tokens a second become 1.
#
# Seen on 2026-11-28, Python 3.11:
#   at 1000.95: 10, at 1000.99: 0, at 1001.00: 10, at 1001.99: 0, at 1002.00: 10
#   of 1000 tokens in 600 s: 600
#
# Fails if the numbers change.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet throttled-py==3.5.0
cat >"$folder/seconds.py" <<'PY'
from unittest import mock

now = [1000.0]
with mock.patch("time.time", lambda: now[0]):
    from throttled import RateLimiterType, Throttled, rate_limiter, store

    def bucket(quota):
        return Throttled(using=RateLimiterType.TOKEN_BUCKET.value, quota=quota, store=store.MemoryStore())

    def admitted(limit):
        count = 0
        while not limit.limit("key").limited:
            count += 1
        return count

    limit, found = bucket(rate_limiter.per_sec(10, burst=10)), []
    for now[0] in (1000.95, 1000.99, 1001.0, 1001.99, 1002.0):
        found.append((now[0], admitted(limit)))
    print(", ".join(f"at {at:.2f}: {count}" for at, count in found))

    limit = bucket(rate_limiter.per_min(100, burst=100))
    now[0] = 5000.0
    assert admitted(limit) == 100
    total = 0
    for second in range(1, 601):
        now[0] = 5000.0 + second
        total += admitted(limit)
    print(f"of 1000 tokens in 600 s: {total}")

expected = [(1000.95, 10), (1000.99, 0), (1001.0, 10), (1001.99, 0), (1002.0, 10)]
if found != expected or total != 600:
    raise SystemExit("it has changed")
PY
"$folder/venv/bin/python" "$folder/seconds.py"
