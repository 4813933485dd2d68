#!/usr/bin/env python3
"""What clients without manners cost the others.

A server is started, and a client with manners asks it without a pause, over HTTP and over the Redis protocol in turns, first alone and
then beside each attack. Printed are the median, the 99th percentile and the longest of its waits in microseconds, the 99th percentile
as a multiple of the quiet one, and the server's resident memory after the first half of the attack and at its end. Refused answers are
counted, and the last lines name the attacks with a refusal or with a 99th percentile above 10 ms.

Attackers that compute take processors from the client, too. So they first attack another server on the same machine, in a row of its own
("elsewhere"): that is what they cost without a word to the server that the client asks. `of that` compares with it.

    cargo build --profile dist -p tidegate-cli --features full
    bench/attack.py [--seconds 5] [--connections 10000] [--only NAME ...] [PROGRAM]

`--seconds` is for each half.
The attackers run on the same machine with the lowest priority, so that they take from the server what they make it do, and not the
processors that they would have elsewhere. Linux, Python 3.9; `openssl` for a certificate.
"""

import argparse
import hashlib
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

RULES = """limits:
- {name: work, limit: 1000000000/1s, algorithm: token-bucket}
- {name: watched, limit: 2/1h, algorithm: token-bucket, thresholds: [50%, 100%]}
"""
ENVOY = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 100000}}]\n"
PORTS = HTTP, RESP, ADMIN, GRPC = 18180, 18181, 18182, 18183
# The most that the client with manners may wait, in microseconds, in 99 of 100 cases.
BOUND = 10_000
ELSEWHERE = tuple(port + 10 for port in PORTS)
TOKEN = "the-token-of-the-client-with-manners"
BODY = b'{"limit":"work","key":"alice"}'
BEARER = b"authorization: Bearer %s\r\n"
HEAD_OF_ALL = b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\n%scontent-length: %d\r\n\r\n"
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


