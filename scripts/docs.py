#!/usr/bin/env python3
"""Checks the book and the pages beside it without a network: every page is in SUMMARY.md, every link and picture leads to a file that is
there, every #part to a heading, and each test that is named is there, as is each message. Building the book itself needs mdbook: cargo install mdbook && mdbook build docs."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs/src"
PAGES = sorted(BOOK.glob("*.md")) + [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "bench/README.md")]
PAGES += sorted((ROOT / "docs/decisions").glob("*.md"))


def prose(text):
    """The text without blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def anchors(path):
    """The parts of a page that a link can name, as GitHub and mdbook make them."""
    heads = re.findall(r"^#+ +(.*)$", prose(path.read_text()), flags=re.M)
    plain = [re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", head) for head in heads]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in plain}


wrong = []
listed = set(re.findall(r"\]\(([^)]+\.md)\)", (BOOK / "SUMMARY.md").read_text()))
there = {page.name for page in BOOK.glob("*.md")} - {"SUMMARY.md"}
wrong += [f"docs/src/SUMMARY.md names {name}, which is not there" for name in sorted(listed - there)]
wrong += [f"docs/src/{name} is not in SUMMARY.md" for name in sorted(there - listed)]
count = 0
for page in PAGES:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        count += 1
        path, _, part = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        where = page.relative_to(ROOT)
        if not file.exists():
            wrong.append(f"{where}: {target} is not there")
        elif part and file.suffix == ".md" and part not in anchors(file):
            wrong.append(f"{where}: {target} names no heading")
        elif page.parent == BOOK and BOOK not in file.parents:
            # In the book such a link would lead nowhere.
            wrong.append(f"{where}: {target} leads out of the book")
# A page that names a test as its proof names one that is there.
tests = "".join(path.read_text() for path in ROOT.glob("crates/*/tests/**/*.rs"))
for page in sorted(BOOK.glob("*.md")):
    for name in re.findall(r"`((?:a|an|the|near|nginx|data|scripts|servers)_[a-z_]{15,})`", page.read_text()):
        if f"fn {name}(" not in tests:
            wrong.append(f"{page.relative_to(ROOT)}: there is no test {name}")
# docs.rs shows everything that a feature adds, with the feature's name.
for manifest in sorted(ROOT.glob("crates/*/Cargo.toml")):
    package, library = tomllib.loads(manifest.read_text()), manifest.parent / "src/lib.rs"
    if package["package"].get("publish") is False or not library.exists() or not set(package.get("features", {})) - {"default", "servers"}:
        continue
    shown = package["package"].get("metadata", {}).get("docs", {}).get("rs", {})
    if not shown.get("all-features") or "docsrs" not in shown.get("rustdoc-args", []):
        wrong.append(f"{manifest.relative_to(ROOT)}: [package.metadata.docs.rs] does not show all features with --cfg docsrs")
    if "#![cfg_attr(docsrs, feature(doc_cfg))]" not in library.read_text():
        wrong.append(f"{library.relative_to(ROOT)}: docs.rs names no features without #![cfg_attr(docsrs, feature(doc_cfg))]")
# A message that the page of messages quotes is one of the program, but for the lines that break it.
source = "".join(path.read_text() for path in ROOT.glob("crates/*/src/**/*.rs"))
source = re.sub(r"\\\n\s*", "", source)
page = BOOK / "troubleshooting.md"
messages = re.findall(r'"([^"]+)"', prose(page.read_text()))
wrong += [f"{page.relative_to(ROOT)}: no message says {message}" for message in messages if message not in source]
if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(PAGES)} pages, {count} links")
