"""Limits the requests of Starlette or FastAPI by a Tidegate server.

app.add_middleware(Tidegate, limit="per-user", key=lambda request: request.client.host)

Only responses that `counts` accepts count, such as failed logins: counts=lambda status: status == 401
"""
import asyncio
import logging
import uuid

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse


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


class Tidegate:
    def __init__(self, app, limit, key, server="http://127.0.0.1:8080", timeout=0.1, fail_open=True, token=None, counts=None):
        self.app, self.limit, self.key, self.fail_open, self.counts = app, limit, key, fail_open, counts
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(base_url=server, timeout=timeout, headers=headers)

    async def ask(self, path, question):
        try:
            return await self.client.post(path, json=question)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            # The answer was lost with its connection. With the same id the request is counted once.
            return await self.client.post(path, json=question)

    async def give_back(self, reserved):
        try:
            (await self.ask("/v1/cancel", {"id": reserved})).raise_for_status()
        except httpx.HTTPError as error:
            logging.getLogger("tidegate").warning("the request stays counted: %r", error)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            # A reservation counts at once, so requests that run at the same time do not exceed the limit.
            path = "/v1/reserve" if self.counts else "/v1/acquire"
            answer = await self.ask(path, {"limit": self.limit, "key": self.key(Request(scope)), "id": str(uuid.uuid4())})
            told = read(answer)
        except (httpx.HTTPError, ValueError) as error:
            logging.getLogger("tidegate").warning("no decision: %r", error)
            told = {"allowed": self.fail_open}
            denial = JSONResponse({"reason": "no decision"}, 503)
        else:
            # The server's field has no time that clients misread.
            wait = answer.headers.get("retry-after")
            headers = {} if wait is None else {"retry-after": wait}
            denial = JSONResponse({"reason": told.get("reason")}, 429, headers)
        if not told["allowed"]:
            return await denial(scope, receive, send)
        await asyncio.sleep(told.get("delay_ms", 0) / 1000)
        status = 500  # of an exception

        async def watched(message):
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            if self.counts and told.get("id") and not self.counts(status):
                await self.give_back(told["id"])
