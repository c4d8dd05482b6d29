"""Draw reports anew from their rows: figures, tables and report.html; nothing is computed.

python tools/redraw.py                       # every report of benchmarks/ and results/
python tools/redraw.py benchmarks/deep-final  # this one
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from infhess.bench import accuracy_bench, convex_calibration, convex_report, deep_results
from infhess.bench.deep_baselines import METHODS
from infhess.experiments import reproduce
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


REPORTS: dict[str, Callable[[RowFile, Path], object]] = {
    **{f"results/{name}": reproduce.plan(name, "default", 0, None).report for name in reproduce.EXPERIMENTS},
    "benchmarks/convex": lambda file, folder: convex_report.report(file.rows, seeds(file), folder),
    "benchmarks/convex-accuracy": lambda file, folder: accuracy_bench.report(file.rows, folder, seeds(file)),
    "benchmarks/convex-calibration": lambda file, folder: convex_calibration.report(file.rows, folder),
    "benchmarks/deep-final": nets,
    "benchmarks/deep-fresh": nets,
    "benchmarks/deep-large": nets,
}

if __name__ == "__main__":
    for name in [str(Path(arg)) for arg in sys.argv[1:]] or REPORTS:
        REPORTS[name](RowFile(ROOT / name), ROOT / name)
        print(name, flush=True)
