#!/usr/bin/env python3
"""What clients without manners cost the others.

A server is started, and a client with manners asks it without a pause, over HTTP and over the Redis protocol in turns, first alone and
then beside each attack. Printed are the median, the 99th percentile and the longest of its waits in microseconds, the 99th percentile
as a multiple of the quiet one, and the server's resident memory after the first half of the attack and at its end.

Attackers that compute take processors from the client, too. So they first attack another server on the same machine, in a row of its own
("elsewhere"): that is what they cost without a word to the server that the client asks. `of that` compares with it.

    cargo build --release -p tidegate-cli
    bench/attack.py [--seconds 5] [--connections 10000] [--only NAME ...] [PROGRAM]

`--seconds` is for each half.
The attackers run on the same machine with the lowest priority, so that they take from the server what they make it do, and not the
processors that they would have elsewhere. Linux, Python 3.9; `openssl` for a certificate.
"""

import argparse
import multiprocessing
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

RULES = "limits: [{name: work, limit: 1000000000/1s, algorithm: token-bucket}]\n"
PORTS = HTTP, RESP, ADMIN = 18180, 18181, 18182
ELSEWHERE = tuple(port + 10 for port in PORTS)
BODY = b'{"limit":"work","key":"alice"}'
ASK = (b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY)) + BODY
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def client(port, tls):
    stream = connect(port)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        stream = context.wrap_socket(stream)
    return stream


def probe(seconds, tls):
    """The waits of the client with manners, in microseconds, sorted."""
    http, resp = client(HTTP, tls), client(RESP, tls)
    waits = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for stream, ask, whole in ((http, ASK, b"\r\n\r\n"), (resp, b"ACQUIRE work alice\r\n", b"*5\r\n")):
            began = time.perf_counter_ns()
            stream.sendall(ask)
            answer = stream.recv(65536)
            waits.append((time.perf_counter_ns() - began) / 1000)
            if whole not in answer or (stream is http and not answer.startswith(b"HTTP/1.1 200")):
                sys.exit(f"an answer that is none: {answer!r}")
    return sorted(waits)


def nicely(attack, *arguments):
    os.nice(19)
    try:
        attack(*arguments)
    except KeyboardInterrupt:
        pass


def hold(ready, count, ports, first, drip):
    """Connections that send `first`, and then a byte a second each (or nothing)."""
    streams = []
    for at in range(count):
        try:
            stream = connect(ports[at % len(ports)])
            stream.sendall(first)
            stream.setblocking(False)
            streams.append(stream)
        except OSError:
            pass
    ready.set()
    while True:
        time.sleep(1)
        for stream in streams if drip else ():
            try:
                stream.send(b"x")
            except OSError:
                pass


def again(ready, port, what):
    """As many connections as possible, one after the other: each sends `what`, and is closed without a look at the answer."""
    ready.set()
    while True:
        try:
            stream = connect(port)
            stream.sendall(what)
            if what:
                stream.recv(1)
            stream.close()
        except OSError:
            pass


def handshakes(ready, port):
    ready.set()
    while True:
        try:
            client(port, True).close()
        except OSError:
            pass


def pipelines(ready, port):
    """A client that sends batches of commands without end and reads the answers."""
    stream = connect(port)
    batch = b"ACQUIRE work bob\r\n" * 20_000
    ready.set()
    stream.setblocking(False)
    at = 0
    while True:
        try:
            at = (at + stream.send(batch[at : at + 262_144])) % len(batch)
        except BlockingIOError:
            pass
        try:
            while stream.recv(1 << 20):
                pass
        except BlockingIOError:
            pass


def resets(ready, port):
    """Streams of HTTP/2 that are opened and reset at once; a new connection where the server ends one."""
    headers = bytes([0x82, 0x86, 0x84, 0x41, 9]) + b"localhost"
    ready.set()
    while True:
        try:
            stream = connect(port)
            frames = PREFACE
            for at in range(1, 2_000, 2):
                name = struct.pack(">I", at)
                frames += struct.pack(">I", len(headers))[1:] + b"\1\5" + name + headers
                frames += b"\0\0\4\3\0" + name + b"\0\0\0\10"
            stream.sendall(frames)
            while stream.recv(65536):
                pass
        except OSError:
            pass


def bodies(ready, port, path, body):
    """The largest body that a path takes, again and again."""
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (path, len(body))
    ready.set()
    while True:
        try:
            stream = connect(port)
            stream.sendall(head + body)
            while stream.recv(65536):
                pass
        except OSError:
            pass


