#!/usr/bin/env python3
"""Hours of mixed traffic: does anything grow?

One server on a store, and clients on all its listeners: HTTP, the Redis protocol, gRPC, HAProxy's SPOE, Sentinel's token protocol, and the
control plane. Each counts its answers and their latency. Beside them, connections are opened and reset midway, HTTP/2 floods are sent, keys
are made up, the rules change (and are sometimes wrong), and the store is killed and started again.

Each second a line of CSV is written: the time, the server's resident memory, descriptors and threads, and for each listener the answers,
the errors, and the median and the longest latency in microseconds. At the end, a drawing of them is written next to the CSV as SVG, and
the first and the last third are compared. The exit code is 1 if the server died, or if memory or descriptors grew.

    cargo build --profile dist -p tidegate-cli --features full
    bench/soak.py [--minutes 120] [--csv soak.csv] [--pace 100] [PROGRAM]

`--pace` is how many questions each of the twelve clients asks in a second.

Linux, Python 3.9, `redis-server`. Errors while the store is down are expected: its limits follow `on_error`.
"""

import argparse
import collections
import csv
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

RULES = """limits:
  - {{name: shared, limit: {limit}/1s, algorithm: token-bucket, on_error: open}}
  - {{name: leased, limit: {limit}/1s, algorithm: token-bucket, sharing: leased}}
  - {{name: window, limit: {limit}/10s, algorithm: sliding-counter}}
"""
WRONG_RULES = "limits:\n  - {name: shared, limit: many}\n"
ENVOY = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 100000}}]\n"
SENTINEL = """[{"resource":"r","grade":1,"count":100000,"clusterMode":true,
  "clusterConfig":{"flowId":1,"thresholdType":1}}]"""
LISTENERS = ["http", "resp", "grpc", "spoe", "sentinel-token", "admin"]
STORE_UP, STORE_DOWN, RELOAD, FLOOD = 45, 5, 7, 30

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def connect(port):
    stream = socket.create_connection(("127.0.0.1", port), timeout=10)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def exactly(stream, length):
    data = b""
    while len(data) < length:
        piece = stream.recv(length - len(data))
        if not piece:
            raise ConnectionError("the server ended the connection")
        data += piece
    return data


def key():
    # Some keys return, and most are made up.
    return b"user-%d" % random.randrange(100 if random.random() < 0.5 else 10**9)


def read_http(stream):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = stream.recv(65536)
        if not piece:
            raise ConnectionError("the server ended the connection")
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    exactly(stream, length - len(body))
    status = int(head[9:12])
    if status >= 500:
        raise ValueError(f"HTTP status {status}")


def http_request(method, path, body=b""):
    head = b"%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (method, path, len(body))
    return head + body


def http(stream):
    while True:
        limit = random.choice([b"shared", b"leased", b"window"])
        stream.sendall(http_request(b"POST", b"/v1/acquire", b'{"limit":"%s","key":"%s"}' % (limit, key())))
        read_http(stream)
        yield


def admin(stream):
    while True:
        body = b'{"limit":"shared","key":"%s","for":"1s"}' % key()
        ask = random.choice([
            (b"GET", b"/metrics"), (b"GET", b"/v1/limits"), (b"GET", b"/v1/top?limit=shared"), (b"GET", b"/v1/servers"),
            (b"POST", b"/v1/block", body), (b"GET", b"/v1/history?limit=window"), (b"POST", b"/v1/rules/check", RULES.format(limit=9).encode()),
        ])
        stream.sendall(http_request(*ask))
        read_http(stream)
        yield


def read_resp(stream, data=b""):
    while b"\r\n" not in data:
        data += exactly(stream, 1)
    line = data[:-2]
    if line[:1] == b"-":
        raise ValueError(line.decode())
    if line[:1] in b"*%":
        for _ in range(int(line[1:])):
            read_resp(stream)


def resp(stream):
    while True:
        name = key()
        stream.sendall(random.choice([
            b"ACQUIRE shared %s\r\n", b"ACQUIRE leased %s\r\n", b"PEEK window %s\r\n", b"CHARGE window %s 2\r\n", b"CL.THROTTLE %s 15 30 60\r\n",
        ]) % name)
        read_resp(stream)
        yield


