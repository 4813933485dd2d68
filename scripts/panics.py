#!/usr/bin/env python3
"""Lists what could panic in the crates that a request goes through, and compares it with panics.txt.

`scripts/panics.py` fails if the code and the list differ, or if an entry has no reason. `--write` writes the list again and
keeps its reasons; a new entry gets an empty one, which somebody must fill in. `unwrap()` and `panic!` are not allowed.

The list has a line for each assertion, `expect` and `unreachable!`, and for each file with indexes their number. Tests, and code
for loom, are left out; so are generated files.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts/panics.txt"
CRATES = "core config limiter redis redis-script headers rules observe service listen envoy resp sentinel server export flow flow-net tower".split()
KINDS = {
    "assert": r"(?<!debug_)\bassert(_eq|_ne)?!\(",
    "expect": r"\.expect\(",
    "unwrap": r"\.unwrap\(\)",
    "panic": r"\b(panic|todo|unimplemented)!\(",
    "unreachable": r"\bunreachable!\(",
    "index": r"(?<![&'])\b[\w]+\[(?!\])|[)\]?]\[(?!\])",
}
FORBIDDEN = {"unwrap", "panic"}
HEADER = """\
# What could panic in the crates that a request goes through, and why it does not. scripts/panics.py checks it and writes it again.
# KIND NUMBER PATH | REASON
"""


def code(path):
    """The lines of a file without tests, comments and texts."""
    in_test = False
    for line in path.read_text().split("\n"):
        if re.match(r"\s*#\[cfg\((all\()?(test|loom)", line):
            in_test = True
        if in_test:
            # The end of an item that began in the first column, or the item of one line.
            if line == "}" or re.match(r"(pub )?(mod|use) .*;$", line):
                in_test = False
            continue
        line = line.strip()
        if line.startswith(("//", "#", "*")):
            continue
        line = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        line = re.sub(r"'(\\.|[^'\\])'", "''", line)
        # Macros that take brackets, such as vec![.
        yield re.sub(r"\w+!\[", "(", line.split(" // ")[0])


def files():
    for crate in CRATES:
        for path in sorted((ROOT / "crates" / crate / "src").rglob("*.rs")):
            if path.parent.name != "pb" and not path.stem.endswith("tests") and path.stem != "model":
                yield path.relative_to(ROOT / "crates")


def found():
    """What there is: (kind, path) and how often."""
    there = {}
    for path in files():
        for line in code(ROOT / "crates" / path):
            for kind, pattern in KINDS.items():
                count = len(re.findall(pattern, line))
                if count:
                    key = (kind, str(path))
                    there[key] = there.get(key, 0) + count
    return there


def listed():
    """What the list has: (kind, path) to the number and the reason."""
    known = {}
    for line in LIST.read_text().split("\n") if LIST.exists() else []:
        if line and not line.startswith("#"):
            what, _, reason = line.partition(" | ")
            kind, count, path = what.split()
            known[kind, path] = (int(count), reason.strip())
    return known


def main():
    there, known = found(), listed()
    if "--write" in sys.argv[1:]:
        lines = [f"{kind} {count} {path} | {known.get((kind, path), (0, ''))[1]}" for (kind, path), count in sorted(there.items())]
        LIST.write_text(HEADER + "\n".join(lines) + "\n")
    known = listed()
    problems = []
    for (kind, path), count in sorted(there.items()):
        if kind in FORBIDDEN:
            problems.append(f"crates/{path}: {kind} is not allowed on a path from a request; return an error")
            continue
        number, reason = known.get((kind, path), (0, ""))
        if number != count:
            problems.append(f"crates/{path}: {count} × {kind}, the list has {number}; check each, then run scripts/panics.py --write")
        elif not reason:
            problems.append(f"crates/{path}: {kind} has no reason in scripts/panics.txt")
    problems += [f"{path}: {kind} is listed but no longer there; run scripts/panics.py --write" for kind, path in known if (kind, path) not in there]
    for problem in problems:
        print(problem)
    print(f"{sum(there.values())} places in {len({path for _, path in there})} files, {len(problems)} problems")
    sys.exit(bool(problems))


main()
