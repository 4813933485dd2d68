#!/usr/bin/env python3
"""Checks that a crate depends only on crates below it, that the modules of a crate import only modules below them, and that no modules
import each other in a circle. A name that a crate's root exports counts as its module.

usage: scripts/layers.py
"""
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The crates from the top layer to the bottom one. Crates of one layer do not depend on each other.
CRATES = [
    ["cli"],
    ["server"],
    ["envoy", "resp", "sentinel"],
    ["export", "listen"],
    ["service"],
    ["observe"],
    ["rules"],
    ["sim", "tidegate"],
    ["tower"],
    ["redis"],
    ["redis-script"],
    ["limiter"],
    ["flow-net"],
    ["flow"],
    ["chart", "config", "headers", "macros"],
    ["core"],
]
# The modules of each crate's root, from the top layer to the bottom one. A module of the root that is in no layer (errors, counters,
# deadlines, threads) may be imported from everywhere, and imports none of the layers.
LAYERS = {
    "server": [["serve"], ["control"], ["edges"]],
    "envoy": [["grpc", "xds"], ["descriptors"], ["config"]],
    "sentinel": [["programs", "token_server"], ["cluster", "stats"]],
    "listen": [["connections", "security"], ["credentials"], ["access", "descriptors", "socket", "tls"]],
    "export": [["statsd", "telemetry", "webhook"], ["agent"]],
    "service": [["decide", "flow"], ["digest"]],
    "observe": [["usage", "what_if"], ["heavy", "history", "trace"], ["metrics"], ["audit", "latency", "reached"], ["files", "shares", "shown"]],
    "rules": [["file", "import", "reload"], ["parse"], ["options", "sharing", "traffic"], ["shares"], ["spec"], ["tenants"], ["error", "files", "keys"]],
    "flow-net": [["report", "sentinel", "sources"], ["agent", "host"]],
    "flow": [["metric_log", "sources"], ["call"], ["rules"], ["machine", "stats"]],
    "redis": [
        ["ad_hoc", "limit", "orders", "rules", "store"],
        ["batch"],
        ["lease"],
        ["health"],
    ],
    "redis-script": [["script"], ["connection"]],
}
# Modules that import each other: a crate may have only these circles.
CIRCLES = {
    "core": "algorithm policy spec",
    # A store keeps the lines of those who wait, and a line the limits that decide on it.
    "redis": "limit store",
}


def parts(group):
    """The items of a list between braces, at its own depth."""
    depth, item = 0, ""
    for c in group:
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            yield item.strip()
            item = ""
        else:
            item += c
    if item.strip():
        yield item.strip()


def leaves(tree):
    """The paths that a `use` imports."""
    prefix, brace, rest = tree.partition("{")
    if not brace:
        return [re.sub(r"\s+as\s.*", "", tree.strip())]
    return [prefix.strip() + leaf for part in parts(rest[: rest.rindex("}")]) for leaf in leaves(part)]


def imports(text):
    """The paths behind `crate::` in a file, without its comments."""
    text = re.sub(r"//[^\n]*", "", text)
    uses = re.compile(r"\buse\s+crate::([^;]+);")
    for tree in uses.findall(text):
        yield from leaves(tree)
    yield from re.findall(r"\bcrate::([\w:]+)", uses.sub("", text))


def exports(text):
    """The names that the crate's root exports, each with its module."""
    text = re.sub(r"//[^\n]*", "", text)
    found = {}
    for tree in re.findall(r"\bpub(?:\([^)]*\))? use\s+([^;]+);", text):
        for leaf in leaves(tree):
            path = leaf.removeprefix("self::").split("::")
            found[path[-2] if path[-1] == "self" else path[-1]] = path[0]
    return found


def circles(graph):
    """The groups of modules that can reach each other."""
    reached = {}
    for start in graph:
        seen, todo = set(), [start]
        while todo:
            for target in graph.get(todo.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        reached[start] = seen
    return {
        frozenset(other for other in graph if other in reached[one] and one in reached[other])
        for one in graph
        if one in reached[one]
    }


def crates():
    """What is wrong with the dependencies of the crates."""
    layer = {crate: at for at, row in enumerate(CRATES) for crate in row}
    wrong = []
    for manifest in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        crate, text = manifest.parent.name, tomllib.loads(manifest.read_text())
        if text["package"].get("publish") is False:
            continue
        if crate not in layer:
            sys.exit(f"{crate} is in no layer: add it to CRATES in scripts/layers.py")
        wrong += [
            f"crates/{crate}/Cargo.toml: {name} is not below `{crate}`"
            for name in text.get("dependencies", {})
            if name.startswith("tidegate-") and layer[name.removeprefix("tidegate-")] <= layer[crate]
        ]
    return wrong


def main():
    wrong, looked = crates(), 0
    for source in sorted((ROOT / "crates").glob("*/src")):
        crate = source.parent.name
        layers = LAYERS.get(crate, [])
        layer = {module: at for at, modules in enumerate(layers) for module in modules}
        modules = {path.name.removesuffix(".rs") for path in source.iterdir()} - {"lib", "main"}
        if missing := sorted(set(layer) - modules):
            sys.exit(f"{crate} has no module {', '.join(missing)}: change LAYERS in scripts/layers.py")
        root = next(path for path in (source / "lib.rs", source / "main.rs") if path.exists())
        exported, graph = exports(root.read_text()), {module: set() for module in modules}
        for path in sorted(source.rglob("*.rs")):
            own = path.relative_to(source).parts[0].removesuffix(".rs")
            if path == root:
                continue
            for name in imports(path.read_text()):
                looked += 1
                first = name.split("::")[0]
                target = first if first in modules else exported.get(first)
                if target in modules and target != own:
                    graph[own].add(target)
                if target in layer and layer[target] < layer.get(own, len(layers)):
                    wrong.append(f"{path.relative_to(ROOT)}: crate::{name} is above `{own}`")
        known = frozenset(CIRCLES.get(crate, "").split())
        found = circles(graph)
        wrong += [f"crates/{crate}: {', '.join(sorted(circle))} import each other" for circle in found if circle != known]
        if known and known not in found:
            wrong.append(f"crates/{crate}: the circle in CIRCLES of scripts/layers.py is gone: remove it there")
    if looked < 1000:
        sys.exit(f"only {looked} imports were found: scripts/layers.py does not read them any more")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{looked} imports lead down")


main()
