#!/usr/bin/env bash
# LiteLLM 1.110.2's Router takes a RateLimitError that a callback raises in async_pre_call_deployment_hook for one of the provider: it tries the
# other deployment, and cools down both. After one user was over a limit that only the callback knows, every other user gets 429.
#
# Seen on 2026-11-28, Python 3.11, two deployments with mock responses (another user, the user who is over the limit, the other user again):
#   answered
#   RateLimitError 429
#   RouterRateLimitError 429
#
# Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litellm==1.110.2
cat >"$folder/ask.py" <<'PY'
import asyncio
import logging
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm import Router
from litellm.integrations.custom_logger import CustomLogger

logging.disable(logging.CRITICAL)
litellm.suppress_debug_info = True


class PerUser(CustomLogger):
    """Denies one user, as a limiter does."""

    async def async_pre_call_deployment_hook(self, kwargs, call_type):
        if kwargs.get("user") == "over":
            raise litellm.RateLimitError("over the user's limit", llm_provider="", model=kwargs.get("model", ""))
        return kwargs


async def main():
    litellm.callbacks = [PerUser()]
    deployments = [
        {"model_name": "chat", "litellm_params": {"model": "openai/gpt-4o", "api_key": key, "mock_response": "hello"}, "model_info": {"id": key}}
        for key in ("one", "two")
    ]
    router = Router(model_list=deployments)

    async def ask(user):
        try:
            await router.acompletion(model="chat", messages=[{"role": "user", "content": "hi"}], user=user)
            return "answered"
        except Exception as error:
            return f"{type(error).__name__} {getattr(error, 'status_code', '')}"

    found = [await ask("other"), await ask("over"), await ask("other")]
    print(*found, sep="\n")
    if found != ["answered", "RateLimitError 429", "RouterRateLimitError 429"]:
        raise SystemExit("it has changed")


asyncio.run(main())
PY
"$folder/venv/bin/python" "$folder/ask.py"
