#!/usr/bin/env bash
# redis-py 8.1.0 with a socket_timeout, all other options at their defaults: after a read time-out it sends the same command again, eleven times in all, on new
# connections. A command that takes something (INCR, LPUSH, a script) may therefore take effect eleven times behind one slow answer.
# With retry=None it is sent once.
#
# Seen on 2026-11-27, Python 3.11:
#   default: sent 11 times, TimeoutError
#   retry=None: sent 1 times, TimeoutError
#
# Fails if the numbers change.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet redis==8.1.0
cat >"$folder/count.py" <<'PY'
import socket
import threading

import redis


def commands(stream):
    """The commands of one connection, each as a list of bytes."""
    while line := stream.readline():
        parts = []
        for _ in range(int(line[1:])):
            length = int(stream.readline()[1:])
            parts.append(stream.read(length))
            stream.readline()
        yield parts


def serve(listener, seen):
    """A server that completes the handshake, and never answers INCR."""

    def converse(connection):
        try:
            for command in commands(connection.makefile("rb")):
                name = command[0].upper()
                if name == b"INCR":
                    seen.append(command)
                elif name == b"HELLO":
                    connection.sendall(b"%1\r\n$5\r\nproto\r\n:3\r\n")
                else:
                    connection.sendall(b"+OK\r\n")
        except OSError:
            pass  # The client has closed the connection.

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(connection,), daemon=True).start()


found = []
for name, options in (("default", {}), ("retry=None", {"retry": None})):
    listener, seen = socket.create_server(("127.0.0.1", 0)), []
    threading.Thread(target=serve, args=(listener, seen), daemon=True).start()
    client = redis.Redis(port=listener.getsockname()[1], socket_timeout=0.3, **options)
    try:
        client.execute_command("INCR", "counter")
        outcome = "an answer"
    except redis.exceptions.RedisError as error:
        outcome = type(error).__name__
    found.append((len(seen), outcome))
    print(f"{name}: sent {len(seen)} times, {outcome}")
if found != [(11, "TimeoutError"), (1, "TimeoutError")]:
    raise SystemExit("this has changed")
PY
"$folder/venv/bin/python" "$folder/count.py"
