#!/usr/bin/env python3
"""Builds the test programs of the workspace, and runs them two at a time, the longest first.

programs.py [--package NAME] [--program NAME] [--alone] [--version] [-- ARGUMENT...]

--package NAME   only those of crates/NAME
--program NAME   only those of this name, such as `integration`
--alone          one at a time
--version        only those whose result may depend on the version of the store, with a quarter of the random steps
ARGUMENT         is passed to each program: part of a test's name, --ignored, --skip NAME

Prints the output of each program when it has ended, as `cargo test` does. A program that runs for longer than twenty minutes is killed
and counts as failed. Up to three tests that failed run once more, each alone: `again: NAME` says that one passed only then. The exit code
is 1 if a program failed.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ["cargo", "test", "--workspace", "--all-features", "--locked", "--no-run"]
LONGEST_SECONDS = 1200
# More failures than this are no chance.
MOST_AGAIN = 3
# These measure how long answers take while the machine is otherwise idle, or use all of it, so that no other program runs then.
ALONE = {"cli/attack", "redis/cluster", "redis/distance", "redis/roll_outs", "redis/tenants_leased", "server/attack",
         "server/outage"}
# These are about a store that is away or far, about rules that change, and about the client's own side. They run with one version of
# it.
CLIENT = {"redis/chaos", "redis/client_side", "redis/distance", "redis/no_allocation", "redis/roll_outs", "redis/tenants_leased"}
# These wait more than they compute: so many of their tests run at a time.
WAIT = {"cli/envoy_proxy": 4}
# The steps of a random test with another version, a quarter of the usual ones.
STEPS_OF_VERSION = 5_000
# Those that run for longest begin first, so that none of them is left over at the end.
LONG = ["redis/chaos", "server/integration", "redis/differential", "redis/integration", "server/grpc", "redis/client_side", "cli/integration",
        "cli/envoy_proxy", "core/integration", "flow/adaptive_simulation", "core/promises", "server/sentinel", "service/tidegate_service"]


class Program:
    def __init__(self, built):
        self.path = built["executable"]
        self.directory = pathlib.Path(built["manifest_path"]).parent
        self.name = f"{self.directory.name}/{built['target']['name']}"
        self.environment = {"RUST_TEST_THREADS": str(WAIT[self.name])} if self.name in WAIT else {}

    def run(self, arguments):
        """Returns the exit code and the output."""
        began = time.monotonic()
        environment = {**os.environ, **self.environment, "CARGO_MANIFEST_DIR": str(self.directory), "LD_LIBRARY_PATH": libraries()}
        child = subprocess.Popen(
            [self.path, *arguments], cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            output += f"\nerror: {self.name} ran for longer than {LONGEST_SECONDS} seconds\n".encode()
        self.seconds = time.monotonic() - began
        return child.returncode, output.decode(errors="replace")


def libraries():
    """Where the compiler's own libraries are, which the tests of macros need."""
    found = subprocess.run(["rustc", "--print", "target-libdir"], capture_output=True, text=True, check=True).stdout.strip()
    return ":".join(filter(None, [found, os.environ.get("LD_LIBRARY_PATH")]))


def built(package):
    """The test programs, after they were built."""
    run = subprocess.run([*BUILD, "--message-format=json-render-diagnostics"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(run.returncode)
    messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    programs = [
        Program(message)
        for message in messages
        if message.get("executable") and message["profile"]["test"] and package in (None, of_package(message))
    ]
    if not programs:
        sys.exit(f"programs.py: no test program was built of {package or 'the workspace'}")
    return programs


def of_package(message):
    """The name of the package, as in its manifest's directory: `redis` of crates/redis."""
    return pathlib.Path(message["manifest_path"]).parent.name


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--package")
    parser.add_argument("--program")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    programs = [
        program
        for program in built(options.package)
        if not (options.version and program.name in CLIENT) and options.program in (None, program.name.split("/")[1])
    ]
    if not programs:
        sys.exit(f"programs.py: no test program is called {options.program}")
    if options.version:
        for program in programs:
            program.environment["TIDEGATE_STEPS"] = str(STEPS_OF_VERSION)
    programs.sort(key=lambda program: LONG.index(program.name) if program.name in LONG else len(LONG))
    failed = []

    def report(program, result):
        code, output = result
        print(f"     Running {program.name} ({program.seconds:.0f} s)\n{output}", flush=True)
        if code != 0:
            # 101: tests failed; anything else is a crash.
            failed.append((program, [] if code != 101 else re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", output, re.MULTILINE)))

    together = [] if options.alone else [program for program in programs if program.name not in ALONE]
    # Three at a time take as long, and tests that measure times fail.
    with ThreadPoolExecutor(2) as pool:
        running = {pool.submit(program.run, options.arguments): program for program in together}
        for ended in as_completed(running):
            report(running[ended], ended.result())
    for program in programs:
        if program not in together:
            report(program, program.run(options.arguments))
    again = sum(len(names) for _, names in failed) <= MOST_AGAIN
    failed = [program.name for program, names in failed if not (again and names and all([passes(program, name) for name in names]))]
    for name in failed:
        print(f"error: {name} failed")
    sys.exit(bool(failed))


def passes(program, name):
    """Whether a test that failed passes alone."""
    code, output = program.run(["--exact", "--include-ignored", name])
    if code == 0 and "\ntest result: ok. 1 passed;" in output:
        print(f"again: {name} ({program.name})")
        return True
    # Its first failure is counted already.
    print(f"     Running {name} again\n{output.replace('test result:', 'result:')}", flush=True)
    return False


main()
