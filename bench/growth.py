#!/usr/bin/env python3
"""How the cost of a decision and the memory grow: with keys, limits, connections, and rules with overrides.

One server in memory, asked over the Redis protocol by redis-benchmark. Each step starts a fresh server. Printed for each: decisions a
second, processor time of the server for a decision, its resident memory (by key, by limit or by connection), and the exponent of growth to
the step before: 0 is constant, 1 linear.

    bench/growth.py PROGRAM [keys] [limits] [connections] [start]      all of them without a name

`start` measures how long `serve` takes until it answers, and a reload, with 1,000 limits and 30,000 overrides, and the latency of
decisions meanwhile.

Linux, Python 3.9, redis-benchmark.
"""

import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A server of its own with these rules. `started` is how many seconds it took until it answered."""

    def __init__(self, program, rules, *more):
        self.scratch = tempfile.TemporaryDirectory()
        self.rules = pathlib.Path(self.scratch.name) / "rules.yaml"
        self.rules.write_text(rules)
        self.port, self.admin = free_port(), free_port()
        addresses = ["--http", "off", "--resp", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}"]
        began = time.monotonic()
        arguments = [program, "serve", *addresses, "--rules", self.rules, "--top-keys", "0", *more]
        self.child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                self.ask = socket.create_connection(("127.0.0.1", self.port))
                break
            except ConnectionRefusedError:
                assert self.child.poll() is None, "the server ended"
        self.command("PING")
        self.started = time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.scratch.cleanup()

    def command(self, text):
        self.ask.sendall(f"{text}\r\n".encode())
        return self.ask.recv(65536)

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self):
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024

    def load(self, requests, command, *, keys=1, connections=50, pipeline=16):
        """Decisions a second, and nanoseconds of the server's processor time for each."""
        before, began = self.cpu(), time.monotonic()
        subprocess.run(
            ["redis-benchmark", "-p", str(self.port), "-c", str(connections), "-P", str(pipeline), "-n", str(requests),
             "-r", str(keys), "-q", *command],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        took = time.monotonic() - began
        return requests / took, (self.cpu() - before) / requests * 1e9


class Table:
    """Rows with the exponents of growth from one row to the next."""

    def __init__(self, head):
        print(f"\n| {head} | decisions a second | CPU, ns | exponent | memory | for each | exponent |")
        print("|---|---|---|---|---|---|---|")
        self.last = None

    def row(self, count, rate, cpu, memory, each):
        exponents = ["", ""]
        if self.last:
            ratio = math.log(count / self.last[0])
            pairs = [(cpu, self.last[1]), (max(memory, 1), self.last[2])]
            exponents = [f"{math.log(now / before) / ratio:.2f}" for now, before in pairs]
        self.last = (count, cpu, max(memory, 1))
        unit = f"{memory / 2**20:.1f} MiB"
        print(f"| {count:,} | {rate:,.0f} | {cpu:.0f} | {exponents[0]} | {unit} | {each:.0f} B | {exponents[1]} |", flush=True)


def keys(program):
    table = Table("keys")
    for count in [10**power for power in range(3, 9)]:
        rules = f"limits: [{{name: users, limit: 1000000/1h, algorithm: token-bucket, max_keys: {count}}}]\n"
        with Server(program, rules) as server:
            empty = server.memory()
            command = ["ACQUIRE", "users", "key:__rand_int__"]
            # Random keys: of 3 requests for each key, 95 % of the keys are there.
            server.load(max(3 * count, 300_000), command, keys=count, pipeline=64)
            rate, cpu = server.load(2_000_000, command, keys=count)
            grown = server.memory() - empty
            table.row(count, rate, cpu, grown, grown / count)


def limits(program):
    table = Table("limits")
    for count in [1, 10, 100, 1_000]:
        # redis-benchmark writes its random numbers with twelve digits.
        lines = [f"  - {{name: limit-{at:012}, limit: 1000000/1h, max_keys: 1000}}\n" for at in range(count)]
        with Server(program, "limits:\n" + "".join(lines)) as server:
            rate, cpu = server.load(2_000_000, ["ACQUIRE", "limit-__rand_int__", "alice"], keys=count)
            memory = server.memory()
            table.row(count, rate, cpu, memory, memory / count)


def connections(program):
    table = Table("connections")
    rules = "limits: [{name: users, limit: 1000000/1h, algorithm: token-bucket, max_keys: 100000}]\n"
    for count in [1, 10, 100, 1_000, 10_000]:
        with Server(program, rules, "--max-connections", "20000") as server:
            empty = server.memory()
            requests = 100_000 if count == 1 else 500_000
            command = ["ACQUIRE", "users", "key:__rand_int__"]
            rate, cpu = server.load(requests, command, keys=100_000, connections=count, pipeline=1)
            grown = server.memory() - empty
            table.row(count, rate, cpu, grown, grown / count)


def start(program):
    """1,000 limits with 30 overrides each."""
    lines = []
    for at in range(1_000):
        own = ", ".join(f"key-{key}: {key + 1}/1m" for key in range(30))
        lines.append(f"  - {{name: limit-{at}, limit: 100/1m, max_keys: 1000, overrides: {{{own}}}}}\n")
    rules = "limits:\n" + "".join(lines)
    starts = []
    for _ in range(5):
        with Server(program, rules) as server:
            starts.append(server.started)
    print(f"\nstart with 1,000 limits and 30,000 overrides: {sorted(starts)[2] * 1000:.0f} ms (median of 5)")
    with Server(program, rules) as server:
        waits, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                began = time.monotonic()
                server.command("ACQUIRE limit-7 alice")
                waits.append(time.monotonic() - began)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(2)
        usual, reloads, during = sorted(waits), [], []
        for number in range(5):
            server.rules.write_text(rules.replace("100/1m", f"{200 + number}/1m"))
            at, began = len(waits), time.monotonic()
            command = [program, "reload", "--server", f"127.0.0.1:{server.admin}", "--timeout", "30s"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            reloads.append(time.monotonic() - began)
            during += waits[at:]
            time.sleep(1)
        stop.set()
        asking.join()
    p99 = [sorted(list)[int(len(list) * 0.99)] * 1e6 for list in [usual, during]]
    print(f"reload of the same: {sorted(reloads)[2] * 1000:.0f} ms (median of 5)")
    print(f"p99 of decisions: {p99[0]:.0f} us before, {p99[1]:.0f} us during reloads ({len(during)} decisions)")


WORKS = {"keys": keys, "limits": limits, "connections": connections, "start": start}

program, names = sys.argv[1], sys.argv[2:] or list(WORKS)
for name in names:
    WORKS[name](program)
