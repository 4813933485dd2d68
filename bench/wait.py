#!/usr/bin/env python3
"""What requests that wait in line cost, compared with clients that ask again each 100 ms.

Each round starts a server of its own for each row: `--clients` connections ask for one unit of one key, whose limit admits `--rate` of them a
second. With `wait` each sends one request, which is answered when its unit is there; with `poll` each asks again 100 ms after a denial. `plain`
is as many requests that are admitted at once, one on each connection, at that rate: as many wake-ups of the server as answers. The others arrive
ten times as fast, one after another, so the n-th would be served after n / rate seconds if all were served in their order. A line of JSON for each row, with medians of the rounds:

`cpu_us`      processor time of the server for an admitted request, in the kernel too, in microseconds (/proc/PID/task/*/schedstat)
`requests`    requests for an admitted one
`spread_ms`   the standard deviation of the time between that place and the answer
`longest_ms`  the longest wait beyond that place

The last line has what `poll` takes as a multiple of `wait`, for each protocol, and `wait` as a multiple of `plain`.

With `--memory` it shows the server's memory instead (VmRSS), in bytes for each connection: `idle` after a first request, and `waits` in line.

    cargo build --profile dist -p tidegate-cli --features full
    bench/wait.py [--clients 1000] [--rate 200] [--rounds 3] [--only http|resp] [--memory] [PROGRAM]

Linux, Python 3.9. The clients run in this process, and share the machine with the server.
"""

import argparse
import heapq
import json
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AGAIN = 0.1
# A bucket of one unit: each has its own moment.
RULES = """limits:
- {{name: line, limit: {rate}/1s, burst: 1, algorithm: token-bucket}}
- {{name: plenty, limit: 1000000/1s, algorithm: token-bucket}}
"""


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Server:
    def __init__(self, program, rate, clients):
        self.folder = tempfile.TemporaryDirectory()
        rules = Path(self.folder.name) / "rules.yaml"
        rules.write_text(RULES.format(rate=rate))
        http, resp = free_ports(2)
        self.ports = {"http": http, "resp": resp}
        command = [program, "serve", "--rules", rules, "--http", f"127.0.0.1:{http}", "--resp", f"127.0.0.1:{resp}", "--admin", "off"]
        most = str(2 * clients + 100)
        command += ["--max-connections", most, "--max-waiting", most, "--max-waiting-per-key", most]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for port in (http, resp):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if self.process.poll() is not None:
                        sys.exit(self.process.stderr.read().decode())
                    time.sleep(0.01)

    def cpu(self):
        """Nanoseconds on a processor."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    def memory(self):
        """Bytes that are resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()
        self.folder.cleanup()


def question(protocol, limit, wait):
    if protocol == "resp":
        words = ["ACQUIRE", limit, "k", "1"] + (["WAIT", "3600000"] if wait else [])
        return (f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)).encode()
    body = json.dumps({"limit": limit, "key": "k", **({"wait": "1h"} if wait else {})})
    return f"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def admitted(protocol, reply):
    """Whether a reply admits; None if it is not whole."""
    if protocol == "resp":
        if reply.startswith(b"-"):
            sys.exit(f"the server refuses: {reply.decode()}")
        return None if reply.count(b"\r\n") < 6 else reply.startswith(b"*5\r\n:0\r\n")
    head, end, body = reply.partition(b"\r\n\r\n")
    if not end:
        return None
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    if len(body) < length:
        return None
    status = head.split(b" ")[1]
    if status not in (b"200", b"429"):
        sys.exit(f"the server refuses: {reply.decode()}")
    return status == b"200"


