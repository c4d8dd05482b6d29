"""A progress bar for the gap, on a logarithmic scale."""

from __future__ import annotations

import math
from typing import Any

from infhess.minimizing.stop_rule import Row


class Progress:
    """A progress bar of the package rich, from a gap of 1 down to the target."""

    def __init__(self, target: float) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._target = target
        self._task = self._bar.add_task("pass 0", total=max(-math.log10(target), 1e-9))

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def show(self, row: Row) -> None:
        """Update the bar after a pass."""
        gap = row["gap_upper"]
        done = -math.log10(min(1.0, max(gap, self._target))) if gap == gap else 0.0
        words = f"gap {row['gap']:.1e}, below {gap:.1e}" if gap == gap else row["phase"]
        self._bar.update(self._task, completed=done, description=f"pass {row['pass']}: {words}")
