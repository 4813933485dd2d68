#!/usr/bin/env python3
"""Checks that the modules of a crate import only modules below them.

usage: scripts/layers.py

A module of the crate's root that is in no layer (errors, counters, deadlines, threads) may be imported from everywhere, and imports none of the
layers.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The modules of each crate's root, from the top layer to the bottom one.
LAYERS = {
    "server": [["serve"], ["control"], ["edges"], ["decide"], ["envoy"], ["listen"], ["observe"], ["rules"]],
    "flow": [["report", "sentinel"], ["metric_log", "sources"], ["call"], ["rules"], ["machine", "stats"]],
    "redis": [
        ["ad_hoc", "limit", "orders", "rules", "store"],
        ["batch"],
        ["lease"],
        ["health"],
        ["script"],
        ["connection"],
    ],
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


def main():
    wrong, looked = [], 0
    for crate, layers in LAYERS.items():
        source = ROOT / "crates" / crate / "src"
        layer = {module: at for at, modules in enumerate(layers) for module in modules}
        missing = [module for module in layer if not (source / module).exists() and not (source / f"{module}.rs").exists()]
        if missing:
            sys.exit(f"{crate} has no module {', '.join(missing)}: change LAYERS in scripts/layers.py")
        exported = exports((source / "lib.rs").read_text())
        for path in sorted(source.rglob("*.rs")):
            own = path.relative_to(source).parts[0].removesuffix(".rs")
            if own == "lib":
                continue
            for name in imports(path.read_text()):
                looked += 1
                first = name.split("::")[0]
                target = layer.get(first, layer.get(exported.get(first)))
                if target is not None and target < layer.get(own, len(layers)):
                    wrong.append(f"{path.relative_to(ROOT)}: crate::{name} is above `{own}`")
    if looked < 500:
        sys.exit(f"only {looked} imports were found: scripts/layers.py does not read them any more")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{looked} imports lead down")


main()
