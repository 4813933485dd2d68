"""Reserves the tokens of a call of OpenAI's client at a Tidegate server before it, and settles them with the usage in the answer.

budget = Budget("alice")
for chunk in budget.stream(OpenAI(), model="gpt-5-mini", messages=[...], max_completion_tokens=400): ...
"""
import json
import logging
import os
import threading
from concurrent import futures
from urllib import error, request as web

SERVER = os.environ.get("TIDEGATE_SERVER", "http://127.0.0.1:8080")
LATE = 30  # seconds, for what no call waits for


class Denied(Exception):
    """A limit has no room for the call: which one, why, and in how many milliseconds it will, if that is known."""

    def __init__(self, told):
        self.limit, self.reason, self.retry_after_ms = (told.get(name) for name in ("limit_name", "reason", "retry_after_ms"))
        super().__init__(f"{self.limit}: {self.reason}")


def detail(answer):
    text = answer.read().decode(errors="replace")
    try:
        return json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return text


def estimate(call):
    """About four letters of the question are a token. The answer may have all that the call allows."""
    most = call.get("max_completion_tokens") or call.get("max_tokens") or 1_000
    return len(json.dumps(call["messages"])) // 4 + most


class Refused(Exception):
    """The server answers, but not this question: a limit's name, the token or a right is wrong. The text says what to do."""


class Budget:
    def __init__(self, key, requests="requests", tokens="tokens", server=SERVER, timeout=0.1, fail_open=True, token=None, ttl="10m"):
        self.limits = [{"limit": requests, "key": key}, {"limit": tokens, "key": key}]
        self.server, self.timeout, self.fail_open, self.ttl = server, timeout, fail_open, ttl
        self.headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})

    def ask(self, path, question, timeout):
        asked = web.Request(f"{self.server}/v1/{path}", json.dumps(question).encode(), self.headers)
        try:
            with web.urlopen(asked, timeout=timeout) as answer:
                return json.load(answer)
        except error.HTTPError as answer:
            if answer.code != 429 and answer.code < 500:
                raise Refused(f"{answer.code}: {detail(answer)}") from None
            if answer.code != 429:
                raise
            return json.load(answer)

    def ask_in_time(self, question):
        """The answer to a reservation. One that comes too late is cancelled."""
        asked = futures.Future()

        def run():
            try:
                asked.set_result(self.ask("reserve", question, LATE))
            except Exception as error:
                asked.set_exception(error)

        def too_late(asked):
            if not asked.exception() and asked.result().get("id"):
                self.end(asked.result()["id"], None, LATE)

        threading.Thread(target=run, daemon=True).start()
        try:
            return asked.result(self.timeout)
        except futures.TimeoutError:
            if asked.done():
                return asked.result()
            asked.add_done_callback(too_late)
            raise

    def reserve(self, cost):
        """The id of the reservation; None if the server does not answer and calls go on without it."""
        requests, tokens = self.limits
        try:
            told = self.ask_in_time({"ttl": self.ttl, "all": [requests, tokens | {"cost": cost}]})
        except (OSError, ValueError, futures.TimeoutError) as why:
            logging.getLogger("tidegate").warning("no reservation: %r", why)
            if self.fail_open:
                return None
            raise
        if not told["allowed"]:
            raise Denied(told)
        return told["id"]

    def end(self, reserved, used, timeout=None):
        """Corrects the estimate to what was used; None cancels. A repeated one counts once, so a lost answer is asked for again."""
        path, costs = ("cancel", {}) if used is None else ("settle", {"costs": [1, used]})
        for _ in range(3):
            try:
                return self.ask(path, {"id": reserved} | costs, timeout or self.timeout)
            except (OSError, ValueError) as why:
                logging.getLogger("tidegate").warning("%s is not settled: %r", reserved, why)

    def stream(self, client, **call):
        """The chunks of a streamed answer."""
        reserved, used, has_begun = self.reserve(estimate(call)), None, False
        try:
            for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **call):
                has_begun = True
                used = chunk.usage.total_tokens if chunk.usage else used
                yield chunk
        finally:
            # A call that the provider refused has used nothing. A stream that broke off keeps its estimate.
            if reserved and (used is not None or not has_begun):
                self.end(reserved, used)
