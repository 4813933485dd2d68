"""Installs client libraries of several languages, and builds the programs that use them."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Every version in one place.
VERSIONS = json.loads((HERE / "versions.json").read_text())
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>clients</groupId><artifactId>clients</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
# What each language needs here.
NEEDS = ("npm", "go", "mvn", "cargo")


def named(group):
    """The version of each package, by the name that the tables show."""
    shown = {
        "python": lambda name: f"{name} (Python)",
        "node": lambda name: f"{name} (Node)",
        "go": lambda name: f"{name.removeprefix('github.com/')} (Go)",
        "java": lambda name: f"{name.split(':')[1]} (Java)",
        "rust": lambda name: f"{name} (Rust)",
    }
    return {shown[language](name): version for language, all in VERSIONS[group].items() for name, version in all.items()}


def programs(group, folder, source):
    """The commands that run the programs `source` names, for each language but Rust that this machine has."""
    folder, versions = Path(folder), VERSIONS[group]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    packages = [f"{name}=={version}" for name, version in versions["python"].items()]
    subprocess.run([folder / "venv/bin/pip", "install", "--quiet", *packages], check=True)
    yield [folder / "venv/bin/python", source.with_suffix(".py")]
    if "node" in versions and shutil.which("npm"):
        (folder / "package.json").write_text("{}")
        shutil.copy(source.with_suffix(".mjs"), folder)
        packages = [f"{name}@{version}" for name, version in versions["node"].items()]
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *packages], cwd=folder, check=True)
        # Some clients need a newer one than the machine may have; it is a package, too.
        own = folder / "node_modules/.bin/node"
        yield [own if own.exists() else "node", folder / source.with_suffix(".mjs").name]
    if "go" in versions and shutil.which("go"):
        module = folder / "module"
        module.mkdir()
        shutil.copy(source.with_suffix(".go"), module / "main.go")
        environment = {**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
        subprocess.run(["go", "mod", "init", "clients"], cwd=module, check=True, capture_output=True)
        for name, version in versions["go"].items():
            subprocess.run(["go", "get", f"{name}@{version}"], cwd=module, check=True, capture_output=True, env=environment)
        subprocess.run(["go", "build", "-o", folder / "clients-go", "."], cwd=module, check=True, env=environment)
        yield [folder / "clients-go"]
    if "java" in versions and shutil.which("mvn"):
        java, program = folder / "java", source.with_name(source.name.capitalize()).with_suffix(".java")
        java.mkdir()
        one = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
        needs = "".join(one.format(*name.split(":"), version) for name, version in versions["java"].items())
        (java / "pom.xml").write_text(POM.format(needs))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=java, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["javac", "-nowarn", "-XDsuppressNotes", "-cp", "lib/*", "-d", ".", program], cwd=java, check=True)
        yield ["java", "-cp", f"{java}:{java}/lib/*", program.stem]


def cargo(folder, manifest, source, lock=None):
    """The program that Cargo builds of a file, with this manifest and perhaps the versions of a lock file."""
    rust = Path(folder) / "rust"
    (rust / "src").mkdir(parents=True)
    shutil.copy(source, rust / "src" / "main.rs")
    (rust / "Cargo.toml").write_text(manifest)
    if lock:
        shutil.copy(lock, rust)
    # The target of a caller's environment would outlive the folder.
    subprocess.run(["cargo", "build", "--quiet", "--target-dir", "target"], cwd=rust, check=True)
    return rust / "target/debug/clients"


def compare(page, name, lines, wrong):
    """Compares the table of a script in a page of the book, or writes it; and ends if anything was wrong."""
    table, before = "\n".join(lines), f"<!-- the table of {name} -->\n"
    text = page.read_text()
    head, rest = text.split(before, 1)
    _, tail = rest.split("<!-- end -->", 1)
    written = f"{head}{before}{table}\n<!-- end -->{tail}"
    if "--write" in sys.argv:
        page.write_text(written)
    elif written != text and all(map(shutil.which, NEEDS)):
        wrong.append(f"the table in {page.name} is not the one above: write it with --write")
    if wrong:
        sys.exit("\n".join(wrong))
