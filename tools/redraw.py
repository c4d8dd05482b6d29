"""Draw reports anew from their rows: figures, tables and report.html; nothing is computed.

python tools/redraw.py                       # every report and figure of benchmarks/, results/ and docs/demo
python tools/redraw.py benchmarks/deep-final  # this one
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from infhess.bench import (
    accuracy_bench,
    convex_calibration,
    convex_report,
    curvature_bench,
    deep_results,
    edge_of_stability,
    inference,
)
from infhess.bench.deep_baselines import METHODS
from infhess.experiments import demo, reproduce
from infhess.harness import EXACT, START, RowFile

ROOT = Path(__file__).parent.parent


def seeds(file: RowFile) -> list[int]:
    """All that were run."""
    return sorted({row.seed for row in file.rows if row.method not in (EXACT, START)})


def nets(file: RowFile, folder: Path) -> str:
    """Methods that are compared today: older files have rows of others."""
    rows = [
        row for row in file.rows if any(f"{row.method.split(':')[0]}, ".startswith(f"{method}, ") for method in METHODS)
    ]
    return deep_results.report(rows, seeds(file), folder)


def figures(file: RowFile, folder: Path) -> None:
    """The report's figures alone, where the report is of one method."""
    with tempfile.TemporaryDirectory() as temporary:
        nets(file, Path(temporary))
        for name in ("rates.svg", "iterates.svg"):
            shutil.copy(Path(temporary, name), folder)


REPORTS: dict[str, Callable[[RowFile, Path], object]] = {
    **{f"results/{name}": reproduce.plan(name, "default", 0, None).report for name in reproduce.EXPERIMENTS},
    "benchmarks/convex": lambda file, folder: convex_report.report(file.rows, seeds(file), folder),
    "benchmarks/convex-accuracy": lambda file, folder: accuracy_bench.report(file.rows, folder, seeds(file)),
    "benchmarks/convex-calibration": lambda file, folder: convex_calibration.report(file.rows, folder),
    "benchmarks/deep-final": nets,
    "benchmarks/deep-fresh": nets,
    "benchmarks/deep-large": nets,
    "benchmarks/deep-long": figures,
    "benchmarks/curvature": lambda file, folder: curvature_bench.figure(file.rows, folder / "curvature.svg"),
    "benchmarks/edge": lambda file, folder: edge_of_stability.figure(file.rows, folder / "edge.svg"),
    "benchmarks/inference": lambda file, folder: inference.figure(file.rows, folder / "inference.svg"),
    "docs/demo": lambda file, folder: demo.figure(file.rows, folder / "demo.svg"),
}

if __name__ == "__main__":
    for name in [str(Path(arg)) for arg in sys.argv[1:]] or REPORTS:
        REPORTS[name](RowFile(ROOT / name), ROOT / name)
        print(name, flush=True)
