"""Limits the requests of Starlette or FastAPI by a Tidegate server.

app.add_middleware(Tidegate, limit="per-user", key=lambda request: request.client.host)
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
    def __init__(self, app, limit, key, server="http://127.0.0.1:8080", timeout=0.1, fail_open=True, token=None):
        self.app, self.limit, self.key, self.fail_open = app, limit, key, fail_open
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.AsyncClient(base_url=server, timeout=timeout, headers=headers)

    async def ask(self, question):
        question["id"] = str(uuid.uuid4())
        try:
            return await self.client.post("/v1/acquire", json=question)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            # The answer was lost with its connection. With the same id the request is counted once.
            return await self.client.post("/v1/acquire", json=question)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            answer = await self.ask({"limit": self.limit, "key": self.key(Request(scope))})
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
        await self.app(scope, receive, send)
