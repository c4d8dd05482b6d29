"""The report of an experiment: one self-contained HTML page with claims, figures and how they came about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from infhess._files import atomic
from infhess.experiments.claims import FAILS, HOLDS, IN_PART, Claim

# Colours of figures as drawn, and the names under which the page has one for light and one for dark.
THEMED = {
    "#222222": "ink",
    "#1f6fb2": "blue",
    "#d9640b": "orange",
    "#8a8a8a": "grey",
    "#0b8f6a": "green",
    "#a8458c": "purple",
}
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --faint: #6663; --blue: #1f6fb2; --orange: #d9640b;
  --grey: #8a8a8a; --green: #0b8f6a; --purple: #a8458c; --good: #0a7a3f; --half: #8a6100; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e4e4e0; --blue: #6db3f2; --orange: #ff9d57;
  --grey: #9a9a9a; --green: #4fd1a5; --purple: #e08cc8; --good: #5fd38d; --half: #e6b450; --bad: #ff8a80 } }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.5rem; line-height: 1.2 } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-size: .92rem } th { text-align: left }
th, td { padding: .5rem .6rem; border-bottom: 1px solid var(--faint); vertical-align: top; overflow-wrap: anywhere }
.holds { color: var(--good) } .in-part { color: var(--half) } .fails { color: var(--bad) }
.claims td:last-child { white-space: nowrap; font-weight: 600 }
figure { margin: 1rem 0; overflow-x: auto } figure svg { width: 100%; height: auto; min-width: 34rem }
figcaption, .why { font-size: .9rem; opacity: .85 } code { font-size: .9em }
@media (max-width: 40rem) { table, tbody, tr, td { display: block } thead { display: none } td { border: 0; padding: .2rem 0 }
  tr { border-bottom: 1px solid var(--faint); padding: .6rem 0 } }
"""
CLASSES = {HOLDS: "holds", IN_PART: "in-part", FAILS: "fails"}


@dataclass(frozen=True)
class Figure:
    """A drawing on disk, as SVG, and what it shows."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Page:
    """What a report says."""

    title: str
    lead: str
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    notes: Sequence[str]
    tables: Sequence[tuple[str, Sequence[Sequence[str]]]] = ()

    def write(self, path: Path) -> Path:
        """As HTML, whole or not at all."""
        with atomic(path) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")
        return path

    def html(self) -> str:
        """Self-contained: nothing is loaded from elsewhere."""
        parts = [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p>",
            claims_table(self.claims) if self.claims else "",
            *(table(title, rows) for title, rows in self.tables),
            *(drawing(figure) for figure in self.figures),
            "<h2>How</h2><ul>",
            *(f"<li>{escape(note)}</li>" for note in self.notes),
            "</ul></main></body></html>\n",
        ]
        return "\n".join(part for part in parts if part)


def claims_table(claims: Sequence[Claim]) -> str:
    """Claim by claim."""
    rows = [
        f"<tr><td>{escape(c.paper)}</td><td>{escape(c.found)}"
        + (f'<p class="why">{escape(c.why)}</p>' if c.why else "")
        + f'</td><td class="{CLASSES[c.verdict]}">{c.verdict}</td></tr>'
        for c in claims
    ]
    head = "<thead><tr><th>The paper says</th><th>Found here</th><th>Verdict</th></tr></thead>"
    return f"<h2>Claim by claim</h2><table class=claims>{head}<tbody>{''.join(rows)}</tbody></table>"


def table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def drawing(figure: Figure) -> str:
    """The figure in the page's own colours."""
    svg = figure.path.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :]
    for colour, name in THEMED.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r"fill: #ffffff", "fill: none", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(figure.caption, quote=True)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(figure.caption)}</figcaption></figure>"
