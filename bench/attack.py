#!/usr/bin/env python3
"""What clients without manners cost the others.

A server is started, and a client with manners asks it without a pause, over HTTP and over the Redis protocol in turns, first alone and
then beside each attack. Printed are the median, the 99th percentile and the longest of its waits in microseconds, the 99th percentile
as a multiple of the quiet one, and the server's resident memory.

    cargo build --release -p tidegate-cli
    bench/attack.py [--seconds 5] [--connections 10000] [--only NAME ...] [PROGRAM]

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
HTTP, RESP, ADMIN = 18180, 18181, 18182
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


HEAD = b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\nx: "
# A frame of HEADERS that never ends.
HEAD_2 = PREFACE + b"\0\x40\0\1\4\0\0\0\1\x82"
# name: over TLS, attack(ready, ...), how many processes, and its arguments (of `count` connections in all)
ATTACKS = {
    "idle connections": (False, hold, 1, lambda count: (count, (HTTP, RESP), b"", False)),
    "slow heads, HTTP/1.1": (False, hold, 1, lambda count: (min(count, 5_000), (HTTP,), HEAD, True)),
    "slow heads, HTTP/2": (False, hold, 1, lambda count: (min(count, 5_000), (HTTP,), HEAD_2, True)),
    "slow commands, RESP": (False, hold, 1, lambda count: (min(count, 5_000), (RESP,), b"*2\r\n$9000\r\n", True)),
    "rapid reset, HTTP/2": (False, resets, 4, lambda count: (HTTP,)),
    "connections, opened and closed": (False, again, 4, lambda count: (RESP, b"")),
    "pipelines without end, RESP": (False, pipelines, 8, lambda count: (RESP,)),
    "half-open TLS": (True, hold, 1, lambda count: (min(count, 5_000), (HTTP, RESP), b"\x16\3\1\2\0\1", False)),
    "TLS handshakes, HTTP": (True, handshakes, 8, lambda count: (HTTP,)),
    "TLS handshakes, RESP": (True, handshakes, 8, lambda count: (RESP,)),
}


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def percentile(waits, share):
    return waits[min(len(waits) - 1, int(len(waits) * share))]


def row(name, waits, quiet, memory):
    p99 = percentile(waits, 0.99)
    times = f"{p99 / quiet:6.1f} ×" if quiet else "        "
    print(f"{name:34} {percentile(waits, 0.5):8.0f} {p99:8.0f} {times} {waits[-1]:9.0f} {len(waits):8} {memory:7.1f} MiB", flush=True)
    return p99


def serve(program, directory, tls, connections):
    rules = os.path.join(directory, "rules.yaml")
    with open(rules, "w") as file:
        file.write(RULES)
    options = ["--rules", rules, "--max-connections", str(connections + 1_000), "--log-level", "error"]
    for name, port in (("http", HTTP), ("resp", RESP), ("admin", ADMIN)):
        options += [f"--{name}", f"127.0.0.1:{port}"]
    if tls:
        cert, key = (os.path.join(directory, name) for name in ("cert.pem", "key.pem"))
        make = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}"
        subprocess.run(make.split(), check=True, stderr=subprocess.DEVNULL)
        options += ["--tls-cert", cert, "--tls-key", key]
    server = subprocess.Popen([program, "serve", *options], stdout=subprocess.DEVNULL)
    for _ in range(500):
        try:
            connect(RESP).close()
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
    print(f"{'':34} {'median':>8} {'p99':>8} {'':>8} {'longest':>9} {'asked':>8}      memory")
    for tls in (False, True):
        attacks = [(name, attack) for name, attack in ATTACKS.items() if attack[0] == tls]
        attacks = [attack for attack in attacks if not given.only or any(part in attack[0] for part in given.only)]
        if not attacks:
            continue
        with tempfile.TemporaryDirectory() as directory:
            server = serve(given.program, directory, tls, given.connections)
            try:
                probe(1, tls)
                waits = probe(given.seconds, tls)
                quiet = row("quiet, over TLS" if tls else "quiet", waits, None, resident(server.pid))
                for name, (_, attack, processes, arguments) in attacks:
                    ready = [multiprocessing.Event() for _ in range(processes)]
                    attackers = [
                        multiprocessing.Process(
                            target=nicely, args=(attack, at, *arguments(given.connections)), daemon=True
                        )
                        for at in ready
                    ]
                    for attacker in attackers:
                        attacker.start()
                    for at in ready:
                        at.wait()
                    row(name, probe(given.seconds, tls), quiet, resident(server.pid))
                    for attacker in attackers:
                        attacker.kill()
                        attacker.join()
                    # What they held is closed.
                    time.sleep(1)
                waits = probe(given.seconds, tls)
                row("quiet again", waits, quiet, resident(server.pid))
            finally:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()
