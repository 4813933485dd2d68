"""Reserves the tokens of each call of LiteLLM at a Tidegate server before it, and settles them with the usage in the answer.

litellm.callbacks = [Tidegate(key=lambda call: call["user"])]   in a program; or an instance that `callbacks` of the proxy's settings names
"""
import asyncio
import json
import logging
import os

import httpx
import litellm
from litellm.integrations.custom_logger import CustomLogger

SERVER = os.environ.get("TIDEGATE_SERVER", "http://127.0.0.1:8080")


def estimate(call):
    """About four letters of the question are a token. The answer may have all that the call allows."""
    most = call.get("max_completion_tokens") or call.get("max_tokens") or 1_000
    return len(json.dumps(call.get("messages"))) // 4 + most


class Refused(Exception):
    """The server answers, but not this question: a limit's name, the token or a right is wrong. The text says what to do."""


def read(answer):
    """The server's decision."""
    if answer.status_code in (200, 429):
        return answer.json()
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text
    refused = Refused if answer.status_code < 500 else ValueError
    raise refused(f"{answer.status_code}: {detail}")


class Tidegate(CustomLogger):
    def __init__(self, key, requests="requests", tokens="tokens", server=SERVER, timeout=0.1, fail_open=True, token=None, ttl="10m"):
        super().__init__()
        self.key, self.requests, self.tokens, self.fail_open, self.ttl = key, requests, tokens, fail_open, ttl
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(base_url=server, timeout=timeout, headers=headers)
        self.reserved = {}  # the id of each call that is open

    async def ask(self, path, question):
        answer = await self.client.post(f"/v1/{path}", json=question)
        return read(answer)

    async def async_pre_call_deployment_hook(self, kwargs, call_type):
        key = self.key(kwargs)
        tokens = {"limit": self.tokens, "key": key, "cost": estimate(kwargs)}
        question = {"ttl": self.ttl, "all": [{"limit": self.requests, "key": key}, tokens]}
        try:
            told = await self.ask("reserve", question)
        except (httpx.HTTPError, ValueError) as why:
            logging.getLogger("tidegate").warning("no reservation: %r", why)
            if self.fail_open:
                return kwargs
            raise litellm.ServiceUnavailableError("no reservation", "tidegate", kwargs["model"]) from why
        if not told["allowed"]:
            raise litellm.RateLimitError(f"{told.get('limit_name')}: {told.get('reason')}", "tidegate", kwargs["model"])
        self.reserved[kwargs["litellm_call_id"]] = told["id"]
        return kwargs

    async def end(self, kwargs, path, more):
        reserved = self.reserved.get(kwargs["litellm_call_id"])
        # A repeated settlement counts once, so a lost answer is asked for again.
        for _ in range(3 if reserved else 0):
            try:
                await self.ask(path, {"id": reserved} | more)
                break
            except (httpx.HTTPError, ValueError) as why:
                logging.getLogger("tidegate").warning("%s is not settled: %r", reserved, why)
        self.reserved.pop(kwargs["litellm_call_id"], None)

    async def settled(self):
        """Waits for the settlements, which LiteLLM makes in a separate task. For programs that end."""
        while self.reserved:
            await asyncio.sleep(0.01)

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        await self.end(kwargs, "settle", {"costs": [1, response_obj.usage.total_tokens]})

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        # A call that the provider refused has used nothing. A stream that broke off keeps its estimate.
        if 400 <= getattr(kwargs.get("exception"), "status_code", 500) < 500:
            await self.end(kwargs, "cancel", {})
        else:
            self.reserved.pop(kwargs["litellm_call_id"], None)
