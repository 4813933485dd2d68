"""Limits the requests of Django by a Tidegate server: MIDDLEWARE = ["django_middleware.tidegate", ...] and, in the settings,

TIDEGATE = {"limit": "per-user", "key": lambda request: request.META["REMOTE_ADDR"]}  # server, timeout, fail_open, token

Only responses that `counts` accepts count, such as failed logins: "counts": lambda status: status == 401
"""
import json
import logging
import time
import uuid
from http.client import HTTPException
from urllib import error, request as web

from django.conf import settings
from django.http import JsonResponse


class Refused(Exception):
    """The server answers, but not this question: a limit's name, the token or a right is wrong. The text says what to do."""


def detail(answer):
    text = answer.read().decode(errors="replace")
    try:
        return json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return text


def tidegate(get_response):
    given = {"server": "http://127.0.0.1:8080", "timeout": 0.1, "fail_open": True, "token": None, "counts": None, **settings.TIDEGATE}
    headers = {"content-type": "application/json"}
    if given["token"]:
        headers["authorization"] = f"Bearer {given['token']}"

    def ask(path, question):
        body = json.dumps(question).encode()
        try:
            return send(path, body)
        except ConnectionError:
            # The answer was lost with its connection. With the same id the request is counted once.
            return send(path, body)

    def send(path, body):
        """The decision, and the server's Retry-After, which has no time that clients misread."""
        question = web.Request(given["server"] + path, body, headers)
        try:
            with web.urlopen(question, timeout=given["timeout"]) as answer:
                return json.load(answer), None
        except error.HTTPError as answer:
            if answer.code != 429 and answer.code < 500:
                raise Refused(f"{answer.code}: {detail(answer)}") from None
            if answer.code != 429:
                raise
            return json.load(answer), answer.headers["retry-after"]

    def answer(request, told):
        """The response. A request that does not count is given back before it leaves, also one that fails with an exception."""
        status = 500
        try:
            response = get_response(request)
            status = response.status_code
            return response
        finally:
            if given["counts"] and told.get("id") and not given["counts"](status):
                try:
                    ask("/v1/cancel", {"id": told["id"]})
                except (OSError, ValueError, HTTPException, Refused) as why:
                    logging.getLogger("tidegate").warning("the request stays counted: %r", why)

    def middleware(request):
        try:
            # A reservation counts at once, so requests that run at the same time do not exceed the limit.
            path = "/v1/reserve" if given["counts"] else "/v1/acquire"
            told, wait = ask(path, {"limit": given["limit"], "key": given["key"](request), "id": str(uuid.uuid4())})
        except (OSError, ValueError, HTTPException) as why:
            logging.getLogger("tidegate").warning("no decision: %r", why)
            return get_response(request) if given["fail_open"] else JsonResponse({"reason": "no decision"}, status=503)
        if told["allowed"]:
            time.sleep(told.get("delay_ms", 0) / 1000)
            return answer(request, told)
        denial = JsonResponse({"reason": told.get("reason")}, status=429)
        if wait is not None:
            denial["Retry-After"] = wait
        return denial

    return middleware