def run(program, protocol, how, clients, rate):
    server = Server(program, rate, clients)
    port, ask = server.ports[protocol], question(protocol, "plenty" if how == "plain" else "line", how == "wait")
    streams = []
    for _ in range(clients):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setblocking(False)
        streams.append(stream)
    select, replies = selectors.DefaultSelector(), [b""] * clients
    for number, stream in enumerate(streams):
        select.register(stream, selectors.EVENT_READ, number)
    before, began, requests, late = server.cpu(), time.monotonic(), 0, {}
    # Those that wait arrive in a tenth of the time that the limit needs for them.
    times = 1 if how == "plain" else 10
    due = [(began + number / rate / times, number) for number in range(clients)]
    while len(late) < clients:
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, number = heapq.heappop(due)
            streams[number].send(ask)
            requests += 1
        timeout = max(0.0, due[0][0] - time.monotonic()) if due else 5
        for key, _ in select.select(timeout):
            number, now = key.data, time.monotonic()
            read = streams[number].recv(4096)
            if not read:
                sys.exit("the server has closed a connection")
            replies[number] += read
            passes = admitted(protocol, replies[number])
            if passes is None:
                continue
            replies[number] = b""
            if passes:
                late[number] = now - began - number / rate
            else:
                heapq.heappush(due, (now + AGAIN, number))
    used = server.cpu() - before
    for stream in streams:
        stream.close()
    server.stop()
    found = {"cpu_us": used / 1_000 / clients, "requests": requests / clients}
    if how != "plain":
        found["spread_ms"] = 1_000 * statistics.pstdev(late.values())
        found["longest_ms"] = 1_000 * max(late.values())
    return found


def answer(protocol, stream):
    reply = b""
    while admitted(protocol, reply) is None:
        reply += stream.recv(4096)


def memory(program, protocol, clients):
    # The first of them is admitted; the line lasts for longer than this takes.
    server = Server(program, 1, clients)
    first = socket.create_connection(("127.0.0.1", server.ports[protocol]))
    for limit in ("plenty", "line"):
        first.sendall(question(protocol, limit, False))
        answer(protocol, first)
    before, streams = server.memory(), []
    for _ in range(clients):
        stream = socket.create_connection(("127.0.0.1", server.ports[protocol]))
        stream.sendall(question(protocol, "plenty", False))
        answer(protocol, stream)
        streams.append(stream)
    idle = server.memory()
    for stream in streams:
        stream.sendall(question(protocol, "line", True))
    # Until it does not change for a second.
    waits, last = server.memory(), None
    while waits != last:
        time.sleep(1)
        waits, last = server.memory(), waits
    for stream in [first, *streams]:
        stream.close()
    server.stop()
    return {"idle": (idle - before) // clients, "waits": (waits - before) // clients}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["http", "resp"])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("program", nargs="?", default="target/dist/tidegate")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = given.clients + 100
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    if given.memory:
        for protocol in [given.only] if given.only else ["http", "resp"]:
            print(json.dumps({"protocol": protocol, **memory(given.program, protocol, given.clients)}))
        return
    rows = [(protocol, how) for protocol in ([given.only] if given.only else ["http", "resp"]) for how in ("plain", "wait", "poll")]
    found = {row: [] for row in rows}
    for _ in range(given.rounds):
        for row in rows:
            found[row].append(run(given.program, *row, given.clients, given.rate))
    medians = {}
    for (protocol, how), rounds in found.items():
        medians[protocol, how] = {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}
        print(json.dumps({"protocol": protocol, "how": how, **medians[protocol, how]}), flush=True)
    for protocol in dict.fromkeys(protocol for protocol, _ in rows):
        plain, wait, poll = (medians[protocol, how] for how in ("plain", "wait", "poll"))
        ratio = lambda more, less, name: round(more[name] / less[name], 2) if less[name] else None
        print(json.dumps({
            "protocol": protocol,
            "poll_cpu_of_wait": ratio(poll, wait, "cpu_us"),
            "poll_spread_of_wait": ratio(poll, wait, "spread_ms"),
            "wait_cpu_of_plain": ratio(wait, plain, "cpu_us"),
        }))


if __name__ == "__main__":
    main()