def h2_frame(kind, flags, stream, content):
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def grpc(stream):
    def text(value):
        return bytes([len(value)]) + value

    # Literals without indexing: no table of the server's grows.
    fields = {b":method": b"POST", b":scheme": b"http", b":authority": b"localhost", b"te": b"trailers",
              b":path": b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", b"content-type": b"application/grpc"}
    order = [b":method", b":scheme", b":authority", b":path", b"content-type", b"te"]
    head = b"".join(b"\0" + text(name) + text(fields[name]) for name in order)
    stream.sendall(PREFACE + h2_frame(4, 0, 0, b""))
    number = 1
    while True:
        entry = b"\x0a\x01k\x12" + text(key())
        descriptor = b"\x0a" + text(entry)
        message = b"\x0a\x01d\x12" + text(descriptor)
        body = b"\0" + struct.pack(">I", len(message)) + message
        stream.sendall(h2_frame(1, 4, number, head) + h2_frame(0, 1, number, body))
        while True:
            length, kind, flags, of = struct.unpack(">I", b"\0" + exactly(stream, 3))[0], *exactly(stream, 2), exactly(stream, 4)
            content = exactly(stream, length)
            if kind == 7 or kind == 3:
                raise ConnectionError("GOAWAY or RST_STREAM")
            if kind in (4, 6) and not flags & 1:
                stream.sendall(h2_frame(kind, 1, 0, content if kind == 6 else b""))
            if kind == 0 and length:
                stream.sendall(h2_frame(8, 0, 0, struct.pack(">I", length)))
            if struct.unpack(">I", of)[0] == number and flags & 1 and kind in (0, 1):
                break
        number += 2
        yield


def spoe(stream):
    def frame(content):
        return struct.pack(">I", len(content)) + content

    def answer():
        return exactly(stream, struct.unpack(">I", exactly(stream, 4))[0])

    hello = (b"\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities"
             b"\x08\x0apipelining")
    stream.sendall(frame(hello))
    answer()
    while True:
        name = key()
        arguments = b"\x05limit\x08\x06shared\x03key\x08" + bytes([len(name)]) + name
        stream.sendall(frame(b"\x03\0\0\0\x01\x01\x01\x01m\x02" + arguments))
        if answer()[0] != 103:
            raise ValueError("no ACK")
        yield


def sentinel(stream):
    def ask(content):
        stream.sendall(struct.pack(">H", len(content)) + content)
        return exactly(stream, struct.unpack(">H", exactly(stream, 2))[0])

    ask(struct.pack(">ibi", 1, 0, 1) + b"n")
    while True:
        if ask(struct.pack(">ibqib", 2, 1, 1, 1, 0))[5] > 127:
            raise ValueError("an error status")
        yield


CLIENTS = {"http": http, "resp": resp, "grpc": grpc, "spoe": spoe, "sentinel-token": sentinel, "admin": admin}


def draw(rows, path):
    """Memory, descriptors and latency over time, as SVG. A point is the mean of as many seconds as a pixel has, the longest one the longest."""
    width, height, left = 720, 130, 60
    colors = ["#4a90bd", "#d1603d", "#5a9a5a", "#8a63b0", "#b08b2e", "#555555"]
    medians = [(name, [row[6 + 4 * at] for row in rows], statistics.mean) for at, name in enumerate(LISTENERS)]
    longest = [max(row[7 + 4 * at] for at in range(len(LISTENERS))) / 1000 for row in rows]
    panels = [
        ("resident memory, MiB", [("", [row[1] / 1024 for row in rows], statistics.mean)]),
        ("descriptors", [("", [row[2] for row in rows], statistics.mean)]),
        ("median latency in each second, µs", medians),
        ("longest latency in each second on any listener, ms", [("", longest, max)]),
    ]
    step = max(1, len(rows) // (width - left))
    parts, top = [], 0
    for title, lines in panels:
        points = [[merge(values[at : at + step]) for at in range(0, len(values), step)] for _, values, merge in lines]
        most = max(max(line) for line in points) or 1
        parts.append(f'<text x="{left}" y="{top + 20}">{title}</text>')
        for value, y in ((most, top + 40), (0, top + height)):
            parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:.0f}</text>')
            parts.append(f'<path stroke="#cccccc" d="M{left} {y}H{width}"/>')
        for at, ((name, *_), line) in enumerate(zip(lines, points)):
            x = lambda at: left + at * (width - left) / max(1, len(line) - 1)
            line = " ".join(f"{x(at):.1f},{top + height - value / most * (height - 40):.1f}" for at, value in enumerate(line))
            parts.append(f'<polyline stroke="{colors[at]}" points="{line}"/>')
            parts.append(f'<text x="{left + 240 + 80 * at}" y="{top + 20}" fill="{colors[at]}">{name}</text>')
        top += height + 15
    parts.append(f'<text x="{width}" y="{top + 12}" text-anchor="end">{rows[-1][0] / 60:.0f} minutes</text>')
    with open(path, "w") as file:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 20} {top + 20}" font-family="sans-serif" font-size="11">'
        style = "<style>polyline, path { fill: none; }</style>"
        file.write("\n".join([head, style, '<rect width="100%" height="100%" fill="#fbfcfd"/>', *parts, "</svg>\n"]))


