"""One run of `minimize`: the first pass, the later passes, their cost and why they end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from infhess.curvature.batch_curvature import DoubleBackwardError
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, Stream, sliced
from infhess.minimizing.choice import ALL, SECANTS, SGD, SGD_BATCH, SGD_STEPS, Facts, Plan, planned
from infhess.minimizing.descent import Pass, descend
from infhess.minimizing.ending import unfinished, why
from infhess.minimizing.factored import matrix_of
from infhess.minimizing.first_pass import NOT_FINITE, Reading, fault, loader_notes, told
from infhess.minimizing.newton import AroundP, Kept, Model, PoolNewton
from infhess.minimizing.objective import Objective, Value
from infhess.minimizing.pool_curvature import graph_bytes
from infhess.minimizing.reservoir import Reservoir, in_chunks
from infhess.minimizing.result import Minimum
from infhess.minimizing.run_file import read_run, write_run
from infhess.minimizing.stop_rule import (
    LEVEL,
    NEAR,
    Gap,
    Row,
    extrapolated,
    made,
    relative,
    slow,
    spread,
    still_to_come,
)
from infhess.minimizing.warm_up import WarmUp, gradients_kept

UNKNOWN = Gap(math.nan, math.nan)
# Largest number of points in a sample, if not all the data is kept.
SAMPLE = 65_536


class Run:
    """The state of a run; iterate over `passes` to run it, row by row."""

    def __init__(
        self, loss: Callable[[Batch], Tensor], params: Iterable[Tensor], batches: Iterable[Batch],
        target: float, most: int, memory: float, generator: torch.Generator | None, started: float,
    ) -> None:  # fmt: skip
        Stream(batches)  # checks the iterable
        self.objective = Objective(loss, params)
        self.batches, self.target, self.most, self.memory, self.started = batches, target, most, memory, started
        self.one_shot = isinstance(batches, Iterator)
        self.pool: int | None = None  # points of the pool; None: by the rule
        self.source = Hessian(loss, self.objective.flat.params, batches)
        self.reservoir = Reservoir(memory / 2, SAMPLE, generator or torch.Generator().manual_seed(0))
        self.best = self.objective.weights
        self.loss, self.start_loss, self.gap = math.nan, math.nan, UNKNOWN
        self.data_points, self.stopped, self.method = 0, "passes", SGD
        self.history: list[Row] = []
        self._unused = 0  # points counted when they were read, but not yet in a gradient
        self._last = (math.nan, math.nan)  # estimate of the gap at the last point, and the loss there
        self.notes = loader_notes(batches)

    # ---- the first pass

    def passes(self) -> Iterator[Row]:
        """Run, and yield a row for each pass."""
        if self._is_over():
            return
        if self.one_shot:
            yield self._streamed()
            return
        self._read(lambda batch: None)
        plan = self._planned()
        if plan.steps:
            yield self._sgd_phase(plan.steps)
        elif not self.reservoir.whole:
            yield self._row("reading", self.gap)
        else:
            self._unused = self.reservoir.points
        if self.made < self.most:
            yield from self._newton_passes(plan)

    def _streamed(self) -> Row:
        """SGD on batches that can only be read once."""
        with self._sgd() as warm_up:
            self._read(lambda batch: warm_up.step(batch, self.reservoir.cut))
        self.notes.append(
            "batches can be read only once: this is the pass of sgd alone, with no gap; pass a DataLoader or a list"
        )
        return self._row("sgd")

    def _sgd_phase(self, steps: int) -> Row:
        """SGD on a random part of what was read."""
        cut, points = self.reservoir.cut, min(steps * SGD_BATCH, self.reservoir.kept)
        batches = self.reservoir.shuffled(0, points)
        with self._sgd() as warm_up:
            for batch in sliced(batches, -(-points // SGD_BATCH)) if cut else batches[:steps]:
                warm_up.step(batch, cut)
        return self._row("sgd")

    @contextmanager
    def _sgd(self) -> Iterator[WarmUp]:
        """Afterwards, or after Ctrl-C, the best point is the start or the mean of iterates, whichever fits the pool better."""
        start, warm_up = self.best, WarmUp(self.objective)
        try:
            with gradients_kept(self.objective.flat):
                yield warm_up
        finally:
            self.source.products += warm_up.products
            self.source.product_points += warm_up.product_points
            self.notes += warm_up.notes
            if self.reservoir.points:
                self._take_better(start, warm_up.average)

    def _take_better(self, start: Tensor, average: Tensor) -> None:
        pool = self.reservoir.between(0, ALL)
        self.start_loss, after = (self._over(pool, w).loss for w in (start, average))
        if after < self.start_loss:
            self.best, self.loss = average, after
        else:
            self.best, self.loss = start, self.start_loss

    def _read(self, step: Callable[[Batch], None]) -> None:
        try:
            for batch in Reading(self.objective, self.reservoir, self.batches):
                step(batch)
            self.source.split = self.reservoir.cut
        finally:
            self.data_points += self.reservoir.points
            self.notes += self.reservoir.notes

    def _planned(self) -> Plan:
        """The plan; SGD if there is only one pass, and no SGD if the run resumes from a checkpoint."""
        flat, reservoir = self.objective.flat, self.reservoir
        matrix = (
            matrix_of([p.shape for p in flat.params]) if reservoir.cut and len(flat.live) == len(flat.params) else None
        )
        itemsize = self.source.like.element_size()
        plan = planned(Facts(flat.size, reservoir.points, reservoir.kept, self.memory, itemsize, matrix, self.pool))
        if self.history:
            return replace(plan, steps=0)
        return replace(plan, steps=SGD_STEPS[1]) if self.most == 1 else plan

    def _over(self, batches: list[Batch], w: Tensor) -> Value:
        """Loss and gradient at w on points that were already read: counted as a product."""
        self.objective.put(w)
        value = self.objective.over(batches)
        self._count(value.points)
        return value

    def _count(self, points: int) -> None:
        self.source.count_products(1, points)

    # ---- the passes after it

    def _newton_passes(self, plan: Plan) -> Iterator[Row]:
        self.objective.put(self.best)
        graph = self._graph()
        self.method = plan.method
        self.notes += told(plan, self.reservoir)
        kept = Kept(self.source, plan, self.reservoir, graph, self.memory / 4, self.objective.wide)
        model: Model = AroundP(kept) if plan.method == SECANTS else PoolNewton(kept)
        for found in descend(self.objective, lambda: self._full(model), model, self.best, self._count):
            yield self._noted(found, model)
            if self._ends_with(found):
                return
            if slow(self.history) and model.grow():
                self.notes.append(
                    f"contraction was slow: a pool of {model.points:,} points from pass {self.made + 1} on"
                )

    def _graph(self) -> float:
        """Bytes of the graph per point; if the loss cannot be differentiated twice, products become differences."""
        chunk = self.reservoir.between(0, 256)[0]
        try:
            return graph_bytes(self.source, chunk) / self.source.points_of(chunk)
        except DoubleBackwardError as error:
            self.source.kind = "difference"
            self.notes.append(f"products are differences of gradients: {error}")
        except ValueError:  # a loss that is not finite: the first full pass reports it
            pass
        return 0.0

    @property
    def made(self) -> int:
        """Number of passes made."""
        return len(self.history)

    def _full(self, model: Model) -> Value:
        """Loss and gradient over all the data; points that were counted when they were read are not counted again."""
        whole, value = self.reservoir.whole, model.evaluate()
        if value is None:
            batches = self.reservoir.chunks() if whole else in_chunks(self.batches, self.reservoir.cut)
            value = self.objective.over(batches)
        if not (value.loss < math.inf or any(r["phase"] == "newton" for r in self.history)):
            raise ValueError(f"{NOT_FINITE}; {fault(self.objective, self.batches)}")
        self.data_points += value.points - self._unused
        self._unused = 0
        return value

    def _noted(self, found: Pass, model: Model) -> Row:
        """A row for the pass; remembers its point if it is the best."""
        loss, proposal = found.point.value.loss, found.proposal
        if proposal is None:
            return self._row("newton", step=found.alpha, pool=model.points, cut=True)
        if math.isnan(self.start_loss):
            self.start_loss = loss
        elif not any(r["phase"] == "newton" for r in self.history):
            self.start_loss += loss - self.loss  # the pool's loss, corrected by its error at the present point
        value = relative(self._left(found.decrement * (1 + proposal.left), loss), loss, self.start_loss)
        gap = Gap(value, spread(self.method, model.whole, proposal.left, value))
        if not self.gap.value <= value or loss < self.loss - 8 * self.objective.eps * abs(loss):
            self.best, self.loss, self.gap = found.point.w, loss, gap
        return self._row("newton", gap, loss, found.alpha, proposal.iterations, model.points)

    def _left(self, decrement: float, loss: float) -> float:
        """L − L* by Newton's estimate, or by the progress of the last pass if that is more, and more than rounding."""
        (before, loss_before), self._last = self._last, (decrement, loss)
        decrease = loss_before - loss
        if not decrease > NEAR * self.objective.eps * abs(loss):
            return decrement
        if self.method == SECANTS:  # secants know little about directions without a step so far
            decrement = max(decrement, still_to_come([*(r["loss"] for r in made(self.history)), loss]))
        return max(decrement, extrapolated(decrease, before, decrement))

    def _is_over(self) -> bool:
        """Whether the run is over; `stopped` says why."""
        if self.stopped == "passes" and self.gap.upper(LEVEL) <= self.target:
            self.stopped = "gap"
        return self.stopped != "passes" or self.made >= self.most

    def _ends_with(self, found: Pass) -> bool:
        """Whether the run is over with this pass; notes say why if its gap is not reached."""
        known = self.history, self.gap, self.target, self.loss, self.start_loss, self.objective.eps, self._rounding
        self.stopped, note = why(found, *known)
        if self.stopped == "unbounded" or self.stopped.startswith("not convex"):
            self.gap = UNKNOWN
        over = self._is_over()
        if over and self.stopped == "passes":
            note = unfinished(found, self.history)
        self.notes += [note] if note else []
        return over

    @property
    def _rounding(self) -> float:
        """The gap below which the loss, in the parameters' dtype, is rounding."""
        return NEAR * self.objective.eps * abs(self.loss) / max(self.start_loss - self.loss, 1e-300)

    # ---- results

    def _row(
        self, phase: str, gap: Gap = UNKNOWN, loss: float | None = None, step: float = math.nan, iterations: int = 0,
        pool: int = 0, cut: bool = False,
    ) -> Row:  # fmt: skip
        row: Row = {
            "pass": self.made + 1, "phase": phase, "data_points": self.data_points, "products": self.source.products,
            "product_points": self.source.product_points, "seconds": time.perf_counter() - self.started,
            "loss": self.loss if loss is None else loss, "gap": gap.value, "gap_upper": gap.upper(LEVEL),
            "spread": gap.spread, "step": step, "iterations": iterations, "pool": pool, "cut": cut,
        }  # fmt: skip
        self.history.append(row)
        return row

    def save(self, path: Path) -> None:
        """Write what is needed to resume; the data is read again."""
        header = {
            "loss": self.loss, "start_loss": self.start_loss, "gap": list(self.gap), "data_points": self.data_points,
            "products": self.source.products, "product_points": self.source.product_points, "method": self.method,
            "history": self.history, "notes": self.notes, "seconds": time.perf_counter() - self.started,
        }  # fmt: skip
        write_run(path, self.best, header)

    def restore(self, path: Path) -> None:
        """Resume from what `save` wrote."""
        self.best, found = read_run(path, self.best)
        self.loss, self.start_loss, self.gap = found["loss"], found["start_loss"], Gap(*found["gap"])
        self.data_points, self.method = found["data_points"], found["method"]
        self.source.products, self.source.product_points = found["products"], found["product_points"]
        self.history, self.notes = found["history"], found["notes"]
        self.started -= found["seconds"]

    def leave_best(self) -> None:
        """Put the best point into the parameters."""
        self.objective.put(self.best)

    def result(self) -> Minimum:
        """The result so far."""
        return Minimum(
            self.gap.value, self.gap.spread, self.loss, self.data_points, self.made, self.source.products,
            self.source.product_points, time.perf_counter() - self.started, self.history, self.stopped, self.method,
            tuple(self.notes),
        )  # fmt: skip
