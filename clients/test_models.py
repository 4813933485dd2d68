#!/usr/bin/env python3
"""Runs the clients of language models, and the examples of the book, with the real packages, a real server and a stand-in for a provider
that streams. Installs the packages into ~/.cache/tidegate/clients.

test_models.py [NAME ...]     of openai, litellm, router and proxy (both of LiteLLM)

TIDEGATE_PROGRAM=PROGRAM names the server (default: target/debug/tidegate)
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from test import CACHE, HERE, PROGRAM, Running, free_port, front_of

PYTHON = CACHE / "models/bin/python"
# The extra `proxy` of LiteLLM 1.110 needs a package that the index does not have.
PROXY_PYTHON = CACHE / "proxy/bin/python"
PACKAGES = {"openai": "openai==3.57.*", "litellm": "litellm==1.110.*", "router": "litellm==1.110.*", "proxy": "litellm[proxy]==1.99.4"}
RULES = """limits:
  - {name: requests, limit: 100/360d, algorithm: fixed-window}
  - {name: tokens, limit: 1000/360d, algorithm: fixed-window}
"""
USED = 120
# Calls come as lines of JSON, and each is answered by a line.
APPS = {
    "openai": """
import json, os, sys
from openai import OpenAI
from openai_tokens import Budget, Denied
client = OpenAI(max_retries=0)
for line in sys.stdin:
    call = json.loads(line)
    budget = Budget(os.environ["KEY"], timeout=call.pop("timeout"), server=call.pop("server"), fail_open=call.pop("is_open"))
    try:
        chunks = budget.stream(client, messages=[{"role": "user", "content": "Hello"}], **call)
        print("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), flush=True)
    except Denied as denied:
        print("denied by", denied.limit, flush=True)
    except Exception as error:
        print("error", type(error).__name__, flush=True)
""",
    "litellm": """
import asyncio, json, os, sys
import litellm
from litellm_tokens import Denied, Tidegate

litellm.suppress_debug_info = True  # which goes to standard output

limit = Tidegate(lambda call: os.environ["KEY"], timeout=10)
litellm.callbacks = [limit]

async def main():
    for line in sys.stdin:
        call = json.loads(line)
        limit.client.base_url, limit.fail_open, limit.timeout = call.pop("server"), call.pop("is_open"), call.pop("timeout")
        call["model"] = "openai/" + call["model"]
        try:
            answer = await litellm.acompletion(messages=[{"role": "user", "content": "Hello"}], stream=True, num_retries=0,
                max_retries=0, stream_options={"include_usage": True}, **call)
            text = ""
            async for chunk in answer:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            print(text, flush=True)
        except Denied as denied:
            print("denied by", denied.limit, flush=True)
        except Exception as error:
            print("error", type(error).__name__, flush=True)
        await limit.settled()

asyncio.run(main())
""",
    # Calls of a Router with several deployments. A line of JSON says who calls; the answer is a text or an error's name.
    "router": """
import asyncio, json, os, sys
import litellm
from litellm_tokens import Denied, NoDecision, Tidegate

litellm.suppress_debug_info = True

limit = Tidegate(lambda call: call["user"], timeout=10)
litellm.callbacks = [limit]

async def main():
    routers = {}
    for line in sys.stdin:
        call = json.loads(line)
        limit.client.base_url, limit.fail_open = call.pop("server"), call.pop("is_open")
        count = call.pop("deployments")
        if count not in routers:
            deployment = {"model_name": "good", "litellm_params": {"model": "openai/good"}}
            routers[count] = litellm.Router(model_list=[deployment | {"model_info": {"id": f"{count}-{at}"}} for at in range(count)])
        try:
            answer = await routers[count].acompletion("good", messages=[{"role": "user", "content": "Hello"}], stream=True,
                stream_options={"include_usage": True}, **call)
            text = ""
            async for chunk in answer:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            print(text, flush=True)
        except Denied as denied:
            print("denied by", denied.limit, flush=True)
        except Exception as error:
            print("error", type(error).__name__, flush=True)
        await limit.settled()

asyncio.run(main())
""",
}
# The proxy's settings; its callback is in a module next to them.
PROXY = """model_list:
  - {model_name: good, litellm_params: {model: openai/good}, model_info: {id: one}}
  - {model_name: good, litellm_params: {model: openai/good}, model_info: {id: two}}
litellm_settings: {callbacks: limited.limit}
"""
LIMITED = """
from litellm_tokens import Tidegate

limit = Tidegate(lambda call: call["user"], timeout=10)
"""


class Provider(BaseHTTPRequestHandler):
    """Streams an answer with its usage in the last event, refuses the model `refused`, and breaks off at the model `cut`."""

    protocol_version = "HTTP/1.1"
    asked = []

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/chat/completions" and call["stream"], (self.path, call)
        self.asked.append(call["model"])
        if call["model"] == "refused":
            body = json.dumps({"error": {"message": "no such model", "type": "invalid_request_error"}}).encode()
            self.send_response(400)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for text in ["Hello", " ", "world"]:
            self.event(call, choices=[{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}])
        if call["model"] == "cut":
            self.wfile.flush()
            self.close_connection = True
            return
        self.event(call, choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if call.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": 20, "completion_tokens": USED - 20, "total_tokens": USED}
            self.event(call, choices=[], usage=usage)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, call, **more):
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": call["model"], **more}
        self.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_):
        pass


def left(port, key):
    """What remains of both limits."""
    def of(limit):
        question = json.dumps({"limit": limit, "key": key, "cost": 0}).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/peek", question, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)["remaining"]
    return [of("requests"), of("tokens")]


def eventually(what, is_so):
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until, what()
        time.sleep(0.02)


def check(name, place, server, closed, variables):
    for client in HERE.glob("*_tokens.py"):
        shutil.copy(client, place)
    (place / "app.py").write_text(APPS[name])
    key = f"{name}-key"
    app = subprocess.Popen([PYTHON, "app.py"], cwd=place, env=variables | {"KEY": key}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(place / "errors").open("w"))

    def call(model, most=400, port=server, is_open=True, timeout=10):
        call = {"model": model, "max_tokens": most, "server": f"http://127.0.0.1:{port}", "is_open": is_open, "timeout": timeout}
        app.stdin.write(json.dumps(call) + "\n")
        app.stdin.flush()
        return app.stdout.readline().strip()

    def holds(*expected):
        eventually(lambda: (left(server, key), expected), lambda: left(server, key) == [*expected])

    assert call("good") == "Hello world"
    holds(99, 1_000 - USED)
    assert call("good", 1_000) == "denied by tokens"
    holds(99, 1_000 - USED)
    assert call("refused").startswith("error")
    holds(99, 1_000 - USED)
    assert call("good", port=closed) == "Hello world"
    assert call("good", port=closed, is_open=False).startswith("error")
    holds(99, 1_000 - USED)
    # Of a stream that broke off only the estimate is known: the question's letters and 400 tokens.
    call("cut")
    estimate = len(json.dumps([{"role": "user", "content": "Hello"}])) // 4 + 400
    holds(98, 1_000 - USED - estimate)
    # A reservation whose answer comes after the call went on without it is cancelled.
    front = front_of(server)
    front.open.clear()
    if name == "openai":
        assert call("good", port=front.server_port, timeout=0.5) == "Hello world"
        holds(97, 1_000 - USED - 2 * estimate)
        front.open.set()
    else:
        # The program waits for what is open before its next call.
        before = len(Provider.asked)
        opener = threading.Thread(target=lambda: (eventually(lambda: Provider.asked, lambda: len(Provider.asked) > before), front.open.set()))
        opener.start()
        assert call("good", port=front.server_port, timeout=0.5) == "Hello world"
        opener.join()
    holds(98, 1_000 - USED - estimate)
    assert front.asked == ["/v1/reserve", "/v1/cancel"], front.asked
    app.stdin.close()
    assert app.wait(60) == 0


def check_router(place, server, closed, variables):
    """One user's denial is one question, and the deployments answer other users."""
    shutil.copy(HERE / "litellm_tokens.py", place)
    (place / "app.py").write_text(APPS["router"])
    app = subprocess.Popen([PYTHON, "app.py"], cwd=place, env=variables, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(place / "errors").open("w"))
    front = front_of(server)

    def call(user, most, deployments, port=front.server_port, is_open=True):
        call = {"user": user, "max_tokens": most, "deployments": deployments, "server": f"http://127.0.0.1:{port}", "is_open": is_open}
        app.stdin.write(json.dumps(call) + "\n")
        app.stdin.flush()
        return app.stdout.readline().strip()

    for deployments in (1, 3):
        alice, bob = f"alice-{deployments}", f"bob-{deployments}"
        front.asked.clear()
        for _ in range(4):
            assert call(alice, 1_000, deployments) == "denied by tokens"
        assert front.asked == ["/v1/reserve"] * 4, front.asked
        # Nor does a server that does not answer put the deployments out of use.
        for _ in range(4):
            assert call(alice, 10, deployments, closed, False) == "error NoDecision"
        for at in range(4):
            assert call(bob, 10, deployments) == "Hello world", (deployments, at)
        eventually(lambda: left(server, bob), lambda: left(server, bob) == [96, 1_000 - 4 * USED])
        assert left(server, alice) == [100, 1_000]
    app.stdin.close()
    assert app.wait(60) == 0


def check_proxy(place, server, variables):
    """The same under the proxy, whose clients get the limit's 429 and its wait."""
    shutil.copy(HERE / "litellm_tokens.py", place)
    (place / "config.yaml").write_text(PROXY)
    (place / "limited.py").write_text(LIMITED)
    port, front = free_port(), front_of(server)
    program = [PROXY_PYTHON.parent / "litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    variables = variables | {"TIDEGATE_SERVER": f"http://127.0.0.1:{front.server_port}"}

    def call(user, most):
        call = {"model": "good", "user": user, "max_tokens": most, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
        call["stream_options"] = {"include_usage": True}
        address = f"http://127.0.0.1:{port}/v1/chat/completions"
        asked = urllib.request.Request(address, json.dumps(call).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, answer.read().decode(), None
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode(), answer.headers["retry-after"]

    with Running(port, program, patience=300, cwd=place, env=variables):
        for _ in range(4):
            status, body, after = call("proxy-alice", 1_000)
            assert status == 429 and "tokens: " in body, (status, body, after)
        assert front.asked == ["/v1/reserve"] * 4, front.asked
        for at in range(4):
            status, body, _ = call("proxy-bob", 10)
            assert status == 200 and "world" in body, (at, status, body)
        eventually(lambda: left(server, "proxy-bob"), lambda: left(server, "proxy-bob") == [96, 1_000 - 4 * USED])
        # LiteLLM reports beside its answer, so the next call may come first.
        assert sorted(front.asked[4:]) == ["/v1/reserve"] * 4 + ["/v1/settle"] * 4, front.asked
        assert left(server, "proxy-alice") == [100, 1_000]
        # The wait is half a year, which the server shortens to what clients can count.
        status, body, after = call("proxy-bob", 600)
        assert (status, after) == (429, "2000000") and "tokens: quota" in body, (status, body, after)


def check_book(name, place, server, variables):
    """The book's example as it stands, but for its patience: a machine that does other work may need more than 100 ms."""
    page = (HERE.parent / "docs/src/charge.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if f"import {name}" in block or f"from {name} " in block]
    patient = re.sub(r"(Budget\(|Tidegate\()", r"\1timeout=10, ", example).replace('timeout=10, "openai"', '"openai", timeout=10')
    assert patient != example
    (place / "example.py").write_text(patient)
    ran = subprocess.run([PYTHON, "example.py"], cwd=place, env=variables, text=True, capture_output=True, timeout=120)
    assert ran.returncode == 0 and "Hello world" in ran.stdout, ran
    return left(server, name)


def main():
    names = sys.argv[1:] or list(PACKAGES)
    for name in names:
        place, package = CACHE / ("proxy" if name == "proxy" else "models"), PACKAGES[name]
        if not (place / f".{package}").exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            subprocess.run([place / "bin/python", "-m", "pip", "install", "--quiet", package], check=True)
            (place / f".{package}").touch()
    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    port = free_port()
    variables = os.environ | {
        "OPENAI_BASE_URL": f"http://127.0.0.1:{provider.server_port}/v1", "OPENAI_API_KEY": "none",
        "TIDEGATE_SERVER": f"http://127.0.0.1:{port}", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "rules.yaml").write_text(RULES)
        serve = [PROGRAM, "serve", "--admin", "off", "--resp", "off", "--rules", scratch / "rules.yaml", "--http", f"127.0.0.1:{port}"]
        with Running(port, serve):
            for name in names:
                place = scratch / name
                place.mkdir()
                if name == "router":
                    check_router(place, port, free_port(), variables)
                if name == "proxy":
                    check_proxy(place, port, variables)
                if name in ("router", "proxy"):
                    print(f"{name}: as it should")
                    continue
                check(name, place, port, free_port(), variables)
                told = check_book(name, place, port, variables)
                assert told == [99, 1_000 - USED], told
                print(f"{name}: as it should")


main()
