#!/usr/bin/env bash
# LiteLLM 1.108.7, `priority_reservation: {prod: 0.9, dev: 0.1}` of 100 requests a minute, at the defaults (`saturation_threshold` 0.5): below half of the
# limit requests of any priority are served as they come, and from there on each priority has its part, with what it took before included. So the
# limit is never used up by one priority (prod alone gets 90, dev alone 50), and prod gets 50 of its 90 if dev asks first, 54 if dev asks ten times as often,
# and 75 if both ask in turns. Nothing is taken back within the minute, and the next minute begins alike.
#
# Seen on 2026-11-29, litellm 1.108.7 with the extra `proxy`, Python 3.11:
#   prod alone: {'prod': 90}
#   dev alone: {'dev': 50}
#   dev first: {'dev': 50, 'prod': 50}
#   in turns: {'dev': 25, 'prod': 75}
#   dev ten times as often: {'dev': 46, 'prod': 54}
#   without a priority: {None: 50}
#
# Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install -q 'litellm[proxy]==1.108.7'
cat >probe.py <<'PYTHON'
import asyncio
import logging

import litellm
from litellm import Router
from litellm.caching.caching import DualCache
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.hooks.dynamic_rate_limiter_v3 import PROXY_DynamicRateLimitHandlerV3

logging.disable(logging.CRITICAL)
litellm.priority_reservation = {"prod": 0.9, "dev": 0.1}


async def admitted(asked):
    """How many of these requests, one after another, each priority gets from a fresh limiter."""
    limiter = PROXY_DynamicRateLimitHandlerV3(internal_usage_cache=DualCache())
    model = {"model_name": "m", "litellm_params": {"model": "openai/m", "api_key": "k", "rpm": 100}}
    limiter.update_variables(Router(model_list=[model]))
    got = {}
    for priority in asked:
        key = UserAPIKeyAuth(api_key="sk-1", metadata={"priority": priority} if priority else {})
        try:
            await limiter.async_pre_call_hook(key, DualCache(), {"model": "m"}, "completion")
            got[priority] = got.get(priority, 0) + 1
        except Exception as error:
            assert getattr(error, "status_code", None) == 429, error
    return got


async def main():
    print("prod alone:", await admitted(["prod"] * 300))
    print("dev alone:", await admitted(["dev"] * 300))
    print("dev first:", await admitted(["dev"] * 300 + ["prod"] * 300))
    print("in turns:", await admitted(["dev", "prod"] * 300))
    print("dev ten times as often:", await admitted((["dev"] * 10 + ["prod"]) * 100))
    print("without a priority:", await admitted([None] * 300))


asyncio.run(main())
PYTHON
export LITELLM_LOCAL_MODEL_COST_MAP=True
env/bin/python probe.py | tee seen
diff seen - <<'SEEN'
prod alone: {'prod': 90}
dev alone: {'dev': 50}
dev first: {'dev': 50, 'prod': 50}
in turns: {'dev': 25, 'prod': 75}
dev ten times as often: {'dev': 46, 'prod': 54}
without a priority: {None: 50}
SEEN
