"""Minimize convex losses on finite data in one call."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count, finite_number, generator_on
from infhess._precision import full_precision
from infhess.curvature.batches import Batch
from infhess.minimizing.first_pass import NO_MEAN
from infhess.minimizing.progress import Progress
from infhess.minimizing.result import Minimum
from infhess.minimizing.run import Run
from infhess.minimizing.stop_rule import Row

GIB = 2.0**30
# Default for the largest number of passes.
PASSES = 200


@full_precision
def minimize(
    loss: Callable[[Batch], Tensor],
    params: Iterable[Tensor],
    batches: Iterable[Batch],
    gap: float = 1e-6,
    passes: int | None = None,
    *,
    memory: float = GIB,
    progress: bool = False,
    callback: Callable[[Row], Any] | None = None,
    checkpoint: str | Path | None = None,
    generator: torch.Generator | None = None,
) -> Minimum:
    """Minimise a convex loss over finite data to a given gap; the parameters are left at the best point seen.

    The data is read once, and all of it or a sample is kept. The method is then chosen by predicted cost, as `result.notes`
    explains: Newton directions with a dense Hessian or with products of the sample, corrected by secants, or L-BFGS around a
    preconditioner; SGD comes first if that saves more than it costs. The run ends when the gap (L − L*)/(L₀ − L*) is below
    `gap` with 95 % confidence.

    Args:
        loss: batch ↦ scalar, the mean loss of a batch; it closes over the model. It includes any L2 term and point weights.
        params: the parameters, float32 or float64.
        batches: a DataLoader, or any iterable that can be iterated again. One-shot iterators get a single pass of SGD.
        gap: the share of L₀ − L* that may remain.
        passes: largest number of passes over the data, including the first; 200 by default.
        memory: bytes for data and curvature; all data is kept for further passes if it takes less than half of this.
        progress: show a progress bar.
        callback: called with a row (a dict) after each pass.
        checkpoint: a file written after each pass; if it exists, the run continues from it.
        generator: random numbers for the sample.

    >>> import torch, infhess
    >>> x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> y = x @ torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    >>> w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    >>> batches = list(zip(x.split(100), y.split(100)))
    >>> result = infhess.minimize(lambda batch: (batch[0] @ w - batch[1]).square().mean(), [w], batches)
    >>> result.stopped, [round(v, 3) for v in w.tolist()], result.gap_upper(0.95) < 1e-6
    ('gap', [1.0, -2.0, 3.0], True)

    """
    started = time.perf_counter()
    target = finite_number(gap, "gap", least=0.0, strict=True)
    most = PASSES if passes is None else count(passes, "passes")
    memory = finite_number(memory, "memory", least=0.0, strict=True)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a callable of a row, got {type(callback).__name__}")
    generator_on(generator)
    run = Run(loss, params, batches, target, most, memory, generator, started)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        run.restore(path)
    save = None if path is None else lambda row: run.save(path)
    with Progress(target) if progress else nullcontext() as bar:
        _drain(run, [f for f in (save, bar.show if bar else None, callback) if f])
    if NO_MEAN in run.notes:
        warnings.warn(NO_MEAN, stacklevel=3)  # of the caller of what full_precision wraps
    return run.result()


def _drain(run: Run, told: list[Callable[[Row], Any]]) -> None:
    """Run to the end, or until Ctrl-C; the parameters are then at the best point."""
    try:
        for row in run.passes():
            for tell in told:
                tell(row)
    except KeyboardInterrupt:
        run.stopped = "interrupted"
    finally:
        run.leave_best()
