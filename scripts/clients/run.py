#!/usr/bin/env python3
"""Runs the newest client libraries of Redis and Valkey against `tidegate serve`, at their defaults.

usage: run.py PROGRAM [--write]

PROGRAM is the built `tidegate`. Each client connects, asks for decisions alone, in a pipeline and in a transaction, meets a refused
transaction, and asks again after the server was restarted. redis-py also asks over a Unix socket, and counts with its own `increx`. The
table is compared with the one in docs/src/clients.md; --write replaces it.
It needs Python's venv, and for their clients Node with npm, Go, Java with Maven, and Rust. The versions are in versions.json.
"""
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import packages

HERE = packages.HERE
sys.path.insert(0, str(HERE.parent))
from ports import free_port

PAGE = HERE.parent.parent / "docs" / "src" / "clients.md"
# What a program reports of each client, and what is right.
CHECKS = {
    "acquire": [0, 100, 99, -1],
    "cl.throttle": [0, 3, 2, -1, 2],
    "pipeline": [[0, 100, 99, -1], [0, 100, 98, -1]],
    "transaction": [[0, 100, 99, -1], [0, 100, 98, -1]],
    "refused transaction": "nothing taken",
    "after a restart": [0, 100, 99, -1],
}
# What a cluster's client does here, of which the table has the word: it works, or fails; a library may have no such client, and
# some connect again without end.
BY_MISTAKE = "cluster mode by mistake"
WORDS = ("works", "error", "waits", "none")
CARGO = """[package]
name = "clients"
version = "0.0.0"
edition = "2024"

[dependencies]
fred = "={fred}"
redis = {{ version = "={redis}", features = ["cluster-async", "connection-manager", "tokio-comp"] }}
tokio = {{ version = "1", features = ["macros", "rt", "time"] }}

[profile.dev]
debug = false

[workspace]
"""
RULES = "limits: [{name: per-user, limit: 100/1h, algorithm: sliding-log}]\n"


class Server:
    """`tidegate serve` on one port, which the clients tell to restart through a file."""

    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.port = free_port()
        (self.folder / "rules.yaml").write_text(RULES)
        self.process = None

    def start(self):
        command = [self.program, "serve", "--rules", self.folder / "rules.yaml", "--resp", f"127.0.0.1:{self.port}"]
        command += ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"tidegate did not start:\n{(self.folder / 'log').read_text()}")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def clients(folder):
    """The commands that run each group of clients, after they were installed."""
    yield from packages.programs("redis", folder, HERE / "clients")
    if shutil.which("cargo"):
        manifest = CARGO.format(**packages.VERSIONS["redis"]["rust"])
        yield [packages.cargo(folder, manifest, HERE / "clients.rs")]


OVER_A_SOCKET = """
import sys
import redis
client = redis.Redis(unix_socket_path=sys.argv[1])
first = client.execute_command("ACQUIRE", "per-user", "socket", 1, "ID", "one")
again = redis.Redis(unix_socket_path=sys.argv[1]).execute_command("ACQUIRE", "per-user", "socket", 1, "ID", "one")
assert first == again and first[:3] == [0, 100, 99], (first, again)
options = {"byint": 70, "ubound": 100, "saturate": True, "ex": 3600, "enx": True}
assert [client.increx("per-user:counted", **options) for _ in range(2)] == [[70, 70], [100, 30]]
with client.pipeline() as pipeline:
    pipeline.execute_command("ACQUIRE", "per-user", "socket").execute_command("ACQUIRE", "per-user", "socket")
    assert [reply[:3] for reply in pipeline.execute()] == [[0, 100, 98], [0, 100, 97]]
"""


def over_a_unix_socket(program, folder):
    """redis-py at `--resp unix:PATH`, with a repeated request and a transaction."""
    folder = Path(folder)
    path = folder / "socket"
    command = [program, "serve", "--rules", folder / "rules.yaml", "--resp", f"unix:{path}", "--http", "127.0.0.1:0", "--admin", "off"]
    log = open(folder / "log", "ab")
    server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    subprocess.run([folder / "venv/bin/python", "-c", OVER_A_SOCKET, path], check=True)
    server.terminate()
    server.wait(30)
    if path.exists():
        sys.exit("the file of the socket is still there")


def rows(program):
    """For each client its name, and of each check whether it was right."""
    versions = packages.named("redis")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder)
        for command in clients(folder):
            server.start()
            running = subprocess.Popen(
                [*command, str(server.port)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
            )
            for line in running.stdout:
                if line.strip() == "restart":
                    server.stop()
                    server.start()
                    print("restarted", file=running.stdin, flush=True)
                    continue
                # A client's own log may be there, too.
                if not line.startswith("{"):
                    continue
                found = json.loads(line)
                yield found["client"], versions[found["client"]], found
            if running.wait(60) != 0:
                sys.exit(f"{command[-1]} ended with {running.returncode}")
            server.stop()
        over_a_unix_socket(program, folder)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__)
    columns = [*CHECKS, BY_MISTAKE]
    lines = ["| client | version | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    wrong = []
    for client, version, found in rows(program):
        marks = []
        for check, right in CHECKS.items():
            is_right = found.get(check) == right
            marks.append("yes" if is_right else "no")
            if not is_right:
                wrong.append(f"{client} {version}: {check} is {found.get(check)!r}, not {right!r}")
        marks.append(found.get(BY_MISTAKE))
        if marks[-1] not in WORDS:
            wrong.append(f"{client} {version}: {BY_MISTAKE} is {marks[-1]!r}, not one of {WORDS}")
        lines.append(f"| {client} | {version} | " + " | ".join(marks) + " |")
        print(lines[-1], flush=True)
    packages.compare(PAGE, "scripts/clients/run.py", lines, wrong)
    print("every client works at its defaults")


main()
