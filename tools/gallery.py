"""The gallery: scripts of docs/gallery, run while the site is built; each becomes a page with its figure, output and code.

A script has a docstring of three paragraphs (title; what one sees; "Figure: " and what it shows, in words), and code that
writes figure.svg. What it gave is kept in runs/gallery until the script or the package changes; with INFHESS_GALLERY=kept, for
writing, until it is removed. There is no package for this: the last release of mkdocs-gallery is of September 2024, and
sphinx-gallery needs Sphinx.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS, KEPT = ROOT / "docs" / "gallery", ROOT / "runs" / "gallery"
ORDER = (
    "posterior_of_a_matrix", "spectrum_of_a_net", "density_of_a_transformer", "edge_of_stability", "rate_free_against_adam",
    "self_driving_sgd", "paper_figure_1",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A script, and what it gave."""

    name: str
    title: str
    lead: str
    alt: str
    code: str
    output: str
    figure: str

    def page(self) -> str:
        """Figure first, then what was printed, then the code."""
        parts = (
            f"# {self.title}\n\n{self.lead}\n\n![{self.alt}]({self.name}.svg)\n",
            f'``` {{.text title="printed"}}\n{self.output.strip()}\n```\n' if self.output.strip() else "",
            f'``` {{.python title="{self.name}.py"}}\n{self.code.strip()}\n```\n\n[Download the script]({self.name}.py)\n',
        )
        return "\n".join(parts)

    def card(self) -> str:
        """For the overview."""
        return f"-   [![{self.alt}]({self.name}.svg)]({self.name}.md)\n\n    [**{self.title}**]({self.name}.md)\n"


def examples() -> list[Example]:
    """All of them, run where they have not been, one on each core."""
    assert sorted(path.stem for path in SCRIPTS.glob("*.py")) == sorted(ORDER), (
        "tools/gallery.py has the order of scripts"
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(example, (SCRIPTS / f"{name}.py" for name in ORDER)))


def example(path: Path) -> Example:
    """A script, taken apart and run."""
    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    title, lead, alt = (" ".join(part.split()) for part in (ast.get_docstring(module) or "").split("\n\n"))
    code = "\n".join(text.splitlines()[module.body[0].end_lineno :])
    folder = run(path)
    output, figure = ((folder / name).read_text(encoding="utf-8") for name in ("output.txt", "figure.svg"))
    return Example(path.stem, title.rstrip("."), lead, alt.removeprefix("Figure: "), code, output, figure)


def run(path: Path) -> Path:
    """The folder with the figure and the output of a script; it runs on one thread, and a failure ends the build."""
    kept = os.environ.get("INFHESS_GALLERY") == "kept"
    made_of = b"" if kept else path.read_bytes() + package()
    folder = KEPT / f"{path.stem}-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if (folder / "output.txt").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "svg", "MATPLOTLIBRC": str(SCRIPTS / "matplotlibrc"),
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{path.name} failed:\n{done.stderr}")
    (folder / "output.txt").write_text(done.stdout, encoding="utf-8")
    return folder


@cache
def package() -> bytes:
    """A digest of what scripts depend on."""
    found = hashlib.sha256((SCRIPTS / "matplotlibrc").read_bytes())
    for path in sorted([*(ROOT / "src").rglob("*.py"), ROOT / "benchmarks/results/paper-regression/rows.csv"]):
        found.update(path.read_bytes())
    return found.digest()


def overview(found: list[Example]) -> str:
    """The page that leads to all."""
    cards = "\n".join(example.card() for example in found)
    return (
        "# Gallery\n\nEvery figure was drawn while this site was built, by the script on its page, on one CPU thread.\n\n"
        f'<div class="grid cards" markdown>\n\n{cards}\n</div>\n'
    )
