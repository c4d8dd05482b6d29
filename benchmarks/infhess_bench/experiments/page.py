"""The report of an experiment: one self-contained HTML page with figures, claims, tables and methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infhess_bench.experiments import plots
from infhess_bench.harness import Cells, markdown, plain, shown, write, written

if TYPE_CHECKING:
    from jinja2 import Environment

# Colours in figures as drawn, and their names in the page, which has a light and a dark value for each.
THEMED = {plots.INK: "ink", plots.BLUE: "blue", plots.ORANGE: "orange", plots.GREY: "grey", plots.GREEN: "green"}
THEMED |= {plots.PURPLE: "purple"}
LEGIBLE = 1.1  # pixels per point: text of 9 points is about 10 pixels high
HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
CLASSES = {HOLDS: "holds", IN_PART: "in-part", FAILS: "fails"}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the numbers found, a verdict, and the reason for a deviation."""

    paper: str
    found: str
    verdict: str
    why: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing on disk, as SVG, and what it shows."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Page:
    """The content of a report."""

    title: str
    lead: str
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    notes: Sequence[str]
    tables: Sequence[tuple[str, Cells]] = ()

    def html(self) -> str:
        """The HTML, self-contained: nothing is loaded from elsewhere."""
        template = templates(escape=True).get_template("report.html")
        return plain(template.render(page=self, classes=CLASSES, drawn=drawn, sections=self.sections())) + "\n"

    def write(self, folder: Path, heading: str = "### ", **files: Cells) -> str:
        """report.html; the first tables of the page in Markdown by the names in `files`, which are returned; table.md."""
        rest = self.tables[len(files) :]
        write(folder / "table.md", "\n".join(f"{heading}{title}\n\n{markdown(cells)}" for title, cells in rest))
        write(folder / "report.html", self.html())
        return written(folder, **files)

    def sections(self) -> list[str]:
        """The entries of the table of contents."""
        parts = [("Figures", self.figures), ("Claim by claim", self.claims)]
        return [title for title, has in parts if has] + [title for title, _ in self.tables] + ["How"]


def verdict(*holds: bool) -> str:
    """Whether all, some or none of the checks hold."""
    return HOLDS if all(holds) else IN_PART if any(holds) else FAILS


def claim_list(claims: Sequence[Claim]) -> str:
    """Claims in Markdown: what the paper says, the verdict, and what was found; too long for cells of a table."""
    texts = (f"**{c.paper}** *{c.verdict.capitalize()}.*\n{c.found} {c.why}".strip() for c in claims)
    return plain("\n".join(f"{text}\n" for text in texts))


def claims(name: str, verdicts: Sequence[str], **values: Any) -> list[Claim]:
    """Claims from a template with these values: the paper -- found here -- why, with == between claims."""
    texts = rendered(f"{name}-claims", verdicts=verdicts, **values).split("==")
    parts = [[" ".join(words.split()) for words in text.split("--")] for text in texts]
    return [Claim(paper, found, held, *why) for (paper, found, *why), held in zip(parts, verdicts, strict=True)]


def notes(name: str, **values: Any) -> list[str]:
    """The paragraphs of a template with these values."""
    return [" ".join(paragraph.split()) for paragraph in rendered(name, **values).split("\n\n") if paragraph.strip()]


def rendered(name: str, **values: Any) -> str:
    """A text from its template."""
    return templates(escape=False).get_template(f"{name}.txt").render(values)


def templates(*, escape: bool) -> Environment:
    """The templates of this package; a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(loader=PackageLoader("infhess_bench.experiments"), autoescape=escape, undefined=StrictUndefined)
    found.trim_blocks = found.lstrip_blocks = True
    found.filters |= {"g2": "{:.2g}".format, "points": shown}
    return found


def drawn(figure: Figure) -> str:
    """The SVG in the page's own colours; on a phone it scrolls instead of shrinking."""
    svg = figure.path.read_text(encoding="utf-8")
    size = re.search(r'<svg [^>]*?width="([\d.]+)pt"', svg)
    width = f'style="min-width: {LEGIBLE * float(size[1]):.0f}px" ' if size else ""
    svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(figure.caption)}" {width}', 1)
    for colour, name in THEMED.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("fill: #ffffff", "fill: none")
