"""Ports for servers that cannot choose one themselves. As a program it prints one."""
import random
import socket


def free_port():
    """A free port below those that systems give to connections, so that none has it before its server listens."""
    while True:
        port = random.randrange(10_240, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


if __name__ == "__main__":
    print(free_port())
