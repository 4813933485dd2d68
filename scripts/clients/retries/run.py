#!/usr/bin/env python3
"""Runs HTTP and gRPC clients that retry by themselves against a service behind Tidegate's layer.

usage: run.py [--write]

Each client asks three times, with its options as they are, but for gRPC's, which need a retry policy: admitted at once; denied with a
wait, after which its own retry is admitted; and a cost for which no wait helps. The table says how many requests that took, by the
service's count: 2 for the second question, so that the client waited as long as it was asked to. It is compared with the one in
docs/src/clients.md; --write replaces it. It needs Rust, Python's venv, and for their clients Node with npm, Go, and Java with Maven.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import packages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
PAGE = ROOT / "docs" / "src" / "clients.md"
CARGO = f"""[package]
name = "clients"
version = "0.0.0"
edition = "2024"

[dependencies]
axum = {{ version = "0.8", default-features = false, features = ["http1", "http2", "json", "tokio"] }}
http = "1"
serde_json = "1"
tidegate-limiter = {{ path = "{ROOT}/crates/limiter" }}
tidegate-tower = {{ path = "{ROOT}/crates/tower", features = ["grpc", "vendors"] }}
tokio = {{ version = "1", features = ["macros", "net", "rt-multi-thread"] }}
tonic = {{ version = "0.14", default-features = false, features = ["router"] }}
tonic-health = "0.14"

[profile.dev]
debug = false

[workspace]
"""
# No standard field forbids a retry. Only these clients have one that does.
OBEY = ("openai", "anthropic", "grpc")


def rows(folder):
    service = packages.cargo(folder, CARGO, HERE / "service.rs", ROOT / "Cargo.lock")
    serving = subprocess.Popen([service], stdout=subprocess.PIPE, text=True)
    try:
        port = serving.stdout.readline().strip()
        for command in packages.programs("retries", folder, HERE / "retries"):
            ran = subprocess.run([*command, port], stdout=subprocess.PIPE, text=True, timeout=300)
            yield from (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{"))
            if ran.returncode != 0:
                sys.exit(f"{command[-1]} ended with {ran.returncode}")
    finally:
        serving.kill()
        serving.wait()


def main():
    versions = packages.named("retries")
    lines = ["| client | version | requests until admitted | requests if no wait helps |", "|---|---|---|---|"]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(folder):
            client, retried, hopeless = row["client"], row["retried"], row["hopeless"]
            lines.append(f"| {client} | {versions[client]} | {retried} | {hopeless} |")
            print(lines[-1], flush=True)
            if retried != 2:
                wrong.append(f"{client}: {retried} requests until it was admitted, not 2")
            if hopeless != 1 and any(name in client for name in OBEY):
                wrong.append(f"{client}: {hopeless} requests although no wait helps")
    packages.compare(PAGE, "scripts/clients/retries/run.py", lines, wrong)
    print("every client's first retry is admitted")


main()
