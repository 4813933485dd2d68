#!/usr/bin/env python3
"""Has client libraries of Redis wait in line at `tidegate serve` for longer than their read time-outs.

usage: run.py PROGRAM [--write]

PROGRAM is the built `tidegate`. Each client asks for a permit that another one holds, with a wait of a minute and a time-out of half a
second. The table has what the program sees, how often the client sent the command, whether its place in line was free before it went
on, and whether its next command works. Then the permit returns, which nobody may have taken; and a client with a longer time-out waits for one and
gets it. The table is compared with the one in docs/src/wait.md; --write replaces it.
It needs Python's venv, and for their clients Node with npm and Java with Maven. The versions are in versions.json.
"""
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]
import packages
from ports import free_port

PAGE = HERE.parent.parent.parent / "docs" / "src" / "wait.md"
RULES = "limits: [{name: jobs, limit: 1, algorithm: concurrency, hold: 1h}]\n"
COLUMNS = {"error": "the program sees", "sent": "sent", "place": "its place is free", "next": "its next command works"}


class Server:
    def __init__(self, program, folder):
        folder = Path(folder)
        (folder / "rules.yaml").write_text(RULES)
        self.resp, self.admin = free_port(), free_port()
        command = [program, "serve", "--rules", folder / "rules.yaml", "--resp", f"127.0.0.1:{self.resp}"]
        command += ["--http", "127.0.0.1:0", "--admin", f"127.0.0.1:{self.admin}"]
        log = open(folder / "log", "ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually("tidegate starts", lambda: self.ask("PING") == "+PONG")

    def ask(self, command):
        """The first line of the reply, or the numbers of an array."""
        try:
            with socket.create_connection(("127.0.0.1", self.resp), 5) as connection, connection.makefile("rb") as replies:
                connection.sendall(command.encode() + b"\r\n")
                first = replies.readline().decode().strip()
                if not first.startswith("*"):
                    return first
                return [int(replies.readline()[1:]) for _ in range(int(first[1:]))]
        except OSError:
            return None

    def metric(self, series):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series))

    def waiting(self):
        return self.metric('tidegate_waiting{limit="jobs"}')

    def left(self):
        return self.metric('tidegate_waits_total{limit="jobs",outcome="left"}')


def eventually(what, holds, seconds=30):
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def is_free_soon(server):
    """Whether the line is empty within five seconds: far less than the wait, which would end it, too."""
    until = time.monotonic() + 5
    while server.waiting() and time.monotonic() < until:
        time.sleep(0.02)
    return not server.waiting()


def rows(program):
    """What each client reports."""
    versions = packages.named("waiting")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder)
        try:
            for command in packages.programs("waiting", folder, HERE / "waiting"):
                running = subprocess.Popen(
                    [*command, str(server.resp)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
                )
                for line in running.stdout:
                    # A client's own log may be there, too.
                    if not line.startswith("{"):
                        continue
                    told = json.loads(line)
                    answer = "ok"
                    match told["step"]:
                        # Another client holds the permit.
                        case "hold":
                            before = server.left()
                            assert server.ask("ACQUIRE jobs x")[:3] == [0, 1, 0]
                        # The program has seen an error.
                        case "failed":
                            is_free = is_free_soon(server)
                            sent, answer = server.left() - before + server.waiting(), "free" if is_free else "taken"
                        # No client that has gone took anything.
                        case "return":
                            eventually("the line is empty", lambda: server.waiting() == 0)
                            server.ask("REFUND jobs x")
                            assert server.ask("PEEK jobs x")[:3] == [0, 1, 1], "a client that went away took the permit"
                        # The program is going to wait, with a time-out that is long enough.
                        case "wait":
                            print(answer, file=running.stdin, flush=True)
                            eventually("it is in line", lambda: server.waiting() == 1)
                            server.ask("REFUND jobs x")
                            continue
                        case "row":
                            assert told["waited"][:3] == [0, 1, 0], told
                            server.ask("REFUND jobs x")
                            library = told["client"]
                            yield library, versions[library], {"sent": "once" if sent == 1 else f"{sent} times", **told}
                    print(answer, file=running.stdin, flush=True)
                if running.wait(60) != 0:
                    sys.exit(f"{command[-1]} ended with {running.returncode}")
        finally:
            server.process.terminate()
            server.process.wait(30)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__)
    lines = ["| client | version | options | " + " | ".join(COLUMNS.values()) + " |", "|---|---|---|" + "---|" * len(COLUMNS)]
    for client, version, found in rows(program):
        cells = [client, version, f"`{found['options']}`", *(found[column] for column in COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    packages.compare(PAGE, "scripts/clients/waiting/run.py", lines, [])


main()
