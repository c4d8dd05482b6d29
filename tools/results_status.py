"""Which committed rows an older rule has computed, by folder, and which pages quote it: `python tools/results_status.py`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # this tree's own, wherever it is called from

from infhess._rules import RULES  # noqa: E402
from infhess.cli.rows import RowFile  # noqa: E402


def status(root: Path) -> Iterator[str]:
    """Lines on each folder of rows: how many of each version of a rule, and the pages that quote it if any is older."""
    pages = {
        page: page.read_text(encoding="utf-8")
        for page in [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
        if page.exists()
    }
    for path in sorted([*root.glob("benchmarks/results/*/rows.csv"), root / "docs/demo/rows.csv"]):
        if not path.exists():
            continue
        folder = path.parent.relative_to(root).as_posix()
        counts = Counter(row.rule for row in RowFile(path.parent).rows if row.rule)
        older = [rule for rule in counts if not present(rule)]
        yield f"{folder}: {'of an older rule' if older else 'of present rules' if counts else 'other packages alone'}"
        for rule, number in sorted(counts.items()):
            now = "" if present(rule) else f", now {RULES.get(rule.rpartition(' ')[0], 'without a version')}"
            yield f"    {rule}{now}: {number} rows"
        quoting = [page.relative_to(root).as_posix() for page, text in pages.items() if f"{folder}/" in text]
        if older and quoting:
            yield f"    quoted in {', '.join(quoting)}"


def present(rule: str) -> bool:
    """Whether this is a rule with its present version.

    >>> present("rate-free 0"), present("spectrum older")
    (False, False)
    """
    name, _, version = rule.rpartition(" ")
    return str(RULES.get(name)) == version


if __name__ == "__main__":
    for line in status(ROOT):
        print(line)
