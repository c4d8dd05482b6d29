"""Preconditioned: any torch optimizer, with gradients preconditioned by inferred curvature and a measured step length."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from infhess._checks import count
from infhess._distributed import world_size
from infhess._precision import full_precision
from infhess.curvature.batch_curvature import DoubleBackwardError
from infhess.curvature.batches import Batch
from infhess.curvature.loss import check_loss
from infhess.curvature.training_pass import GRAPHS, TrainingPass
from infhess.optim.base_optimizers import note_on_decay, rate_is_known
from infhess.optim.checkpoint import Loss
from infhess.optim.controllers import convex_rule, nonconvex
from infhess.optim.controllers.context import Context
from infhess.optim.observed import Observed, beside, concatenated, points_of, probe_of
from infhess.optim.preconditioning.directions import BLOCKS
from infhess.optim.reports import Report
from infhess.optim.sharded import check_whole
from infhess.optim.updates import Update
from infhess.optim.wrapper import Wrapper

METHODS = ("curvature", "paper")
STEP_LENGTHS = ("measured", "paper", "keep")
# With more parameters than this it is a net: only the learning rate follows curvature, and no mean of iterates is kept.
LARGE = 100_000


class Preconditioned(Wrapper):
    """Any torch optimizer, with gradients preconditioned by inferred curvature and a step that needs no tuning.

    Before the first `update`, `observe`, `watch` or `step(closure)` it equals its base, bit for bit. From then on, around SGD,
    w moves by −step·lr/lr₀·P²g. lr₀ is the learning rate that the base was made with, or the largest one of a schedule: a
    scheduler may change `lr`, and its initial value does not matter. If groups have different `lr`, lr₀ is the largest: that
    group moves by the whole step, the others by their share of it. Momentum, Adam's scaling and weight decay remain the
    base's.

    A step whose gradient contains NaN or infinity is skipped, and the next report says so. With a `GradScaler`, call
    `scaler.unscale_(optimizer)` before `observe`; a report tells if that was forgotten.

    Args:
        base: the optimizer to wrap; parameter groups are shared with it.
        rank: number of directions of P; 32 by default, fewer if they would take more than 1 GiB.
        method: "curvature", the library's best, or "paper", de Roos & Hennig 2019 as printed.
        blocks: "whole" (one matrix over all parameters, for small and convex problems) or "layer" (one per layer, for nets).
        step_length: "measured" (1/λmax(P²B) on fresh batches), "paper" (α² times the base's rate; 1/b0 for layers) or "keep"
            (the base's own rate). The default depends on the method.
        steps: Hessian-vector products for inference; by default rank, and for "paper" 16, or 5 for layers.

    >>> import torch, infhess
    >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> opt = infhess.Preconditioned(torch.optim.SGD([w], lr=123.0), rank=2)
    >>> loss = lambda x: (x * w).square().mean()
    >>> report = opt.update(loss, [torch.tensor([[100.0, 1.0]])])
    >>> for _ in range(60):
    ...     opt.zero_grad(); loss(torch.tensor([[100.0, 1.0]])).backward(); opt.step()
    >>> bool(w.abs().max() < 1e-3)
    True

    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        rank: int | None = None,
        *,
        method: str = "curvature",
        blocks: str = "whole",
        step_length: str | None = None,
        steps: int | None = None,
    ) -> None:
        step_length = step_length or ("paper" if method == "paper" else "measured")
        given = {"method": (method, METHODS), "blocks": (blocks, BLOCKS), "step_length": (step_length, STEP_LENGTHS)}
        for name, (value, allowed) in given.items():
            if value not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
        self.method, self.step_length = method, step_length
        self.steps = None if steps is None else count(steps, "steps")
        self.report: Report | None = None  # on the last estimate or curvature probe
        self._asked_rank = None if rank is None else count(rank, "rank")
        self._observed: list[Observed] = []  # micro-batches observed since the last step
        self._acted = 0  # how many of these the last decision was based on
        self._unread: tuple[str, ...] = ()  # notes of a report that was not returned to the user
        super().__init__(base, self._asked_rank, blocks)

    @full_precision
    def update(
        self,
        loss: Loss,
        batches: Iterable[Batch],
        *,
        split: bool = True,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> Report:
        """Estimate curvature at the present parameters, and precondition with it from now on.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batches: any iterable of batches of the size used in training; only as many as needed are read.
            split: False if the loss is not a mean over data points: batches are then not split.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: random numbers for dropout masks.

        If it fails, nothing changes.

        """
        started, state = time.perf_counter(), self._state
        source = self._source(loss, batches, split=split, products=products, generator=generator)
        if self.step_length == "measured" and rate_is_known(self.base):
            self._check_rates()
        sizes = self._preconditioner_state.block_sizes(self.param_groups)
        kinds = self.blocks, self.method, self.step_length
        update = Update(self.base, state, sizes, min(self.rank, sum(sizes)), *kinds, self.steps)
        found = update.estimate(source)
        decision = update.decide(source, found)
        self._follow(decision)
        if math.isnan(decision.rate):
            state.step = math.nan  # the base's own rate
        state.start_over()
        notes, seconds = (*found.notes, *decision.notes, *state.diagnostics()), time.perf_counter() - started
        cost = source.products, source.data_points, seconds, notes, source.product_points
        return self._tell(Report(found.values, found.std, state.step, *cost))

    # ---- micro-batches of the coming step

    @full_precision
    def observe(
        self,
        loss: Loss,
        batch: Batch,
        *,
        points: int | None = None,
        split: bool = True,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> Report | None:
        """Call this between backward and step with each batch, instead of `update`.

        It estimates curvature, refreshes the estimate and adapts the step length on the batches that training reads anyway (a
        few are kept until an estimate is made). If the loss turns out not to be convex, only the learning rate is adapted. No
        step is made until a learning rate is known. With gradient accumulation, call it for each micro-batch: those of one step
        count as one batch. `points` is the batch size, if it cannot be read from the batch.

        Returns a report if anything was estimated; its data_points are 0, since training reads all batches anyway.
        """
        self._outside_watch("observe")
        check_loss(loss, products, generator)
        if not self._observed:
            self._check_observable()
        points = None if points is None else count(points, "points")
        self._observed.append(Observed(loss, batch, points, split and points is None, products, generator))
        # Steps usually have equally many micro-batches: decide at the last one.
        return self._act() if len(self._observed) == self._state.micro_batches else None

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Put the forward and backward pass of training into this context, in nets; then call `step()`, without `observe`.

        On the steps that probe curvature, about one in eighty, the graph of the gradient is kept and the Hessian-vector product
        is computed in `step`. On all other steps nothing happens. With gradient accumulation, watch each micro-batch; `points`
        is its size.
        """
        if not self._observed:
            self._check_observable()
        with self._watch(points):
            yield

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """Keeps the graph if the coming step probes curvature; at most two graphs per step."""
        if not nonconvex.due(self._state, self._state.steps + 1):
            return nullcontext()
        check_whole(self._params(), "Preconditioned.step")
        kept = sum(o.batch is not None for o in self._observed)
        return TrainingPass(self._params()) if kept < GRAPHS else nullcontext()

    def _take(self, done: TrainingPass | None, points: int | None) -> None:
        """Add a micro-batch, unless no gradient was computed in it."""
        if done is None or done.seen:
            self._observed.append(Observed(None, done, points or (done.points if done else 0)))

    @property
    def _micro_batches(self) -> int:
        return len(self._observed)

    @property
    def _watches_closures(self) -> bool:
        """Whether closures are watched: nothing else is in use yet, or the learning rate already follows curvature in a net."""
        state = self._state
        able = self.method == "curvature" and self.step_length == "measured" and rate_is_known(self.base)
        follows = state.nonconvex and state.rate > 0
        return bool(able and state.base_rate > 0 and (not state.active or state.step == 0 or follows))

    def _drop(self) -> None:
        if self._state.active:
            self._state.skipped += 1
            self._observed.clear()
            self._acted = 0

    def _check_observable(self) -> None:
        if self.method != "curvature" or self.step_length != "measured":
            raise ValueError('observe: needs method="curvature" and step_length="measured"; with others call update')
        if not rate_is_known(self.base):
            raise ValueError(
                f"observe: {type(self.base).__name__} does not move by its rate times a known scaling; wrap SGD or Adam"
            )
        if not self._state.steps:
            check_whole(self._params(), "Preconditioned")
            self._check_rates()

    # ---- a decision on the coming step

    def _act(self) -> Report | None:
        """Let a controller decide on the coming step, and apply its decision."""
        started, state, seen = time.perf_counter(), self._state, list(self._observed)
        self._acted = len(seen)
        points, failure = points_of(seen)
        if not state.nonconvex and self._is_net(seen):
            state.nonconvex = 1.0
        state.read += points
        state.steps += 1
        context = self._context(seen, points, failure)
        try:
            with torch.no_grad():
                decision = (nonconvex if state.nonconvex else convex_rule).decide(context)
        except BaseException as error:
            self._observed.clear()
            self._acted = 0
            if not (state.active or isinstance(error, DoubleBackwardError | TypeError)):
                state.active, state.step = 1.0, 0.0  # no step is made until a learning rate is known
            raise
        self._follow(decision)
        if decision.values is None:
            return None
        (products, points), notes = (
            context.cost,
            (*decision.notes, *state.diagnostics(self._asked_rank), *self._effect.notes()),
        )
        bars, cost = torch.full_like(decision.values, torch.nan), (products, 0, time.perf_counter() - started)
        return self._tell(Report(decision.values, bars, state.step, *cost, notes, points, state.step_std))

    def _tell(self, report: Report) -> Report:
        """Store and return a report, with earlier notes that were not returned yet."""
        decays = note_on_decay(self.base, self._state.step * self._state.factor, self._preconditioner_state.root)
        notes = *self._unread, *report.notes, *decays
        self.report, self._unread = replace(report, notes=notes), ()
        return self.report

    def _is_net(self, seen: list[Observed]) -> bool:
        """Whether the rule for nets applies: it never evaluates the loss again, and is the only one for several processes."""
        if world_size() > 1 or any(o.loss is None for o in seen):
            return True
        return not self._state.steps and (self.blocks == "layer" or self._size() > LARGE)

    def _context(self, seen: list[Observed], points: int, failure: Exception | None) -> Context:
        state, params, seed = self._state, self._params(), int(self._state.steps)
        batch = None if state.nonconvex else concatenated(seen)
        self._pool[:] = beside(self._pool, batch)
        return Context(
            state, self.base, params, self._preconditioner_state.means, batch, points, self.rank, self._pool,
            make_source=lambda: seen[-1]._replace(batch=batch).hessian(self._source, seed),
            make_probe=lambda: probe_of(seen, params, self._source, seed, failure),
            make_scaling=lambda: self._preconditioner_state.scaling(self.param_groups),
        )  # fmt: skip

    def _before_step(self) -> None:
        """If the number of micro-batches differs from the step before, decide on those seen."""
        if self._acted < len(self._observed):
            # The very first decision used one micro-batch alone, and there was no `update` before it.
            if self._acted and self._state.steps == 1 and math.isnan(self._state.steps_at_build):
                self.reset()
            returns = self._observed[-1].loss is not None  # from `observe`: the next one returns these notes, too
            if not self._acted and (report := self._act()) and returns:
                self._unread = report.notes
            self._state.micro_batches = float(len(self._observed))
        self._observed.clear()
        self._acted = 0

    # ---- copies and checkpoints

    def reset(self) -> None:
        """Forget all that was learnt: until the next estimate this equals its base again."""
        super().reset()
        self._acted = 0  # decide again on the coming step

    def __getstate__(self) -> dict[str, Any]:
        names = ("method", "step_length", "steps", "report", "_asked_rank", "_unread")
        kept = {name: self.__dict__[name] for name in names}
        return {**super().__getstate__(), **kept, "_observed": [], "_acted": 0}  # lambdas do not pickle