class Soak:
    def __init__(self, program, directory, pace):
        self.directory, self.pace = directory, pace
        self.ports = {name: free_port() for name in LISTENERS}
        self.store_port = free_port()
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.waits = collections.defaultdict(list)
        self.errors = collections.Counter()
        self.messages = collections.Counter()
        self.events = collections.Counter()
        self.store = None
        self.start_store()
        for name, text in [("rules.yaml", RULES.format(limit=1000)), ("envoy.yaml", ENVOY), ("sentinel.json", SENTINEL)]:
            self.write(name, text)
        options = [f"--{name}=127.0.0.1:{port}" for name, port in self.ports.items()]
        options += [f"--rules={directory}/rules.yaml", f"--envoy-config={directory}/envoy.yaml",
                    f"--sentinel-rules={directory}/sentinel.json", f"--state={directory}/state", "--state-interval=5s",
                    f"--store=redis://127.0.0.1:{self.store_port}", "--max-keys=20000", "--trace-keys=10%", "--trace-memory=8MiB",
                    "--history-memory=8MiB"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.log = open(f"{directory}/log", "wb")
        self.server = subprocess.Popen([program, "serve", *options], stdout=self.log, stderr=self.log, env=environment)
        for port in self.ports.values():
            for _ in range(200):
                try:
                    connect(port).close()
                    break
                except OSError:
                    time.sleep(0.05)
            else:
                sys.exit("the server does not listen:\n" + open(f"{directory}/log").read())

    def write(self, name, text):
        with open(f"{self.directory}/{name}.next", "w") as file:
            file.write(text)
        os.rename(f"{self.directory}/{name}.next", f"{self.directory}/{name}")

    def start_store(self):
        arguments = ["--port", str(self.store_port), "--save", "", "--appendonly", "no", "--maxmemory", "256mb"]
        self.store = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def every(self, seconds, act):
        while not self.over.wait(seconds):
            act()

    def ask(self, name):
        """One client with manners. It connects again after an error, and now and then without one."""
        while not self.over.is_set():
            try:
                stream = connect(self.ports[name])
                questions = CLIENTS[name](stream)
                for _ in range(random.randrange(100, 3000)):
                    if self.over.is_set():
                        break
                    began = time.perf_counter_ns()
                    next(questions)
                    with self.lock:
                        self.waits[name].append((time.perf_counter_ns() - began) / 1000)
                    time.sleep(1 / self.pace)
                stream.close()
            except (OSError, ValueError) as error:
                with self.lock:
                    self.errors[name] += 1
                    self.messages[f"{name}: {error}"[:100]] += 1
                time.sleep(0.1)

    def abandon(self):
        """Connections that are reset in the middle of something, or closed."""
        try:
            name = random.choice(LISTENERS)
            stream = connect(self.ports[name])
            stream.sendall(random.choice([
                b"", PREFACE[:10], PREFACE, b"POST /v1/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n{", b"*3\r\n$7\r\nACQUIRE\r\n$6\r\nsh",
                os.urandom(40),
            ]))
            if random.random() < 0.7:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
            self.events["abandoned"] += 1
        except OSError:
            pass

    def flood(self):
        """HTTP/2 pings until the server ends the connection."""
        try:
            stream = connect(self.ports[random.choice(["http", "grpc"])])
            stream.sendall(PREFACE + h2_frame(4, 0, 0, b""))
            for _ in range(2000):
                stream.sendall(h2_frame(6, 0, 0, b"12345678") * 100)
        except OSError:
            self.events["floods ended"] += 1

    def reload(self):
        self.write("rules.yaml", random.choice([RULES.format(limit=1000), RULES.format(limit=500), RULES.format(limit=2000), WRONG_RULES]))
        self.events["rules written"] += 1

    def kill_store(self):
        self.store.send_signal(signal.SIGKILL)
        self.store.wait()
        self.events["stores killed"] += 1
        self.over.wait(STORE_DOWN)
        self.start_store()

    def sample(self):
        status = open(f"/proc/{self.server.pid}/status").read()
        of = lambda name: int(next(line for line in status.split("\n") if line.startswith(name)).split()[1])
        descriptors = len(os.listdir(f"/proc/{self.server.pid}/fd"))
        with self.lock:
            waits, self.waits = self.waits, collections.defaultdict(list)
            errors, self.errors = self.errors, collections.Counter()
        row = [of("VmRSS"), descriptors, of("Threads")]
        for name in LISTENERS:
            own = waits[name] or [0]
            row += [len(waits[name]), errors[name], round(statistics.median(own)), round(max(own))]
        return row

    def run(self, seconds, path):
        threads = [threading.Thread(target=self.ask, args=(name,), daemon=True) for name in LISTENERS for _ in range(2)]
        acts = [(0.05, self.abandon), (FLOOD, self.flood), (RELOAD, self.reload), (STORE_UP, self.kill_store)]
        threads += [threading.Thread(target=self.every, args=act, daemon=True) for act in acts]
        for thread in threads:
            thread.start()
        rows, began = [], time.monotonic()
        with open(path, "w", newline="") as file:
            table = csv.writer(file)
            columns = [f"{name} {what}" for name in LISTENERS for what in ["answers", "errors", "p50 us", "max us"]]
            table.writerow(["seconds", "rss KiB", "descriptors", "threads", *columns])
            while time.monotonic() - began < seconds and self.server.poll() is None:
                time.sleep(1)
                try:
                    rows.append([round(time.monotonic() - began), *self.sample()])
                except (OSError, StopIteration):
                    break
                table.writerow(rows[-1])
                file.flush()
        died = self.server.poll() is not None
        self.over.set()
        for thread in threads:
            thread.join(15)
        stopped = None
        if not died:
            asked = time.monotonic()
            self.server.send_signal(signal.SIGTERM)
            try:
                self.server.wait(60)
                stopped = time.monotonic() - asked
            except subprocess.TimeoutExpired:
                self.server.kill()
        self.store.kill()
        if rows:
            draw(rows, os.path.splitext(path)[0] + ".svg")
        return self.summary(rows, died, stopped)

    def summary(self, rows, died, stopped):
        # The first minute, or sixth, fills tables.
        rows = rows[min(60, len(rows) // 6):]
        third = max(1, len(rows) // 3)
        first, last = rows[:third], rows[-third:]
        mean = lambda part, column: statistics.mean(row[column] for row in part)
        print(f"{len(rows)} seconds after the start; the first and the last third:")
        for column, name in [(1, "rss KiB"), (2, "descriptors"), (3, "threads")]:
            worst = max(row[column] for row in rows)
            print(f"  {name:<24} {mean(first, column):>12.0f} {mean(last, column):>12.0f}   at most {worst}")
        for at, name in enumerate(LISTENERS):
            column = 4 + 4 * at
            answers, errors = (sum(row[column + more] for row in rows) for more in (0, 1))
            p50 = [statistics.median(row[column + 2] for row in part) for part in (first, last)]
            worst = max(row[column + 3] for row in rows)
            print(f"  {name + ' p50 us':<24} {p50[0]:>12.0f} {p50[1]:>12.0f}   at most {worst}, {answers} answers, {errors} errors")
        print("  " + ", ".join(f"{what}: {count}" for what, count in sorted(self.events.items())))
        for message, count in self.messages.most_common(8):
            print(f"  {count} x {message}")
        print("  the server died" if died else f"  stopped in {stopped:.1f} s" if stopped is not None else "  did not stop in 60 s")
        grown = mean(last, 1) > 1.1 * mean(first, 1) + 8 * 1024 or mean(last, 2) > mean(first, 2) + 20
        print("  memory or descriptors grew" if grown else "  neither memory nor descriptors grew")
        return died or grown or stopped is None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--csv", default="soak.csv")
    parser.add_argument("--pace", type=float, default=100)
    parser.add_argument("program", nargs="?", default="target/dist/tidegate")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-soak-") as directory:
        soak = Soak(arguments.program, directory, arguments.pace)
        failed = soak.run(60 * arguments.minutes, arguments.csv)
        with open(f"{directory}/log", "rb") as log:
            lines = log.read().split(b"\n")
        if failed:
            print(b"\n".join(lines[-20:]).decode(errors="replace"))
        print(f"  {len(lines)} lines of log")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
