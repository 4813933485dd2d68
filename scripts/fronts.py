#!/usr/bin/env python3
"""Each front of packaging/ with its real program and a real Tidegate that is slow, stopped, dead or misconfigured. Prints what the front's
clients see, as the table of docs/src/fronts.md.

fronts.py [--write] [NAME ...]     of those in FRONTS; --write replaces the table in the book

Fails if a front does what EXPECTED does not allow. Programs: Debian's nginx, haproxy, apache2 (with lua-socket) and varnish;
scripts/servers.sh has the others. TIDEGATE_PROGRAM=PROGRAM names the server (default: target/debug/tidegate).
"""
import asyncio
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ports import free_port
from producers import answers, debian, until

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
PROGRAM = os.environ.get("TIDEGATE_PROGRAM", str(ROOT / "target/debug/tidegate"))
PAGE = ROOT / "docs/src/fronts.md"
LIMIT = 5
RULES = "limits:\n  - {name: %s, limit: 5/1h, algorithm: sliding-log}\n"
TOKEN = "the-token-of-a-proxy"
ACCESS = f"access:\n  - {{name: proxy, roles: [decide], tokens: ['sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}']}}\n"


class Backend(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.send_header("X-Seen-RateLimit", self.headers.get("RateLimit", ""))
        self.end_headers()
        self.wfile.write(b"ok")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Backends(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A front that stops resets its connections."""


class Slow:
    """Passes connections on to Tidegate, and its answers after a delay."""

    def __init__(self, to):
        self.to, self.delay, self.port = to, 0.0, free_port()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(asyncio.start_server(self.serve, "127.0.0.1", self.port), self.loop).result()

    async def serve(self, reader, writer):
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.close()
            return

        async def copy(source, target, late):
            try:
                while data := await source.read(65536):
                    if late and self.delay:
                        await asyncio.sleep(self.delay)
                    target.write(data)
                    await target.drain()
            except OSError:
                pass
            target.close()

        await asyncio.gather(copy(reader, other_writer, False), copy(other_reader, writer, True))


class Tidegate:
    def __init__(self, at, limit="per-address", access=False):
        self.at, self.http, self.spoe, self.admin = at, free_port(), free_port(), free_port()
        (at / "rules.yaml").write_text(RULES % limit)
        self.arguments = ["--rules", at / "rules.yaml", "--http", f"127.0.0.1:{self.http}", "--admin", f"127.0.0.1:{self.admin}",
                          "--spoe", f"127.0.0.1:{self.spoe}", "--resp", "off"]
        if access:
            (at / "access.yaml").write_text(ACCESS)
            (at / "access.yaml").chmod(0o600)
            self.arguments += ["--access", at / "access.yaml"]
        self.start()

    def start(self):
        self.log = open(self.at / "tidegate.log", "ab")
        self.process = subprocess.Popen([PROGRAM, "serve", *map(str, self.arguments)], stdout=self.log, stderr=self.log)
        until("Tidegate listens", lambda: answers(self.http) and answers(self.spoe))

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Stops it, and waits until what it has sent has arrived."""
        self.signal(signal.SIGSTOP)
        state = pathlib.Path(f"/proc/{self.process.pid}/stat")
        until("Tidegate is stopped", lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T")
        time.sleep(0.05)

    def kill(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def lines(self):
        return len(re.findall(r"WARN|ERROR|without a decision", (self.at / "tidegate.log").read_text(errors="replace")))

    def unawaited(self):
        """The answers for which the front did not wait, as far as Tidegate knows."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=30) as answer:
            return int(re.search(r"^tidegate_http_answers_unawaited_total (\d+)$", answer.read().decode(), re.M)[1])


def packaged(name, replacements):
    text = (PACKAGING / name).read_text()
    for old, new in replacements:
        assert old in text, f"{old!r} is no longer in packaging/{name}"
        text = text.replace(old, str(new))
    return text


def nginx(at, port, tidegate, backend, _):
    instead = free_port()
    site = packaged("nginx/tidegate.conf", [("server 127.0.0.1:8080 ", f"server 127.0.0.1:{tidegate} "), ("127.0.0.1:8079", f"127.0.0.1:{instead}"),
                                            ("server 127.0.0.1:9000;", f"server 127.0.0.1:{backend};"), ("listen 80;", f"listen 127.0.0.1:{port};"),
                                            ("/var/log/nginx/", f"{at}/")])
    temporary = "".join(f"{what}_temp_path {at}/{what};" for what in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
    (at / "nginx.conf").write_text(f"daemon off; pid {at}/pid; error_log {at}/front.log; events {{}} http {{ access_log off; {temporary} {site} }}")
    return [debian("nginx", "nginx"), "-c", at / "nginx.conf", "-p", at]


def haproxy_of(program, mode):
    def front(at, port, _, backend, spoe):
        replacements = [("bind :80", f"bind 127.0.0.1:{port}"), ("/etc/haproxy/tidegate-spoe.conf", at / "spoe.conf"),
                        ("server app 127.0.0.1:9000", f"server app 127.0.0.1:{backend}"), ("127.0.0.1:12345", f"127.0.0.1:{spoe}")]
        if mode == "spop":
            replacements.append(("    mode tcp\n", "    mode spop\n"))
        (at / "spoe.conf").write_text(packaged("haproxy/tidegate-spoe.conf", []))
        (at / "haproxy.cfg").write_text("global\n    log stdout format raw local0\ndefaults\n    log global\n    option httplog\n    timeout connect 5s\n"
                                        "    timeout client 10s\n    timeout server 10s\n" + packaged("haproxy/tidegate.cfg", replacements))
        return [program(), "-db", "-f", at / "haproxy.cfg"]
    return front


def servers(name):
    return subprocess.run([ROOT / "scripts/servers.sh", name], check=True, capture_output=True, text=True).stdout.strip()


def caddy(at, port, tidegate, backend, _, fail_open=True):
    text = packaged("caddy/Caddyfile", [(":80 {", f"http://:{port} {{\n\tbind 127.0.0.1\n\tlog {{\n\t\toutput file {at}/access.log\n\t}}"),
                                        ("127.0.0.1:8080", f"127.0.0.1:{tidegate}"), ("127.0.0.1:9000", f"127.0.0.1:{backend}")])
    if not fail_open:
        text = text[:text.index("\t# Tidegate did not answer")] + "}\n"
    (at / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n}\n" + text)
    return [servers("caddy"), "run", "--config", at / "Caddyfile", "--adapter", "caddyfile"]


def caddy_closed(*arguments):
    return caddy(*arguments, fail_open=False)


def traefik(at, port, tidegate, backend, _, fail_open=True):
    own = free_port()
    text = packaged("traefik/tidegate.yaml", [("127.0.0.1:8079", f"127.0.0.1:{own}"), ("127.0.0.1:9000", f"127.0.0.1:{backend}"),
                                              ("127.0.0.1:8080", f"127.0.0.1:{tidegate}")])
    if not fail_open:
        text = text.replace("      middlewares: [admit-unasked]\n", "")
    (at / "tidegate.yaml").write_text(text)
    (at / "traefik.yaml").write_text(packaged("traefik/traefik.yaml", [('":80"', f'"127.0.0.1:{port}"'), ("127.0.0.1:8079", f"127.0.0.1:{own}"),
                                                                       ("/etc/traefik/tidegate.yaml", at / "tidegate.yaml")]))
    return [servers("traefik"), f"--configFile={at}/traefik.yaml"]


def traefik_closed(*arguments):
    return traefik(*arguments, fail_open=False)


def envoy(at, port, tidegate, backend, _):
    (at / "envoy.yaml").write_text(packaged("envoy/ext_authz.yaml", [
        ("address: 0.0.0.0, port_value: 80 ", f"address: 127.0.0.1, port_value: {port} "), ("port_value: 8080", f"port_value: {tidegate}"),
        ("port_value: 9000", f"port_value: {backend}")]))
    return [servers("envoy"), "-c", at / "envoy.yaml", "--disable-hot-restart", "--concurrency", "1"]


def apache(at, port, tidegate, backend, _):
    (at / "tidegate.lua").write_text(packaged("apache/tidegate.lua", [('"127.0.0.1", 8080', f'"127.0.0.1", {tidegate}')]))
    modules = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
                      for name in ["mpm_event", "authz_core", "proxy", "proxy_http", "lua"])
    (at / "apache.conf").write_text(
        f"ServerRoot {at}\nPidFile {at}/pid\nErrorLog {at}/front.log\nServerName a\nDefaultRuntimeDir {at}\nMutex file:{at} default\n{modules}"
        f"Listen 127.0.0.1:{port}\n" + packaged("apache/tidegate.conf", [("/etc/apache2/tidegate.lua", at / "tidegate.lua"),
                                                                         ("127.0.0.1:9000", f"127.0.0.1:{backend}")]))
    return [debian("apache2", "apache2"), "-f", at / "apache.conf", "-D", "FOREGROUND"]


def varnish(at, port, tidegate, backend, _):
    (at / "default.vcl").write_text(packaged("varnish/tidegate.vcl", [('.port = "8080"', f'.port = "{tidegate}"'), ('.port = "9000"', f'.port = "{backend}"')]))
    return [debian("varnishd", "varnish"), "-F", "-n", at / "varnish", "-a", f"127.0.0.1:{port}", "-f", at / "default.vcl", "-s", "malloc,10M"]


def client(name):
    """The middleware of clients/ in a program of its framework."""
    def front(at, port, tidegate, *_):
        sys.path.insert(0, str(ROOT / "clients"))
        import test as clients
        clients.install([name])
        place = at / "program"
        place.mkdir()
        variables = {"SERVER": f"http://127.0.0.1:{tidegate}", "LIMIT": "per-address", "PORT": port, "TIMEOUT": 0.1, "TOKEN": "", "OPEN": 1}
        return ["env", "-C", place, *(f"{name}={value}" for name, value in variables.items()), *clients.command(name, place)]
    return front


FRONTS = {
    "nginx": nginx, "HAProxy": haproxy_of(lambda: debian("haproxy", "haproxy"), "tcp"),
    "HAProxy 3.2 (mode spop)": haproxy_of(lambda: servers("haproxy"), "spop"), "Envoy (ext_authz)": envoy, "Caddy": caddy,
    "Caddy, failing closed": caddy_closed, "Traefik": traefik, "Traefik, failing closed": traefik_closed, "Apache httpd": apache,
    "Varnish": varnish,
    "clients/asgi.py": client("fastapi"), "clients/django_middleware.py": client("django"), "clients/express.mjs": client("express"),
    "clients/fastify.mjs": client("fastify"), "clients/nethttp.go": client("go"), "clients/TidegateFilter.java": client("spring"),
}
# The request line's target and the header fields of each request. A client cannot choose its key; the key of clients/ is a field here.
USUAL = "/a?key=other&cost=0", ""
CLIENTS = "/", "X-Key: client\r\n"
asked = list(USUAL)
CLOSED = {"Caddy, failing closed", "Traefik, failing closed"}
# A front's longest delay, in milliseconds, while Tidegate does not answer; more only on a busy machine.
LONGEST = 1_000


class Setup:
    """A front before a backend, and Tidegate behind a relay that can be slow."""

    def __init__(self, make, at, backend, limit="per-address", access=False):
        self.at, self.port = at, free_port()
        self.tidegate = Tidegate(at, limit, access)
        self.http, self.spoe = Slow(self.tidegate.http), Slow(self.tidegate.spoe)
        command = [str(part) for part in make(at, self.port, self.http.port, backend, self.spoe.port)]
        self.out = open(at / "out.log", "ab")
        self.front = subprocess.Popen(command, cwd=at, stdout=self.out, stderr=self.out, start_new_session=True)
        until(f"{command[0]} listens", lambda: self.front.poll() is not None or answers(self.port), 30)
        self.baseline = self.front_lines(), 0
        method = "GET" if tuple(asked) == CLIENTS else "POST"
        until(f"{command[0]} serves", lambda: ask(self.port, method)[0] in (200, 429), 30)

    def front_lines(self):
        own = sum(len(path.read_bytes().splitlines()) for path in [self.at / "out.log", self.at / "front.log"] if path.exists())
        access = self.at / "access.log"
        return own + (access.read_bytes().count(b"unasked") if access.exists() else 0)

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.front.pid, number)
                self.front.wait(5)
                break
            except (subprocess.TimeoutExpired, ProcessLookupError):
                continue
        self.tidegate.kill()


def ask(port, method="GET", fields=""):
    """The status, the header fields and the seconds that a request takes."""
    begin = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.settimeout(60)
            body = "hello" if method == "POST" else ""
            connection.sendall(f"{method} {asked[0]} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{asked[1]}{fields}\r\n{body}".encode())
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        head = answer.split(b"\r\n\r\n")[0].decode(errors="replace").lower()
        return int(head.split(" ")[1]), head, time.monotonic() - begin
    except (OSError, IndexError, ValueError):
        return 0, "", time.monotonic() - begin


def seen(port, requests=20):
    """What a client sees of some requests, one after another."""
    made = [ask(port) for _ in range(requests)]
    return [status for status, _, _ in made], [round(took * 1000) for _, _, took in made]


def summary(statuses, delays):
    others = sorted(set(statuses) - {200, 429})
    modes = [*(["open"] if 200 in statuses else []), *(["limits hold"] if 429 in statuses else []),
             *(["closed (" + ", ".join(map(str, others)) + ")"] if others else [])]
    waited = sum(delay > 90 for delay in delays)
    return f"{' and '.join(modes)}; {waited} of {len(delays)} wait, at most {max(delays)} ms"


def limits_again(port):
    """The seconds until the limit denies again."""
    begin = time.monotonic()
    until("the limit denies again", lambda: ask(port)[0] in (429, 403), 60)
    return time.monotonic() - begin


def pause(setup):
    """How many requests are admitted, and how many there are, in a second in which Tidegate is paused for 150 ms."""
    exhausted(setup)
    end = time.monotonic() + 1
    counts = [0, 0]

    def client():
        while time.monotonic() < end:
            status = ask(setup.port)[0]
            counts[0] += status == 200
            counts[1] += 1

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    setup.tidegate.signal(signal.SIGSTOP)
    time.sleep(0.15)
    setup.tidegate.signal(signal.SIGCONT)
    for thread in threads:
        thread.join()
    return counts


def exhausted(setup):
    until("the limit denies", lambda: ask(setup.port)[0] == 429, 30)


def run(name, make, backend):
    """A row of the table, and what is wrong."""
    cells, wrong = {}, []
    asked[:] = CLIENTS if name.startswith("clients/") else USUAL
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="tidegate-front-"))
    scratch.chmod(0o777)

    def setup(case, **options):
        at = scratch / case
        at.mkdir()
        return Setup(make, at, backend, **options)

    def noticed(it, before):
        front, own = it.front_lines() - before[0], it.tidegate.lines() - before[1]
        logs = [*(["the front's log"] if front else []), *(["Tidegate's log"] if own else [])]
        return "noticed by " + " and ".join(logs) if logs else "in no log"

    try:
        it = setup("usual")
        try:
            fields = ask(it.port)[1]
            admitted = [field for field in ("ratelimit", "ratelimit-policy") if f"\n{field}: " in fields]
            exhausted(it)
            status, fields, _ = ask(it.port, fields="X-Forwarded-For: 198.51.100.1\r\nX-Tidegate-Key: other\r\nX-Tidegate-Cost: 0\r\n"
                                    "X-Real-IP: 198.51.100.2\r\nOrigin: https://page.example\r\nForwarded: for=198.51.100.3\r\n")
            if status != 429:
                wrong.append(f"a client chooses its key: {status}")
            denied = [field for field in ("ratelimit", "ratelimit-policy", "retry-after") if f"\n{field}: " in fields]
            cells["fields"] = f"{len(admitted)} of 2, {len(denied)} of 3"
            admitted, made = pause(it)
            cells["pause"] = f"{admitted} of {made} admitted"
            if name == "nginx" and admitted * 50 > made:
                wrong.append(f"in a second with a pause of 150 ms, {admitted} of {made} are admitted")
            # Slow.
            time.sleep(1.5)
            exhausted(it)
            before = it.front_lines(), it.tidegate.lines()
            it.http.delay = it.spoe.delay = 0.15
            statuses, delays = seen(it.port)
            it.http.delay = it.spoe.delay = 0
            cells["slow"] = f"{summary(statuses, delays)}; limits again after {limits_again(it.port):.1f} s; {noticed(it, before)}"
            # Stopped.
            time.sleep(1.5)
            exhausted(it)
            before = it.front_lines(), it.tidegate.lines()
            it.tidegate.stop()
            statuses, delays = seen(it.port)
            it.tidegate.signal(signal.SIGCONT)
            cells["stopped"] = f"{summary(statuses, delays)}; limits again after {limits_again(it.port):.1f} s; {noticed(it, before)}"
            check(name, "stopped", statuses, delays, wrong)
            unawaited = it.tidegate.unawaited()
            cells["stopped"] += f", {unawaited} in Tidegate's metric" if unawaited else ""
            if name == "nginx":
                unasked = len((it.at / "tidegate-unasked.log").read_bytes().splitlines())
                if not 0 < unawaited <= unasked:
                    wrong.append(f"stopped: Tidegate counts {unawaited} answers without an asker, nginx {unasked} requests without an answer")
            # Dead.
            time.sleep(1.5)
            exhausted(it)
            before = it.front_lines(), it.tidegate.lines()
            it.tidegate.kill()
            statuses, delays = seen(it.port)
            who = noticed(it, before)
            it.tidegate.start()
            cells["dead"] = f"{summary(statuses, delays)}; limits again after {limits_again(it.port):.1f} s; {who}"
            check(name, "dead", statuses, delays, wrong)
        finally:
            it.stop()
        for case, options in [("unknown limit", {"limit": "another"}), ("wrong token", {"access": True})]:
            it = setup(case.replace(" ", "-"), **options)
            try:
                before = it.baseline
                cells[case] = f"{summary(*seen(it.port))}; {noticed(it, before)}"
            finally:
                it.stop()
    except (OSError, subprocess.CalledProcessError, TimeoutError, AssertionError) as error:
        wrong.append(str(error))
        for log in scratch.glob("*/*.log"):
            wrong.append(f"{log.name}: " + log.read_text(errors="replace")[-400:])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return cells, wrong


def check(name, case, statuses, delays, wrong):
    if name in CLOSED:
        if 200 in statuses:
            wrong.append(f"{case}: it fails open: {statuses}")
    elif set(statuses) != {200}:
        wrong.append(f"{case}: not all requests go on: {statuses}")
    if max(delays) > LONGEST:
        wrong.append(f"{case}: a request takes {max(delays)} ms")


HEADS = ["fields", "pause", "slow", "stopped", "dead", "unknown limit", "wrong token"]
TITLES = ["fields at the client: admitted, denied", "a second with a pause of 150 ms", "slow (150 ms)", "stopped", "dead", "unknown limit", "wrong token"]


def main():
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or list(FRONTS)
    backend = Backends(("127.0.0.1", 0), Backend)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    rows, bad = [], 0
    for name in names:
        if name.startswith("Traefik") and not shutil.which("go") and "TIDEGATE_TRAEFIK" not in os.environ:
            print(f"{name}: NOT run (no Go)")
            continue
        cells, wrong = run(name, FRONTS[name], backend.server_address[1])
        print(f"{name}: {'as it should' if not wrong else 'WRONG'}", flush=True)
        for line in [*(f"{head}: {cells.get(head)}" for head in HEADS), *wrong]:
            print("   ", line.replace("\n", "\n    "), flush=True)
        rows.append(f"| {name} | " + " | ".join(cells.get(head, "") for head in HEADS) + " |")
        bad += bool(wrong)
    table = "\n".join(["| front | " + " | ".join(TITLES) + " |", "|---" * (len(TITLES) + 1) + "|", *rows])
    if "--write" in sys.argv:
        page = PAGE.read_text()
        begin, end = "<!-- fronts -->\n", "<!-- end of fronts -->"
        PAGE.write_text(page[:page.index(begin) + len(begin)] + table + "\n" + page[page.index(end):])
    print(f"{len(names) - bad} passed, {bad} failed")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
