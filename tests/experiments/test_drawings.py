"""Every committed figure is the one that its rows give."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

from infhess.harness.rows import RowFile

ROOT = Path(__file__).parents[2]
FIGURES = sorted(path for name in ("benchmarks", "results", "docs/demo") for path in (ROOT / name).rglob("*.svg"))
FIGURES.remove(ROOT / "benchmarks/convex-accuracy/run.svg")  # of one run, which keeps no rows
FOLDERS = sorted({str(path.parent.relative_to(ROOT)) for path in FIGURES})
# Points, of some five hundred across: what nobody sees, and more than versions of matplotlib differ by.
UNSEEN = 1.0


def texts(svg):
    return re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.S)


def curves(svg):
    """The coordinates of each path."""
    return [[float(n) for n in re.findall(r"-?[\d.]+", path)] for path in re.findall(r'\bd="([^"]*)"', svg)]


def differences(drawn, kept):
    """What a reader would see; nothing if they are the same."""
    if texts(drawn) != texts(kept):
        return "other words"
    if [len(path) for path in curves(drawn)] != [len(path) for path in curves(kept)]:
        return "other curves"
    moved = [abs(a - b) for new, old in zip(curves(drawn), curves(kept)) for a, b in zip(new, old)]
    return f"a curve is {max(moved):.3g} points away" if max(moved) > UNSEEN else ""


@pytest.mark.long
@pytest.mark.parametrize("name", FOLDERS)
def test_a_figure_is_that_of_its_rows(name, tmp_path):
    draw = runpy.run_path(str(ROOT / "tools" / "redraw.py"))["REPORTS"]
    assert name in draw, "tools/redraw.py does not know it"
    shutil.copy(ROOT / name / "rows.csv", tmp_path)
    draw[name](RowFile(tmp_path), tmp_path)
    kept = {path.name: path.read_text(encoding="utf-8") for path in FIGURES if path.parent == ROOT / name}
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    assert sorted(drawn) == sorted(kept)
    assert {file: said for file, svg in drawn.items() if (said := differences(svg, kept[file]))} == {}


def test_a_difference_would_be_seen():
    svg = '<svg><path d="M 1.5 2 L 3 4"/><text>a</text></svg>'
    assert differences(svg, svg) == ""
    assert differences(svg, svg.replace("L 3 4", "L 3 4.5")) == ""
    assert "2 points away" in differences(svg, svg.replace("L 3 4", "L 3 6"))
    assert differences(svg, svg.replace("L 3 4", "")) == "other curves"
    assert differences(svg, svg.replace(">a<", ">b<")) == "other words"