def probe(seconds, kind):
    """The waits of the client with manners, in microseconds, sorted, and how many of its questions were refused."""
    http, resp = client(HTTP, kind == TLS), client(RESP, kind == TLS)
    credentials = b""
    if kind == GUARDED:
        credentials = BEARER % TOKEN.encode()
        resp.sendall(b"AUTH manners %s\r\n" % TOKEN.encode())
        resp.recv(65536)
    ask_http = HEAD_OF_ALL % (credentials, len(BODY)) + BODY
    waits, refused = [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for stream, ask, whole in ((http, ask_http, b"\r\n\r\n"), (resp, b"ACQUIRE work alice\r\n", b"*5\r\n")):
            began = time.perf_counter_ns()
            stream.sendall(ask)
            answer = stream.recv(65536)
            waits.append((time.perf_counter_ns() - began) / 1000)
            if whole not in answer or (stream is http and not answer.startswith(b"HTTP/1.1 200")):
                refused += 1
                if not answer:
                    sys.exit("the server ended the connection of the client with manners")
    return sorted(waits), refused


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


def frames(ready, port, frame):
    """Frames of HTTP/2 that ask for nothing; a new connection where the server ends one."""
    many = frame * (262_144 // len(frame))
    ready.set()
    while True:
        try:
            stream = connect(port)
            stream.sendall(PREFACE)
            stream.setblocking(False)
            at = 0
            while True:
                try:
                    at = (at + stream.send(many[at:])) % len(many)
                except BlockingIOError:
                    pass
                try:
                    if not stream.recv(65536):
                        break
                except BlockingIOError:
                    pass
        except OSError:
            pass


def reports(ready, port):
    """Reports of two million empty buckets to the quota service."""
    def text(value):
        return bytes([len(value)]) + value

    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", QUOTAS),
              (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    head = b"".join(b"\0" + text(name) + text(value) for name, value in fields)
    message = b"\x0a\x01d" + b"\x12\0" * 2_000_000
    body = b"\0" + struct.pack(">I", len(message)) + message
    ready.set()
    while True:
        try:
            stream = connect(port)
            # A window as large as the server gives: this client reads how far it may send.
            stream.sendall(PREFACE + h2_frame(1, 4, 1, head))
            windows, sent, window, received = {0: 65_535, 1: 65_535}, 0, 0, b""
            while sent < len(body):
                window = min(windows.values(), default=0)
                piece = body[sent : sent + min(window, 16_384)]
                if piece:
                    stream.sendall(h2_frame(0, 0, 1, piece))
                    sent += len(piece)
                    windows = {name: left - len(piece) for name, left in windows.items()}
                    continue
                data = stream.recv(65536)
                if not data:
                    break
                received += data
                while len(received) >= 9 and len(received) >= 9 + int.from_bytes(received[:3], "big"):
                    length, kind, of = int.from_bytes(received[:3], "big"), received[3], int.from_bytes(received[5:9], "big")
                    content, received = received[9 : 9 + length], received[9 + length :]
                    if kind == 8:
                        windows[of] = windows.get(of, 0) + int.from_bytes(content, "big")
                    elif kind == 4:
                        for at in range(0, length, 6):
                            if content[at : at + 2] == b"\0\4":
                                windows[1] += int.from_bytes(content[at + 2 : at + 6], "big") - 65_535
                    elif kind in (3, 7) or kind == 1 and of == 1:
                        raise OSError("the stream has ended")
            stream.close()
        except OSError:
            pass


def h2_frame(kind, flags, stream, content):
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def guesses(ready, port, is_http):
    """Wrong credentials on new connections."""
    ready.set()
    at = 0
    while True:
        at += 1
        wrong = b"wrong-%d" % at
        try:
            stream = connect(port)
            stream.sendall(HEAD_OF_ALL % (BEARER % wrong, len(BODY)) + BODY if is_http else b"AUTH manners %s\r\n" % wrong)
            stream.recv(65536)
            stream.close()
        except OSError:
            pass


def commands(ready, port, command):
    """A client that sends batches of this command, each with another key, and reads the answers."""
    stream = connect(port)
    ready.set()
    at = 0
    while True:
        try:
            batch = b"".join(command % key for key in range(at, at + 1_000))
            at += 1_000
            stream.sendall(batch)
            answers = 0
            while answers < 1_000:
                data = stream.recv(1 << 20)
                if not data:
                    raise OSError("the server ended the connection")
                answers += data.count(b"+OK\r\n") + data.count(b"-ERR") + data.count(b"*5\r\n")
        except OSError:
            stream = connect(port)


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


def gets(ready, port, path):
    """A client that asks for a page of the control plane again and again, and reads all of it."""
    ask = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path
    ready.set()
    while True:
        try:
            stream = connect(port)
            stream.sendall(ask)
            while stream.recv(1 << 20):
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
QUOTAS = b"/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"
CONTROL = {
    "SETTINGS": b"\0\0\6\4\0\0\0\0\0\0\3\0\0\0\x64",
    "PING": b"\0\0\x08\6\0\0\0\0\0" + b"\7" * 8,
    "PING acknowledgements": b"\0\0\x08\6\1\0\0\0\0" + b"\7" * 8,
    "PRIORITY": b"\0\0\5\2\0\0\0\0\1\0\0\0\0\x10",
    "WINDOW_UPDATE": b"\0\0\4\x08\0\0\0\0\0\0\0\0\1",
}
LIVE = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
# The servers: without protection, with tokens, over TLS, and with a thousand limits more.
OPEN, GUARDED, TLS, MANY = "", ", with tokens", ", over TLS", ", 1,000 limits"
# name: (the server, whether it computes, attack(ready, ...), how many processes, its arguments from `at`: connections in all and ports)
ATTACKS = {
    "idle connections": (OPEN, False, hold, 1, lambda at: (at.count, (at.http, at.resp), b"", False)),
    "slow heads, HTTP/1.1": (OPEN, False, hold, 1, lambda at: (at.slow, (at.http,), HEAD, True)),
    "slow heads, HTTP/2": (OPEN, False, hold, 1, lambda at: (at.slow, (at.http,), HEAD_2, True)),
    "half-open connections, gRPC": (OPEN, False, hold, 1, lambda at: (at.slow, (at.grpc,), PREFACE[:12], False)),
    "slow commands, RESP": (OPEN, False, hold, 1, lambda at: (at.slow, (at.resp,), COMMAND, True)),
    "rapid reset, HTTP/2": (OPEN, True, resets, 4, lambda at: (at.http,)),
    "rapid reset, gRPC": (OPEN, True, resets, 4, lambda at: (at.grpc,)),
    **{
        f"{name}, {listener}": (OPEN, True, frames, 4, lambda at, frame=frame, listener=listener: (getattr(at, listener), frame))
        for name, frame in CONTROL.items()
        for listener in ("http", "grpc")
    },
    "connections opened and closed, HTTP": (OPEN, True, again, 4, lambda at: (at.http, b"")),
    "connections opened and closed, RESP": (OPEN, True, again, 4, lambda at: (at.resp, b"")),
    "pipelines without end, RESP": (OPEN, True, pipelines, 8, lambda at: (at.resp,)),
    "made-up keys, RESP": (OPEN, True, commands, 2, lambda at: (at.resp, b"ACQUIRE work made-up-%d\r\n")),
    "blocks of made-up keys, RESP": (OPEN, True, commands, 2, lambda at: (at.resp, b"BLOCK work made-up-%d 600000\r\n")),
    "largest rules to check, 100 at a time": (OPEN, True, bodies, 100, lambda at: (at.admin, b"/v1/rules/check", LIMITS)),
    "largest rules to try, 100 at a time": (OPEN, True, bodies, 100, lambda at: (at.admin, b"/v1/what-if", LIMITS)),
    "largest joint decisions, 100 at a time": (OPEN, True, bodies, 100, lambda at: (at.http, b"/v1/acquire", ALL)),
    "quota reports of 2 M buckets, gRPC": (OPEN, True, reports, 16, lambda at: (at.grpc,)),
    "thresholds of made-up keys, RESP": (OPEN, True, commands, 2, lambda at: (at.resp, b"ACQUIRE watched made-up-%d\r\n")),
    "pages with updates": (OPEN, False, hold, 1, lambda at: (at.slow, (at.admin,), LIVE, False)),
    "scrapes of metrics, 8 at a time": (MANY, True, gets, 8, lambda at: (at.admin, b"/metrics")),
    "wrong tokens, HTTP": (GUARDED, True, guesses, 4, lambda at: (at.http, True)),
    "wrong tokens, RESP": (GUARDED, True, guesses, 4, lambda at: (at.resp, False)),
    "half-open TLS": (TLS, False, hold, 1, lambda at: (at.slow, (at.http, at.resp), HELLO, False)),
    "TLS handshakes, HTTP": (TLS, True, handshakes, 8, lambda at: (at.http,)),
    "TLS handshakes, RESP": (TLS, True, handshakes, 8, lambda at: (at.resp,)),
}


class At:
    """What is attacked."""

    def __init__(self, count, ports):
        self.count, self.slow = count, min(count, 5_000)
        self.http, self.resp, self.admin, self.grpc = ports


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def percentile(waits, share):
    return waits[min(len(waits) - 1, int(len(waits) * share))]


def row(name, told, quiet, memory, elsewhere=None):
    waits, refused = told
    p99 = percentile(waits, 0.99)
    times = f"{p99 / quiet:6.1f} ×" if quiet else " " * 8
    that = f"{p99 / elsewhere:6.1f} ×" if elsewhere else " " * 8
    memory = " → ".join(f"{at:.1f}" for at in memory)
    print(f"{name:38} {percentile(waits, 0.5):8.0f} {p99:8.0f} {times} {that} {waits[-1]:9.0f} {len(waits):8} {refused:7}  {memory} MiB", flush=True)
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


def serve(program, directory, kind, connections, ports):
    rules = os.path.join(directory, "rules.yaml")
    with open(rules, "w") as file:
        more = range(998) if kind == MANY else ()
        file.write(RULES + "".join(f"- {{name: more{at}, limit: 1000/1m}}\n" for at in more))
    envoy = os.path.join(directory, "envoy.yaml")
    with open(envoy, "w") as file:
        file.write(ENVOY)
    options = ["--trace-keys", "100%", "--trace-memory", "1MiB", "--envoy-config", envoy, "--rules", rules, "--max-connections", str(connections + 1_000), "--log-level", "error"]
    for name, port in zip(("http", "resp", "admin", "grpc"), ports):
        options += [f"--{name}", f"127.0.0.1:{port}"]
    if kind == GUARDED:
        access = os.path.join(directory, "access.yaml")
        with open(access, "w") as file:
            digest = hashlib.sha256(TOKEN.encode()).hexdigest()
            file.write(f"access: [{{name: manners, roles: [decide], tokens: ['sha256:{digest}']}}]\n")
        os.chmod(access, 0o600)
        options += ["--access", access]
    if kind == TLS:
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
    parser.add_argument("program", nargs="?", default="target/dist/tidegate", metavar="PROGRAM")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (given.connections + 1_000,) * 2)
    print(f"{'':38} {'median':>8} {'p99':>8} {'of quiet':>8} {'of that':>8} {'longest':>9} {'asked':>8} {'refused':>7}  memory")
    above = []
    for kind in (OPEN, GUARDED, TLS, MANY):
        attacks = [(name, attack) for name, attack in ATTACKS.items() if attack[0] == kind]
        attacks = [attack for attack in attacks if not given.only or any(part in attack[0] for part in given.only)]
        if not attacks:
            continue
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other_directory:
            server = serve(given.program, directory, kind, given.connections, PORTS)
            other = serve(given.program, other_directory, kind, given.connections, ELSEWHERE)
            try:
                probe(1, kind)
                quiet = row(f"quiet{kind}", probe(given.seconds, kind), None, [resident(server.pid)])
                for name, (_, computes, attack, processes, arguments) in attacks:
                    elsewhere = None
                    if computes:
                        with Attack(attack, processes, arguments(At(given.connections, ELSEWHERE))):
                            told = probe(given.seconds, kind)
                        elsewhere = row(f"{name}, elsewhere", told, quiet, [resident(server.pid)])
                    with Attack(attack, processes, arguments(At(given.connections, PORTS))):
                        waits, refused, memory = [], 0, []
                        for _ in range(2):
                            told = probe(given.seconds, kind)
                            waits += told[0]
                            refused += told[1]
                            memory.append(resident(server.pid))
                    p99 = row(name, (sorted(waits), refused), quiet, memory, elsewhere)
                    if p99 > BOUND or refused:
                        above.append(f"{name}: p99 {p99:.0f} us, elsewhere {elsewhere or 0:.0f} us, {refused} refused")
                row(f"quiet again{kind}", probe(given.seconds, kind), quiet, [resident(server.pid)])
            finally:
                for process in (server, other):
                    process.kill()
                    process.wait()
    print(f"p99 above {BOUND / 1000:.0f} ms, or a refusal:", *(above or ["none"]), sep="\n  ")


if __name__ == "__main__":
    main()
