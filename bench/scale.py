#!/usr/bin/env python3
"""Sixteen server processes that share a limit in a Redis, compared with `tidegate simulate` on the same arrivals.

usage: bench/scale.py TIDEGATE DELAY [SECONDS] [LIMIT]

TIDEGATE is the program with `simulate`, DELAY the example `delay` of crates/redis-servers. Requests for one key come at random moments for
SECONDS (6), one and a half times as many as the LIMIT of one second (600). They are distributed over the servers evenly, skewed and
moving (as `simulate --load` says), near the store and 40 ms from it, in each mode. Each server has one connection, on which requests
do not wait for replies. Prints a line of Markdown for each case: what the servers admit of what one place admits, and what the simulator
says.
"""

import asyncio
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

SERVERS = 16
MODES = ("exact", "leased", "reported")
LOADS = ("even", "skewed", "moving")
ALGORITHMS = ("token-bucket", "sliding-window")
DISTANCES = {"near": 0, "40 ms": 40}
REDIS_PORT = 16679


def node(load, at):
    """The server of a request, as the simulator's `Load` chooses it."""
    uniform = random.random()
    if load == "even":
        return int(uniform * SERVERS)
    skewed = int(uniform * uniform * SERVERS)
    return skewed if load == "skewed" else (skewed + int(at)) % SERVERS


class Connection(asyncio.Protocol):
    """Counts the admissions among the replies to ACQUIRE: arrays of five integers."""

    def __init__(self):
        self.lines, self.rest, self.admitted = 0, b"", 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        *lines, self.rest = (self.rest + data).split(b"\r\n")
        for line in lines:
            self.admitted += self.lines % 6 == 1 and line == b":0"
            self.lines += 1


async def ask(ports, name, load, times):
    """What the servers admit."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, "127.0.0.1", port) for port in ports]
    connections = [protocol for _, protocol in made]
    begun = loop.time() + 0.1
    for at in times:
        pause = begun + at - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        # The real time: a simulated server moves with it, too.
        connections[node(load, at)].transport.write(b"ACQUIRE %s key\r\n" % name.encode())
    late = loop.time() - begun - times[-1]
    while sum(connection.lines for connection in connections) < 6 * len(times):
        await asyncio.sleep(0.01)
    for connection in connections:
        connection.transport.close()
    return sum(connection.admitted for connection in connections), late


def simulated(tidegate, trace, limit, algorithm, mode, load, rtt):
    """What the simulator's servers admit, and one place."""
    report = subprocess.run(
        [tidegate, "simulate", trace, "--by", "user", "--limit", f"{limit}/1s", "--algorithm", algorithm, "--format", "json",
         "--nodes", str(SERVERS), "--mode", mode, "--load", load, "--rtt", rtt],
        check=True, capture_output=True, text=True).stdout
    row = json.loads(report)["trials"][0]["results"][0]
    return row["admitted"], row["shared"]["admitted_in_one_place"]


def until(ready):
    for _ in range(600):
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("a process does not start")


def answers(port, question, reply):
    import socket

    with socket.create_connection(("127.0.0.1", port), 1) as stream:
        stream.sendall(question)
        return reply in stream.recv(4096)


def main(tidegate, delay, seconds=6, limit=600):
    random.seed(7)
    started = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)

        def start(name, *command, **how):
            log = open(scratch / f"{name}.log", "wb")
            started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **how))
            return scratch / f"{name}.log"

        try:
            start("redis", "redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(scratch))
            until(lambda: answers(REDIS_PORT, b"PING\r\n", b"PONG"))
            rules = "limits:\n" + "".join(
                f"  - {{name: {algorithm}-{mode}-{load}, limit: {limit}/1s, algorithm: {algorithm}, sharing: {mode}}}\n"
                for algorithm in ALGORITHMS for mode in MODES for load in LOADS)
            (scratch / "rules.yaml").write_text(rules)
            print("| algorithm | distance | mode | load | admitted by 16 servers | simulated | difference, points |")
            print("|---|---|---|---|---|---|---|")
            for number, (distance, ms) in enumerate(DISTANCES.items()):
                port = REDIS_PORT
                if ms:
                    log = start("delay", delay, str(REDIS_PORT), str(ms), stdin=subprocess.PIPE)
                    until(lambda: log.stat().st_size > 0)
                    port = int(log.read_text())
                ports = [REDIS_PORT + 1 + number * SERVERS + at for at in range(SERVERS)]
                servers = len(started)
                for resp in ports:
                    start(f"server-{resp}", tidegate, "serve", "--http", "off", "--admin", "off", "--resp", f"127.0.0.1:{resp}",
                          "--rules", str(scratch / "rules.yaml"), "--store", f"redis://127.0.0.1:{port}", "--store-deadline", "5s",
                          "--store-prefix", f"scale{ms}")
                for resp in ports:
                    # A decision by the store: it is reached.
                    until(lambda: answers(resp, b"PEEK token-bucket-exact-even other\r\n", f":{limit}\r\n".encode()))
                for algorithm in ALGORITHMS:
                    for mode in MODES:
                        for load in LOADS:
                            times, at = [], 0.0
                            while at < seconds:
                                at += random.expovariate(1.5 * limit)
                                times.append(at)
                            trace = scratch / "trace.jsonl"
                            trace.write_text("".join(
                                f'{{"time": {1_700_000_000 + at:.6f}, "user": "key"}}\n' for at in times))
                            admitted, late = asyncio.run(ask(ports, f"{algorithm}-{mode}-{load}", load, times))
                            model, one_place = simulated(
                                tidegate, trace, limit, algorithm, mode, load, f"{ms}ms" if ms else "500us")
                            real, model = 100 * admitted / one_place, 100 * model / one_place
                            busy = f" (the driver was {late:.2f} s late)" if late > 0.05 else ""
                            print(f"| {algorithm} | {distance} | {mode} | {load} | {real:.1f} % | {model:.1f} % | "
                                  f"{real - model:+.1f}{busy} |", flush=True)
                for process in started[servers:]:
                    process.send_signal(signal.SIGKILL)
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.wait()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(*map(os.path.abspath, sys.argv[1:3]), *map(int, sys.argv[3:5]))
