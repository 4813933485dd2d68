#!/usr/bin/env python3
"""Runs each middleware with its real framework and a real server. Installs the frameworks into ~/.cache/tidegate/clients.

test.py [NAME ...]     of fastapi, django, express, fastify, go and spring

TIDEGATE_PROGRAM=PROGRAM names the server (default: target/debug/tidegate)
"""
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))
from ports import free_port

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tidegate/clients"
PROGRAM = os.environ.get("TIDEGATE_PROGRAM", str(HERE.parent / "target/debug/tidegate"))
PYTHON = CACHE / "venv/bin/python"
PATIENCE = 120  # seconds
TOKEN = "the-token-of-the-program"
RULES = """limits:
  - {name: two, limit: 2/1h, algorithm: sliding-log, deny: [mallory]}
  - {name: rare, limit: 1/360d, algorithm: sliding-log}
  - {name: logins, limit: 2/1h, algorithm: sliding-log}
  - {name: paced, limit: 20/1s, algorithm: leaky-bucket}
  - {name: slow, limit: 1/1h, algorithm: leaky-bucket, max_wait: 2h}
"""
# A program for each framework. The key is a header field, so that one client has several. A login with a wrong password gets 401; only
# those count with COUNTS=1.
APPS = {
    "fastapi": ("app.py", """
import os
import uvicorn
from fastapi import FastAPI, Request, Response
from asgi import Tidegate
app = FastAPI()
@app.get("/")
async def hello(request: Request):
    return Response("hello", 401 if "x-wrong" in request.headers else 200)
counts = (lambda status: status == 401) if os.environ["COUNTS"] == "1" else None
app.add_middleware(Tidegate, counts=counts, token=os.environ["TOKEN"] or None, limit=os.environ["LIMIT"], key=lambda request: request.headers["x-key"],
    server=os.environ["SERVER"], fail_open=os.environ["OPEN"] == "1", timeout=float(os.environ["TIMEOUT"]))
uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
"""),
    "django": ("app.py", """
import os
from wsgiref.simple_server import make_server
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
urlpatterns = [path("", lambda request: HttpResponse("hello", status=401 if "x-wrong" in request.headers else 200))]
counts = (lambda status: status == 401) if os.environ["COUNTS"] == "1" else None
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["django_middleware.tidegate"], TIDEGATE={
    "limit": os.environ["LIMIT"], "key": lambda request: request.headers["x-key"], "server": os.environ["SERVER"],
    "token": os.environ["TOKEN"], "counts": counts, "fail_open": os.environ["OPEN"] == "1", "timeout": float(os.environ["TIMEOUT"])})
make_server("127.0.0.1", int(os.environ["PORT"]), get_wsgi_application()).serve_forever()
"""),
    "express": ("app.mjs", """
import express from "express";
import { tidegate } from "./express.mjs";
const { LIMIT: limit, SERVER: server, TOKEN: token, OPEN, PORT, TIMEOUT, COUNTS } = process.env;
const counts = COUNTS === "1" ? (status) => status === 401 : undefined;
const app = express();
const key = (request) => request.get("x-key");
app.use(tidegate({ counts, limit, server, key, token, failOpen: OPEN === "1", timeout: TIMEOUT * 1000 }));
app.get("/", (request, response) => response.status(request.get("x-wrong") ? 401 : 200).send("hello"));
app.listen(Number(PORT), "127.0.0.1");
"""),
    "fastify": ("app.mjs", """
import fastify from "fastify";
import { tidegate } from "./fastify.mjs";
const { LIMIT: limit, SERVER: server, TOKEN: token, OPEN, PORT, TIMEOUT, COUNTS } = process.env;
const counts = COUNTS === "1" ? (status) => status === 401 : undefined;
const app = fastify();
const key = (request) => request.headers["x-key"];
app.addHook("onRequest", tidegate({ counts, limit, server, key, token, failOpen: OPEN === "1", timeout: TIMEOUT * 1000 }));
app.get("/", async (request, reply) => reply.code(request.headers["x-wrong"] ? 401 : 200).send("hello"));
await app.listen({ port: Number(PORT), host: "127.0.0.1" });
"""),
    "go": ("main.go", """
package main

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"clients/tidegate"
)

func main() {
	seconds, _ := strconv.ParseFloat(os.Getenv("TIMEOUT"), 64)
	server := os.Getenv("SERVER")
	if token := os.Getenv("TOKEN"); token != "" {
		server = strings.Replace(server, "://", "://app:"+token+"@", 1)
	}
	limit := tidegate.Limit{
		Server: server, Name: os.Getenv("LIMIT"), FailOpen: os.Getenv("OPEN") == "1",
		Key:     func(r *http.Request) string { return r.Header.Get("x-key") },
		Timeout: time.Duration(seconds * float64(time.Second)),
	}
	if os.Getenv("COUNTS") == "1" {
		limit.Counts = func(status int) bool { return status == 401 }
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("x-wrong") != "" {
			w.WriteHeader(401)
		}
		w.Write([]byte("hello"))
	})
	http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), limit.Wrap(hello))
}
"""),
    "spring": ("App.java", """
package clients;

import java.time.Duration;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.*;

@SpringBootApplication
@RestController
public class App {
    @GetMapping("/")
    ResponseEntity<String> hello(@RequestHeader(name = "x-wrong", required = false) String wrong) {
        return ResponseEntity.status(wrong == null ? 200 : 401).body("hello");
    }

    @Bean
    TidegateFilter limited() {
        var timeout = Duration.ofMillis((long) (1000 * Double.parseDouble(System.getenv("TIMEOUT"))));
        var token = System.getenv("TOKEN").isEmpty() ? null : System.getenv("TOKEN");
        return new TidegateFilter(System.getenv("SERVER"), System.getenv("LIMIT"), request -> request.getHeader("x-key"), timeout,
            System.getenv("OPEN").equals("1"), token, System.getenv("COUNTS").equals("1") ? status -> status == 401 : null);
    }

    public static void main(String[] arguments) {
        SpringApplication.run(App.class, "--server.address=127.0.0.1", "--server.port=" + System.getenv("PORT"));
    }
}
"""),
}
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>clients</groupId><artifactId>clients</artifactId><version>1</version>
  <parent>
    <groupId>org.springframework.boot</groupId><artifactId>spring-boot-starter-parent</artifactId><version>3.5.7</version>
  </parent>
  <dependencies>
    <dependency><groupId>org.springframework.boot</groupId><artifactId>spring-boot-starter-web</artifactId></dependency>
  </dependencies>
