#!/usr/bin/env python3
"""Counts phrases that hide who does what, in comments, pages, help texts and error messages.

usage: scripts/style.py [PLACE...]      without a place: all of them, as scripts/test.sh does

A crate, the book, the benches and each page at the root may have one hit per 1,000 words; the README, the texts of the command line
and `#[error]` messages none. If a place has more, its hits are printed. Rewrite the whole sentence: its subject is a role (client,
operator, caller) or a thing that exists in the code, and its verb says what happens.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 1.0  # hits per 1,000 words
PHRASES = {
    "a pronoun for a role": r"\b(?:who|what)ever\b|\b(?:no|some|any|every)body\b",
    "a thing that speaks": r"\b(?:tells?|told)\b|\bhears?\b",
    "no or none as the predicate": r"\b(?:is|are) (?:no|none) (?!longer\b|more\b)\w",
    "where for if": r"`None` where\b|[,;] where (?:it|there|they|nobody|no|one|the)\b",
    "beside": r"\bbeside\b",
    "its own": r"\bof (?:its|their|our|your) own\b",
    "an old adverb": r"\b(?:anew|meanwhile|of late|for good|for want of)\b",
    "this many": r"\b(?:so|this) (?:many|much)\b(?! that\b)",
    "comes of": r"\b(?:comes?|came|bec[oa]mes?) of\b",
    "a clause as the subject": r"(?:^|[.:;] )What (?!if\b|is [^.]*\?)\w",
}
ERROR = re.compile(r'#\[error\(\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)
# The texts that clap prints below the options: `const EXAMPLES: &str = "\`, and the lines up to its end.
HELP = re.compile(r'^\s*(?:pub(?:\([a-z]+\))? )?const \w+: &str =\s*"\\?\n(.*?)";$', re.MULTILINE | re.DOTALL)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def comments(text):
    for number, line in enumerate(text.splitlines(), 1):
        if comment := re.match(r"\s*//[/!]?\s?(.*)", line):
            yield number, comment[1]


def strings(pattern, text):
    for found in pattern.finditer(text):
        first = line_of(text, found.start(1))
        for number, line in enumerate(found[1].splitlines()):
            yield first + number, line


def page(text):
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"^(?:\s*(?:[*>-]|#+|\d+\.|\|))*\s*", "", line)


class Count:
    def __init__(self):
        self.words = 0
        self.hits = []

    def add(self, path, lines):
        for number, line in lines:
            words = re.sub(r"`[^`]*`|(?<=\])\([^)]*\)", "`x`", line)
            self.words += len(words.split())
            for phrase, pattern in PHRASES.items():
                if re.search(pattern, words):
                    self.hits.append(f"{path.relative_to(ROOT)}:{number}: {phrase}: {line.strip()}")

    def rate(self):
        return 1_000 * len(self.hits) / max(self.words, 1)


def sources(folder):
    return sorted(path for path in folder.rglob("*.rs") if not {"target", "tests"} & set(path.relative_to(ROOT).parts))


def pages(folder):
    return sorted(path for path in folder.rglob("*.md") if not path.is_symlink() and "target" not in path.parts)


def places():
    """The name of each place, its count, and its allowed rate."""
    errors, help_texts = Count(), Count()
    for crate in [*sorted((ROOT / "crates").iterdir()), ROOT / "docs", ROOT / "bench", ROOT / "packaging"]:
        count = Count()
        for path in sources(crate):
            text = path.read_text()
            count.add(path, comments(text))
            errors.add(path, strings(ERROR, text))
            if crate.name == "cli" and "src" in path.parts:
                help_texts.add(path, comments(text))
                help_texts.add(path, strings(HELP, text))
        for path in sorted((crate / "src").rglob("*.txt")):
            help_texts.add(path, enumerate(path.read_text().splitlines(), 1))
        for path in pages(crate):
            count.add(path, page(path.read_text()))
        yield str(crate.relative_to(ROOT)), count, ALLOWED
    for path in sorted(ROOT.glob("*.md")):
        count = Count()
        count.add(path, page(path.read_text()))
        yield path.name, count, 0 if path.name == "README.md" else ALLOWED
    yield "command line", help_texts, 0
    yield "#[error]", errors, 0


def main():
    wanted = sys.argv[1:]
    all_places = list(places())
    if unknown := set(wanted) - {name for name, _, _ in all_places}:
        sys.exit(f"scripts/style.py: no place is called {', '.join(sorted(unknown))}: {', '.join(name for name, _, _ in all_places)}")
    failed = False
    for name, count, allowed in all_places:
        if wanted and name not in wanted:
            continue
        is_over = count.rate() > allowed
        failed |= is_over
        print(f"{name:22} {count.words:6} words, {count.rate():.2f} hits per 1,000 (at most {allowed})")
        if is_over or wanted:
            print(*(f"    {hit}" for hit in count.hits), sep="\n")
    if failed:
        sys.exit("rewrite these sentences: CONTRIBUTING.md, Words")


main()
