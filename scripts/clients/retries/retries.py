"""The clients for Python that retry. A line of JSON for each."""
import json
import sys
import urllib.request

PORT = int(sys.argv[1])
HERE = f"http://127.0.0.1:{PORT}"


def count(key):
    with urllib.request.urlopen(f"{HERE}/counts/{key}") as answer:
        return int(answer.read())


def check(client, ask):
    """`ask(key)` returns whether the service admitted it, after the client's own retries."""
    name = client.replace("/", "-").replace(" ", "-")
    found = [ask(name), ask(name), ask(f"{name}-hopeless")]
    if found != [True, True, False]:
        found = f"admitted: {found}"
    else:
        # The first request was admitted at once.
        found = count(name) - 1
    print(json.dumps({"client": f"{client} (Python)", "retried": found, "hopeless": count(f"{name}-hopeless")}), flush=True)


def tried(ask, refused, admits=lambda answer: True):
    """The answer of a client that raises its own error for a refusal."""

    def one(key):
        try:
            return admits(ask(key))
        except refused:
            return False

    return one


import urllib3

check("urllib3", lambda key: urllib3.request("GET", f"{HERE}/plain/{key}").status == 200)

import httpx
import httpx_retries

retrying = httpx.Client(transport=httpx_retries.RetryTransport(), timeout=60)
check("httpx-retries", lambda key: retrying.get(f"{HERE}/plain/{key}").status_code == 200)

import openai


def complete(key):
    client = openai.OpenAI(api_key="any", base_url=f"{HERE}/openai/{key}")
    return client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hello"}])


check("openai", tried(complete, openai.RateLimitError))

import anthropic


def write(key):
    client = anthropic.Anthropic(api_key="any", base_url=f"{HERE}/anthropic/{key}")
    return client.messages.create(model="any", max_tokens=9, messages=[{"role": "user", "content": "hello"}])


check("anthropic", tried(write, anthropic.RateLimitError))

import grpc

POLICY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.05s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
            },
        }
    ]
}
channel = grpc.insecure_channel(f"127.0.0.1:{PORT}", options=[("grpc.service_config", json.dumps(POLICY))])
health = channel.unary_unary("/grpc.health.v1.Health/Check")
check("grpcio", tried(lambda key: health(b"", metadata=[("x-key", key)], timeout=60), grpc.RpcError))