</project>
"""


def install(names):
    if {"fastapi", "django"} & set(names) and not (CACHE / "venv/.done").exists():
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv"], check=True)
        packages = ["fastapi==0.115.*", "uvicorn==0.34.*", "httpx==0.28.*", "django==5.1.*"]
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *packages], check=True)
        (CACHE / "venv/.done").touch()
    if {"express", "fastify"} & set(names) and not (CACHE / "node/.done").exists():
        (CACHE / "node").mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "express@5", "fastify@5"]
        subprocess.run(command, cwd=CACHE / "node", check=True)
        (CACHE / "node/.done").touch()
    if "spring" in names and not (CACHE / "spring/.done").exists():
        (CACHE / "spring").mkdir(parents=True, exist_ok=True)
        (CACHE / "spring/pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=CACHE / "spring", check=True)
        (CACHE / "spring/.done").touch()


def command(name, place):
    """Writes the program of a framework to a directory. Returns the command that runs it."""
    file, text = APPS[name]
    (place / file).write_text(text)
    if name == "go":
        (place / "tidegate").mkdir()
        shutil.copy(HERE / "nethttp.go", place / "tidegate")
        (place / "go.mod").write_text("module clients\n\ngo 1.22\n")
        subprocess.run(["go", "build", "-o", "app", "."], cwd=place, check=True)
        return [place / "app"]
    if name == "spring":
        # In a package, because Spring does not search the default one.
        filter_text = (HERE / "TidegateFilter.java").read_text()
        (place / "TidegateFilter.java").write_text(f"package clients;\n{filter_text}")
        path = f"{CACHE}/spring/lib/*"
        files = [file, "TidegateFilter.java"]
        subprocess.run(["javac", "-nowarn", "-parameters", "-cp", path, "-d", ".", *files], cwd=place, check=True)
        return ["java", "-cp", f"{place}:{path}", "clients.App"]
    for middleware in [*HERE.glob("*.mjs"), *HERE.glob("*.py")]:
        shutil.copy(middleware, place)
    if file.endswith(".py"):
        return [PYTHON, file]
    if not (place / "node_modules").exists():
        (place / "node_modules").symlink_to(CACHE / "node/node_modules")
    return ["node", file]


class Running:
    """A process that listens on a port."""

    def __init__(self, port, arguments, patience=PATIENCE, **more):
        self.port = port
        self.child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
        until = time.monotonic() + patience
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert self.child.poll() is None and time.monotonic() < until, f"{arguments} does not listen"
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()

    def get(self, key, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/", headers={"x-key": key, **more})
        answer = connection.getresponse()
        body = answer.read().decode()
        # A framework's page about an error is not JSON.
        reason = json.loads(body).get("reason") if answer.status in (429, 503) else None
        return answer.status, reason, answer.getheader("Retry-After")

    def waits(self, key):
        """Whether a request has no answer within a second; it is not waited for longer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        connection.request("GET", "/", headers={"x-key": key})
        try:
            connection.getresponse()
            return False
        except TimeoutError:
            return True


