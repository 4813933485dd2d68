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
LATE = 30  # seconds, for what no call waits for


def estimate(call):
    """About four letters of the question are a token. The answer may have all that the call allows."""
    most = call.get("max_completion_tokens") or call.get("max_tokens") or 1_000
    return len(json.dumps(call.get("messages"))) // 4 + most


class Rejected(litellm.BadRequestError):
    """A call that is not made. A Router does not try it again, and its deployments stay in use for other calls: a 429 would be taken for the
    provider's, and cool them down."""

    def __init__(self, why, **more):
        super().__init__(why, "", "tidegate")
        self.__dict__.update(more)


class Denied(Rejected):
    """A limit has no room for the call: `limit`, `reason`, and `retry_after_ms` until it will, if that is known. The server's `Retry-After`
    has no time that clients misread."""


class NoDecision(Rejected):
    """The server does not answer, and `fail_open` is off."""


class Refused(Rejected):
    """The server answers, but not this question: a limit's name, the token or a right is wrong. The text says what to do."""


def read(answer):
    """The server's decision."""
    if answer.status_code in (200, 429):
        return answer.json() | {"retry_after": answer.headers.get("retry-after")}
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text
    refused = Refused if answer.status_code < 500 else ValueError
    raise refused(f"{answer.status_code}: {detail}")


class Tidegate(CustomLogger):
    def __init__(self, key, requests="requests", tokens="tokens", server=SERVER, timeout=0.1, fail_open=True, token=None, ttl="10m"):
        super().__init__()
        self.key, self.requests, self.tokens = key, requests, tokens
        self.timeout, self.fail_open, self.ttl = timeout, fail_open, ttl
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(base_url=server, headers=headers)
        self.reserved = {}  # the id of each call that is open
        self.late = set()  # what goes on after a call did not wait for it

    async def ask(self, path, question, timeout):
        return read(await self.client.post(f"/v1/{path}", json=question, timeout=timeout))

    async def ask_in_time(self, question):
        """The answer to a reservation. One that comes too late is cancelled."""
        asked = asyncio.ensure_future(self.ask("reserve", question, LATE))
        try:
            await asyncio.wait({asked}, timeout=self.timeout)
        finally:
            if not asked.done():
                self.later(self.cancel_late(asked))
        if not asked.done():
            raise httpx.ReadTimeout("no answer in time")
        return asked.result()

    async def cancel_late(self, asked):
        try:
            reserved = (await asked).get("id")
            if reserved:
                await self.settle(reserved, "cancel", {}, LATE)
        except (httpx.HTTPError, ValueError, Refused) as why:
            logging.getLogger("tidegate").warning("a late reservation is not cancelled: %r", why)

    def later(self, work):
        task = asyncio.ensure_future(work)
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    async def reserve(self, call):
        """Reserves for a call, unless that is done."""
        if call["litellm_call_id"] in self.reserved:
            return
        key = self.key(call)
        tokens = {"limit": self.tokens, "key": key, "cost": estimate(call)}
        question = {"ttl": self.ttl, "all": [{"limit": self.requests, "key": key}, tokens]}
        try:
            told = await self.ask_in_time(question)
        except (httpx.HTTPError, ValueError) as why:
            logging.getLogger("tidegate").warning("no reservation: %r", why)
            if self.fail_open:
                return
            raise NoDecision("no reservation") from why
        if not told["allowed"]:
            limit, reason, wait = (told.get(name) for name in ("limit_name", "reason", "retry_after_ms"))
            more = {"limit": limit, "reason": reason, "retry_after_ms": wait, "retry_after": told["retry_after"]}
            raise Denied(f"{limit}: {reason}", **more)
        self.reserved[call["litellm_call_id"]] = told["id"]

    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        """In the proxy, before it chooses a deployment."""
        from fastapi import HTTPException

        try:
            await self.reserve(data)
        except Denied as denied:
            headers = {} if denied.retry_after is None else {"retry-after": denied.retry_after}
            raise HTTPException(429, {"error": f"{denied.limit}: {denied.reason}"}, headers) from denied
        except NoDecision as why:
            raise HTTPException(503, {"error": "no decision"}) from why
        return data

    async def async_pre_call_deployment_hook(self, kwargs, call_type):
        """In a program, with a Router or without."""
        await self.reserve(kwargs)
        return kwargs

    async def settle(self, reserved, path, more, timeout):
        # A repeated settlement counts once, so a lost answer is asked for again.
        for _ in range(3):
            try:
                return await self.ask(path, {"id": reserved} | more, timeout)
            except (httpx.HTTPError, ValueError) as why:
                logging.getLogger("tidegate").warning("%s is not settled: %r", reserved, why)

    async def end(self, kwargs, path, more):
        reserved = self.reserved.get(kwargs["litellm_call_id"])
        try:
            if reserved:
                await self.settle(reserved, path, more, self.timeout)
        finally:
            self.reserved.pop(kwargs["litellm_call_id"], None)

    async def settled(self):
        """Waits for the settlements, which LiteLLM makes in a separate task. For programs that end."""
        while self.reserved or self.late:
            await asyncio.sleep(0.01)

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        await self.end(kwargs, "settle", {"costs": [1, response_obj.usage.total_tokens]})

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        # A call that the provider refused has used nothing. A stream that broke off keeps its estimate.
        if 400 <= getattr(kwargs.get("exception"), "status_code", 500) < 500:
            await self.end(kwargs, "cancel", {})
        else:
            self.reserved.pop(kwargs["litellm_call_id"], None)
