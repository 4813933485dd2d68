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

Over gRPC a request is a call of Kuadrant's `Reserve`, on a connection of its own, too.

With `--memory` it shows the server's memory instead (VmRSS), in bytes for each connection: `idle` after a first request, and `waits` in line.

    cargo build --profile dist -p tidegate-cli --features full
    bench/wait.py [--clients 1000] [--rate 200] [--rounds 3] [--only http|resp|grpc] [--memory] [PROGRAM]

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
PROTOCOLS = ["http", "resp", "grpc"]
# A bucket of one unit: each has its own moment.
RULES = """limits:
- {{name: line, limit: {rate}/1s, burst: 1, algorithm: token-bucket}}
- {{name: plenty, limit: 1000000/1s, algorithm: token-bucket}}
"""
# The same limits for calls over gRPC.
DESCRIPTORS = """domain: bench
descriptors:
- {{key: line, rate_limit: {{unit: second, requests_per_unit: {rate}, algorithm: token-bucket}}}}
- {{key: plenty, rate_limit: {{unit: second, requests_per_unit: 1000000, algorithm: token-bucket}}}}
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
        descriptors = Path(self.folder.name) / "descriptors.yaml"
        descriptors.write_text(DESCRIPTORS.format(rate=rate))
        self.ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS))))
        command = [program, "serve", "--rules", rules, "--envoy-config", descriptors, "--admin", "off"]
        for protocol, port in self.ports.items():
            command += [f"--{protocol}", f"127.0.0.1:{port}"]
        most = str(2 * clients + 100)
        command += ["--max-connections", most, "--max-waiting", most, "--max-waiting-per-key", most]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for port in self.ports.values():
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


def frame(kind, flags, stream, payload):
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACKNOWLEDGES = 1, 4, 1
HELLO = {"grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")}


def field(number, value):
    """A field of a Protobuf message, shorter than 128 bytes."""
    if isinstance(value, int):
        low = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
        return bytes([number << 3, *(part | 128 for part in low[:-1]), low[-1]])
    return bytes([number << 3 | 2, len(value)]) + value


def reserve(limit, amount, wait, turn):
    """A call of Kuadrant's Reserve: the `turn`th of its connection, from 0."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
        ":authority": "localhost", "content-type": "application/grpc", "te": "trailers", **({"tidegate-wait": "1h"} if wait else {}),
    }
    block = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in header) for header in headers.items())
    entry = field(1, limit.encode()) + field(2, b"k")
    message = field(1, b"bench") + field(2, field(1, entry)) + field(3, amount)
    stream = 2 * turn + 1
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, b"\0" + len(message).to_bytes(4, "big") + message)


def reserved(reply):
    """Whether the reply to a call admits; None if it is not whole."""
    message = b""
    while len(reply) >= 9:
        length, kind, flags = int.from_bytes(reply[:3], "big"), reply[3], reply[4]
        payload, reply = reply[9:9 + length], reply[9 + length:]
        if len(payload) < length:
            return None
        if kind in (RESET, GO_AWAY, PING):
            sys.exit(f"the server sends a frame that this client does not expect: {kind}")
        if kind == DATA:
            message += payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            if len(message) < 7:
                sys.exit(f"the server refuses: {payload}")
            return message[5:7] == field(1, 1)
    return None


def question(protocol, limit, wait, turn=0):
    if protocol == "grpc":
        return reserve(limit, 1, wait, turn)
    if protocol == "resp":
        words = ["ACQUIRE", limit, "k", "1"] + (["WAIT", "3600000"] if wait else [])
        return (f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)).encode()
    body = json.dumps({"limit": limit, "key": "k", **({"wait": "1h"} if wait else {})})
    return f"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def admitted(protocol, reply):
    """Whether a reply admits; None if it is not whole."""
    if protocol == "grpc":
        return reserved(reply)
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
    port, limit = server.ports[protocol], "plenty" if how == "plain" else "line"
    streams = []
    for _ in range(clients):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.send(HELLO.get(protocol, b""))
        stream.setblocking(False)
        streams.append(stream)
    if protocol == "grpc":
        # The bucket of a limit of Envoy's rules holds the units of a second: all but one are taken.
        first = socket.create_connection(("127.0.0.1", port))
        first.sendall(HELLO[protocol] + reserve("line", rate - 1, False, 0))
        answer(protocol, first)
        first.close()
    select, replies, turns = selectors.DefaultSelector(), [b""] * clients, [0] * clients
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
            streams[number].send(question(protocol, limit, how == "wait", turns[number]))
            turns[number] += 1
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
        read = stream.recv(4096)
        if not read:
            sys.exit("the server has closed a connection")
        reply += read


def memory(program, protocol, clients):
    # The first of them is admitted; the line lasts for longer than this takes.
    server = Server(program, 1, clients)
    first = socket.create_connection(("127.0.0.1", server.ports[protocol]))
    first.sendall(HELLO.get(protocol, b""))
    for turn, limit in enumerate(("plenty", "line")):
        first.sendall(question(protocol, limit, False, turn))
        answer(protocol, first)
    before, streams = server.memory(), []
    for _ in range(clients):
        stream = socket.create_connection(("127.0.0.1", server.ports[protocol]))
        stream.sendall(HELLO.get(protocol, b"") + question(protocol, "plenty", False))
        answer(protocol, stream)
        streams.append(stream)
    idle = server.memory()
    for stream in streams:
        stream.sendall(question(protocol, "line", True, 1))
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
    parser.add_argument("--only", choices=PROTOCOLS)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("program", nargs="?", default="target/dist/tidegate")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = given.clients + 100
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
    if given.memory:
        for protocol in [given.only] if given.only else PROTOCOLS:
            print(json.dumps({"protocol": protocol, **memory(given.program, protocol, given.clients)}))
        return
    rows = [(protocol, how) for protocol in ([given.only] if given.only else PROTOCOLS) for how in ("plain", "wait", "poll")]
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