class Front(http.server.BaseHTTPRequestHandler):
    """Passes questions on to a server and counts them. It keeps the answers to reservations until `open` is set, and loses one answer
    with its connection each time that `loses` is set."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        front = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        front.asked.append(self.path)
        address = f"http://127.0.0.1:{front.behind}{self.path}"
        asked = urllib.request.Request(address, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                status, body, wait = answer.status, answer.read(), None
        except urllib.error.HTTPError as answer:
            status, body, wait = answer.code, answer.read(), answer.headers["retry-after"]
        if self.path == "/v1/reserve":
            front.open.wait(60)
        if front.loses:
            front.loses, self.close_connection = False, True
            return
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            if wait:
                self.send_header("retry-after", wait)
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the client did not wait

    def log_message(self, *_):
        pass


def front_of(port):
    front = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
    front.daemon_threads, front.behind, front.asked, front.open, front.loses = True, port, [], threading.Event(), False
    front.open.set()
    threading.Thread(target=front.serve_forever, daemon=True).start()
    return front


class Garbled(socketserver.BaseRequestHandler):
    """Reads a question, and answers with bytes of its server that are no answer, or only half of one."""

    def handle(self):
        self.request.recv(65536)
        self.request.sendall(self.server.text)


def garbled(text):
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Garbled)
    server.daemon_threads, server.text = True, text
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def peek(port, limit, key):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    question = json.dumps({"limit": limit, "key": key, "cost": 1})
    connection.request("POST", "/v1/peek", question, {"content-type": "application/json"})
    return json.load(connection.getresponse())


def taken(port, limit, key):
    """How many units the server counts, once it counts two."""
    until = time.monotonic() + 30
    while True:
        answer = peek(port, limit, key)
        # Each place is an hour behind the one before.
        places = round(answer.get("delay_ms", 0) / 3_600_000)
        if places == 2 or time.monotonic() > until:
            return places
        time.sleep(0.05)


def check(name, place, server, guarded, closed, silent):
    run = command(name, place)

    def app(address, is_open=True, limit="two", timeout=10, token="", counts=0):
        port = free_port()
        variables = {"SERVER": f"http://127.0.0.1:{address}", "LIMIT": limit, "PORT": str(port), "TIMEOUT": str(timeout)}
        return Running(port, run, cwd=place, env={**os.environ, **variables, "TOKEN": token, "OPEN": str(int(is_open)), "COUNTS": str(counts)})

    with app(server) as limited:
        key = f"{name}-alice"
        assert [limited.get(key)[0] for _ in range(2)] == [200, 200]
        status, reason, after = limited.get(key)
        assert (status, reason) == (429, "quota") and 3_000 < int(after) <= 3_600, (status, reason, after)
        assert limited.get(f"{name}-bob")[0] == 200
        assert limited.get("mallory") == (429, "deny-listed", None), limited.get("mallory")
    with app(server, limit="logins", counts=1) as logins:
        key = f"{name}-alice"

        def used():
            """The units in use. A response can come before its unit is given back."""
            until = time.monotonic() + 30
            while (left := peek(server, "logins", key)["remaining"]) < 2 - failed and time.monotonic() < until:
                time.sleep(0.05)
            return 2 - left
        failed = 0
        for wrong in [{}, {}, {}, {"x-wrong": "1"}, {}, {}, {"x-wrong": "1"}]:
            failed += len(wrong)
            assert logins.get(key, **wrong)[0] == (401 if wrong else 200), (wrong, failed)
            assert used() == failed, (used(), failed)
        for wrong in [{}, {"x-wrong": "1"}]:
            assert logins.get(key, **wrong)[:2] == (429, "quota")
        assert used() == 2
    with app(server, limit="rare") as rare:
        # Clients whose timers have 32 bits misread a time of more than 24 days.
        answers = [rare.get(name) for _ in range(2)]
        assert answers == [(200, None, None), (429, "quota", "2000000")], answers
    # The answer is lost after the server has taken a unit. The request is asked again, and counted once.
    lossy = front_of(server)
    lossy.loses = True
    with app(lossy.server_port, is_open=False) as lost:
        answers = [lost.get(f"{name}-lost")[:2] for _ in range(3)]
        assert answers == [(200, None), (200, None), (429, "quota")] and len(lossy.asked) == 4, (answers, lossy.asked)
    with app(server, limit="paced") as paced:
        assert [paced.get(name)[0] for _ in range(3)] == [200, 200, 200]
    # The bucket has one place a minute: a request that came through has a place, and the next one waits until the app is killed.
    with app(server, limit="slow") as slow:
        assert slow.get(name)[0] == 200
        assert slow.waits(name) and taken(server, "slow", name) == 2, "the delay of a leaky bucket is waited for"
    for token, expected in [(TOKEN, (200, None, None)), ("", (500, None, None)), ("wrong", (500, None, None))]:
        with app(guarded, False, token=token) as guard:
            assert guard.get(f"{name}-alice") == expected, (token, guard.get(f"{name}-alice"))
    wrong = [b"what is this?\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"]
    unusable = [(garbled(text), "two", 10) for text in wrong]
    for is_open, expected in [(True, (200, None, None)), (False, (503, "no decision", None))]:
        for address, limit, timeout in [(closed, "two", 10), (silent, "two", 0.1), *unusable]:
            with app(address, is_open, limit, timeout) as failing:
                assert failing.get("alice") == expected, (is_open, address, limit, failing.get("alice"))
        # A wrong name or a missing token is an error, also where requests go on without an answer.
        for address, limit in [(server, "unknown"), (guarded, "two")]:
            with app(address, is_open, limit) as wrong:
                assert wrong.get("alice") == (500, None, None), (is_open, address, limit, wrong.get("alice"))


def main():
    names = sys.argv[1:] or list(APPS)
    install(names)
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as silent:
        scratch = pathlib.Path(scratch)
        (scratch / "rules.yaml").write_text(RULES)
        # It accepts connections, and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        (scratch / "access.yaml").write_text(f"access:\n  - {{name: app, roles: [decide], tokens: ['sha256:{digest}']}}\n")
        ports = [free_port(), free_port()]
        serve = [PROGRAM, "serve", "--admin", "127.0.0.1:0", "--resp", "off", "--rules", scratch / "rules.yaml", "--http"]
        with Running(ports[0], [*serve, f"127.0.0.1:{ports[0]}"]), \
                Running(ports[1], [*serve, f"127.0.0.1:{ports[1]}", "--access", scratch / "access.yaml"]):
            for name in names:
                place = scratch / name
                place.mkdir()
                check(name, place, *ports, free_port(), silent.getsockname()[1])
                print(f"{name}: as it should")


if __name__ == "__main__":
    main()
