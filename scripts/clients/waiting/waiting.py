"""The clients for Python. A line of JSON for each step, which the test answers with a line."""
import json
import sys

import redis

PORT = int(sys.argv[1])
ASK = ("ACQUIRE", "jobs", "x", 1, "WAIT", 60_000, "PRIORITY", 7)


def step(name, **told):
    print(json.dumps({"step": name, **told}), flush=True)
    return sys.stdin.readline().strip()


def check(options, **arguments):
    step("hold")
    client = redis.Redis(port=PORT, socket_timeout=0.5, **arguments)
    try:
        error = f"got {client.execute_command(*ASK)}"
    except redis.RedisError as raised:
        error = f"`{type(raised).__name__}`"
    place = "at once" if step("failed") == "free" else "no"
    after = "yes" if client.execute_command("PEEK", "jobs", "x")[:3] == [1, 1, 0] else "no"
    client.close()
    step("return")
    step("hold")
    patient = redis.Redis(port=PORT, socket_timeout=30, **arguments)
    step("wait")
    waited = patient.execute_command(*ASK)
    patient.close()
    step("row", client="redis (Python)", options=options, error=error, place=place, next=after, waited=waited)


check("socket_timeout=0.5")
check("socket_timeout=0.5, retry=None", retry=None)