# Four MiB of rules that are all wrong, and as many limits as one decision takes.
LIMITS = b"limits:\n" + b"- {name: a, limit: 1/1s}\n" * (((4 << 20) - 8) // 25)
ALL = b'{"all":[' + b",".join([BODY] * 32) + b"]}"
HEAD = b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\nx: "
# A frame of HEADERS that never ends.
HEAD_2 = PREFACE + b"\0\x40\0\1\4\0\0\0\1\x82"
COMMAND = b"*2\r\n$9000\r\n"
HELLO = b"\x16\3\1\2\0\1"
# name: over TLS, whether it computes, attack(ready, ...), how many processes, and its arguments (`count` connections in all)
ATTACKS = {
    "idle connections": (False, False, hold, 1, lambda count, http, resp: (count, (http, resp), b"", False)),
    "slow heads, HTTP/1.1": (False, False, hold, 1, lambda count, http, resp: (min(count, 5_000), (http,), HEAD, True)),
    "slow heads, HTTP/2": (False, False, hold, 1, lambda count, http, resp: (min(count, 5_000), (http,), HEAD_2, True)),
    "slow commands, RESP": (False, False, hold, 1, lambda count, http, resp: (min(count, 5_000), (resp,), COMMAND, True)),
    "rapid reset, HTTP/2": (False, True, resets, 4, lambda count, http, resp: (http,)),
    "connections opened and closed, HTTP": (False, True, again, 4, lambda count, http, resp: (http, b"")),
    "connections opened and closed, RESP": (False, True, again, 4, lambda count, http, resp: (resp, b"")),
    "pipelines without end, RESP": (False, True, pipelines, 8, lambda count, http, resp: (resp,)),
    "largest rules to check, 100 at a time": (False, True, bodies, 100, lambda count, http, resp: (http + 2, b"/v1/rules/check", LIMITS)),
    "largest joint decisions, 100 at a time": (False, True, bodies, 100, lambda count, http, resp: (http, b"/v1/acquire", ALL)),
    "half-open TLS": (True, False, hold, 1, lambda count, http, resp: (min(count, 5_000), (http, resp), HELLO, False)),
    "TLS handshakes, HTTP": (True, True, handshakes, 8, lambda count, http, resp: (http,)),
    "TLS handshakes, RESP": (True, True, handshakes, 8, lambda count, http, resp: (resp,)),
}


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def percentile(waits, share):
    return waits[min(len(waits) - 1, int(len(waits) * share))]


def row(name, waits, quiet, memory, elsewhere=None):
    p99 = percentile(waits, 0.99)
    times = f"{p99 / quiet:6.1f} ×" if quiet else " " * 8
    that = f"{p99 / elsewhere:6.1f} ×" if elsewhere else " " * 8
    memory = " → ".join(f"{at:.1f}" for at in memory)
    print(f"{name:38} {percentile(waits, 0.5):8.0f} {p99:8.0f} {times} {that} {waits[-1]:9.0f} {len(waits):8}  {memory} MiB", flush=True)
    return p99


class Attack:
    """Attackers that run until the block ends."""

    def __init__(self, attack, processes, arguments):
        ready = [multiprocessing.Event() for _ in range(processes)]
        start = lambda at: multiprocessing.Process(target=nicely, args=(attack, at, *arguments), daemon=True)
        self.attackers, self.ready = [start(at) for at in ready], ready

    def __enter__(self):
        for attacker in self.attackers:
            attacker.start()
        for at in self.ready:
            at.wait()

    def __exit__(self, *_):
        for attacker in self.attackers:
            attacker.kill()
            attacker.join()
        # What they held is closed.
        time.sleep(1)


def serve(program, directory, tls, connections, ports):
    rules = os.path.join(directory, "rules.yaml")
    with open(rules, "w") as file:
        file.write(RULES)
    options = ["--rules", rules, "--max-connections", str(connections + 1_000), "--log-level", "error"]
    for name, port in zip(("http", "resp", "admin"), ports):
        options += [f"--{name}", f"127.0.0.1:{port}"]
    if tls:
        cert, key = (os.path.join(directory, name) for name in ("cert.pem", "key.pem"))
        make = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}"
        subprocess.run(make.split(), check=True, stderr=subprocess.DEVNULL)
        options += ["--tls-cert", cert, "--tls-key", key]
    server = subprocess.Popen([program, "serve", *options], stdout=subprocess.DEVNULL)
    for _ in range(500):
        try:
            connect(ports[1]).close()
            return server
        except OSError:
            time.sleep(0.02)
    sys.exit("the server does not start")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="target/release/tidegate", metavar="PROGRAM")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (given.connections + 1_000,) * 2)
    print(f"{'':38} {'median':>8} {'p99':>8} {'of quiet':>8} {'of that':>8} {'longest':>9} {'asked':>8}  memory")
    for tls in (False, True):
        attacks = [(name, attack) for name, attack in ATTACKS.items() if attack[0] == tls]
        attacks = [attack for attack in attacks if not given.only or any(part in attack[0] for part in given.only)]
        if not attacks:
            continue
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other_directory:
            server = serve(given.program, directory, tls, given.connections, PORTS)
            other = serve(given.program, other_directory, tls, given.connections, ELSEWHERE)
            try:
                probe(1, tls)
                waits = probe(given.seconds, tls)
                quiet = row("quiet, over TLS" if tls else "quiet", waits, None, [resident(server.pid)])
                for name, (_, computes, attack, processes, arguments) in attacks:
                    elsewhere = None
                    if computes:
                        with Attack(attack, processes, arguments(given.connections, *ELSEWHERE[:2])):
                            waits = probe(given.seconds, tls)
                        elsewhere = row(f"{name}, elsewhere", waits, quiet, [resident(server.pid)])
                    with Attack(attack, processes, arguments(given.connections, *PORTS[:2])):
                        waits, memory = [], []
                        for _ in range(2):
                            waits += probe(given.seconds, tls)
                            memory.append(resident(server.pid))
                    row(name, sorted(waits), quiet, memory, elsewhere)
                row("quiet again", probe(given.seconds, tls), quiet, [resident(server.pid)])
            finally:
                for process in (server, other):
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main()
