#!/usr/bin/env python3
"""Draws the charts of bench/figures.json as SVG.

  bench/chart.py            writes them
  bench/chart.py --check    fails if one is not current

Either way it fails if a figure is on none of the pages with figures.
"""

import json
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, LEFT, RIGHT, BAR, GAP = 720, 250, 90, 18, 6

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1a2129; }
.title { font-size: 16px; font-weight: 600; }
.group { font-weight: 600; }
.note { font-size: 11px; fill: #55606c; }
.tidegate { fill: #4a90bd; }
.other { fill: #a3afba; }
.back { fill: #fbfcfd; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaee; }
  .note { fill: #a3afba; }
  .back { fill: #12171c; }
}
""".strip()


def wrapped(text, most):
    """The text in lines of at most so many characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def draw(chart):
    parts, y = [], 30
    parts.append(f'<text class="title" x="12" y="{y}">{escape(chart["title"])}</text>')
    most = max(bar["value"] for group in chart["groups"] for bar in group["bars"])
    told = []
    for group in chart["groups"]:
        y += 32
        parts.append(f'<text class="group" x="12" y="{y}">{escape(group["name"])}</text>')
        y += 10
        for bar in group["bars"]:
            width = max(1, round(bar["value"] / most * (WIDTH - LEFT - RIGHT)))
            parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar["name"])}</text>')
            parts.append(f'<rect class="{escape(bar["of"])}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}"/>')
            parts.append(f'<text x="{LEFT + width + 6}" y="{y + 14}">{bar["value"]:,}</text>')
            told.append(f'{group["name"]}, {bar["name"]}: {bar["value"]:,}')
            y += BAR + GAP
    y += 8
    for line in wrapped(chart["note"], 110):
        y += 15
        parts.append(f'<text class="note" x="12" y="{y}">{escape(line)}</text>')
    y += 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-labelledby="t d">\n'
        f'<title id="t">{escape(chart["title"])}</title>\n'
        f'<desc id="d">{escape("; ".join(told))} {escape(chart["unit"])}</desc>\n'
        f"<style>\n{STYLE}\n</style>\n"
        f'<rect class="back" width="{WIDTH}" height="{y}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def untold(charts):
    """Values that none of the pages with figures tells."""
    pages = ("bench/README.md", "docs/src/scale.md", "docs/src/sizing.md")
    told = "".join((ROOT / page).read_text() for page in pages)
    values = {bar["value"] for chart in charts for group in chart["groups"] for bar in group["bars"]}
    return sorted(value for value in values if f"{value:,}" not in told)


def main():
    stale = []
    charts = json.loads((ROOT / "bench/figures.json").read_text())["charts"]
    if values := untold(charts):
        sys.exit(f"neither bench/README.md nor docs/src/scale.md tells these figures: {values}")
    for chart in charts:
        path, svg = ROOT / chart["file"], draw(chart)
        if "--check" not in sys.argv:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            stale.append(chart["file"])
    if stale:
        sys.exit(f"not current, run bench/chart.py: {', '.join(stale)}")


main()
