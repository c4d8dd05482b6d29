"""The optimizer: any torch optimizer, its gradients preconditioned by inferred curvature and its step measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from infhess._checks import count
from infhess._distributed import world_size
from infhess._precision import full_precision
from infhess.curvature.batches import Batch
from infhess.curvature.local import DoubleBackwardError
from infhess.curvature.training_pass import GRAPHS, TrainingPass
from infhess.optim.base_optimizers import rate_is_known
from infhess.optim.checkpoint import Loss
from infhess.optim.controllers import convex_rule, nonconvex
from infhess.optim.controllers.context import Context
from infhess.optim.observed import Observed, joined, points_of, probe_of
from infhess.optim.preconditioning.directions import BLOCKS
from infhess.optim.preconditioning.scaled_step import finite
from infhess.optim.reports import Report
from infhess.optim.sharded import check_whole
from infhess.optim.updates import Update
from infhess.optim.wrapper import Wrapper

METHODS = ("curvature", "paper")
STEP_LENGTHS = ("measured", "paper", "keep")
# More parameters than this are a net: its curvature is followed, not inferred, and no mean of its iterates is kept.
LARGE = 100_000


class Preconditioned(Wrapper):
    """Any torch optimizer, with gradients preconditioned by inferred curvature and a step that needs no tuning.

    Before the first `update`, `observe`, `watch` or `step(closure)` it is its base, bit for bit. From then on w moves by
    −step·lr/lr₀·P²g where the base is sgd, with lr₀ the learning rate that the base was made with, or the largest one of a
    schedule: `lr` is the scheduler's, and the rate given at the start does not matter. Of groups with different `lr`, lr₀ is
    the largest: that group moves by the whole step, the others by their share of it. Momentum, Adam's scaling and weight
    decay stay the base's.

    A step whose gradient holds NaN or infinity is not made, and the next report says so. With a `GradScaler`, call
    `scaler.unscale_(optimizer)` before `observe`; a report says where that was forgotten.

    Args:
        base: the optimizer to wrap; parameter groups are shared with it.
        rank: directions of P; 32 by default, less where that would take more than 1 GiB.
        method: "curvature", the library's best, or "paper", de Roos & Hennig 2019 as printed.
        blocks: "whole" (one matrix over all parameters, for small and convex problems) or "layer" (one per layer, for nets).
        step_length: "measured" (1/λmax(P²B) on fresh batches), "paper" (α² times the base's rate; 1/b0 for layers) or "keep"
            (the base's own rate). By default the method's own.
        steps: Hessian-vector products of inference; by default rank, and for "paper" 16, or 5 for layers.

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
        self.report: Report | None = None  # of the last estimate or curvature probe
        self._asked_rank = None if rank is None else count(rank, "rank")
        self._pool: list[Batch] = []  # batches kept by observe until an estimate is made
        self._observed: list[Observed] = []  # micro-batches since the last step
        self._acted = 0  # how many of them a decision was made on
        self._was_fresh = True  # whether nothing was known before that
        self._unread: tuple[str, ...] = ()  # notes of a report that was not returned to anyone
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
        """Estimate curvature at the present parameters, and from now on precondition with it.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batches: any iterable, of batches of the size that training uses; as many are read as are needed.
            split: False for a loss that is not a mean over points: batches are then not cut.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: for dropout masks.

        Where it fails, everything stays as it was.

        """
        started, state = time.perf_counter(), self._state
        source = self._source(loss, batches, split=split, products=products, generator=generator)
        if self.step_length == "measured" and rate_is_known(self.base):
            self._check_rates()
        sizes = self._learnt.block_sizes(self.param_groups)
        kinds = self.blocks, self.method, self.step_length
        update = Update(self.base, state, sizes, min(self.rank, sum(sizes)), *kinds, self.steps)
        found = update.estimate(source)
        step = update.step(source, found)
        self._install(step.scaling)
        state.step, state.limit = step.step, step.limit
        state.start_over()
        notes, seconds = (*found.notes, *step.notes, *state.diagnostics()), time.perf_counter() - started
        cost = source.products, source.data_points, seconds, notes, source.product_points
        return self._tell(Report(found.values, found.std, step.step, *cost))

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
        """Call it between backward and step with each batch, instead of `update`.

        It estimates, refreshes and follows the step length by itself, on the batches that training reads anyway (a few of
        them are kept until an estimate is made). Where the loss proves not to be convex it follows the learning rate alone.
        Until a learning rate is known no step is made. With gradient accumulation, call it for each micro-batch: those of
        one step are one batch. `points` is the size of the batch, where that cannot be read from it.

        Returns a report when it did something; its data_points are 0, since training reads all batches anyway.
        """
        self._outside_watch("observe")
        if not self._observed:
            self._check_observable()
        points = None if points is None else count(points, "points")
        self._observed.append(Observed(loss, batch, points, split and points is None, products, generator))
        # Micro-batches come in equal numbers: the last one brings the decision.
        return self._act() if len(self._observed) == self._state.micro_batches else None

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Around the forward and backward pass of training, in nets; then `step()`, and no `observe`.

        On steps at which curvature is probed, one in eighty, the gradient's graph is kept and the Hessian-vector product is
        taken in `step`. On all others nothing happens. With gradient accumulation, watch each micro-batch; `points` is its
        size.
        """
        if not self._observed:
            self._check_observable()
        with self._watch(points):
            yield

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """Keeps the graph where curvature is probed at the coming step; of two passes of a step, however many it has."""
        if not nonconvex.due(self._state, self._state.steps + 1):
            return nullcontext()
        check_whole(self._params(), "Preconditioned.step")
        kept = sum(o.batch is not None for o in self._observed)
        return TrainingPass(self._params()) if kept < GRAPHS else nullcontext()

    def _take(self, done: TrainingPass | None, points: int | None) -> None:
        """One more micro-batch, unless no gradient was computed in it."""
        if done is None or done.seen:
            self._observed.append(Observed(None, done, points or (done.points if done else 0)))

    @property
    def _micro_batches(self) -> int:
        return len(self._observed)

    @property
    def _drives(self) -> bool:
        """Whether training passes drive the wrapper: nothing does so far, or they and `observe` in a net have done so."""
        state = self._state
        able = self.method == "curvature" and self.step_length == "measured" and rate_is_known(self.base)
        follows = state.nonconvex and state.rate > 0
        return bool(able and state.base_rate > 0 and (not state.active or state.step == 0 or follows))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A batch that was observed without a step, because its gradient was not finite, is dropped."""
        if self._observed and self._state.active and not finite([p.grad for p in self._params()], self._state):
            self._observed.clear()
            self._acted = 0
        super().zero_grad(set_to_none)

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
        """Let a controller decide on the coming step, and do what it says."""
        started, state, seen = time.perf_counter(), self._state, list(self._observed)
        self._acted, self._was_fresh = len(seen), not state.active
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
            if not (state.active or isinstance(error, DoubleBackwardError)):
                state.active, state.step = 1.0, 0.0  # no step is made before a learning rate is known
            raise
        self._follow(decision)
        if decision.values is None:
            return None
        (products, points), notes = context.cost, (*decision.notes, *state.diagnostics(self._asked_rank))
        bars, cost = torch.full_like(decision.values, torch.nan), (products, 0, time.perf_counter() - started)
        return self._tell(Report(decision.values, bars, state.step, *cost, notes, points, state.step_std))

    def _tell(self, report: Report) -> Report:
        """A report, with the notes that nobody has read yet."""
        self.report, self._unread = replace(report, notes=(*self._unread, *report.notes)), ()
        return self.report

    def _is_net(self, seen: list[Observed]) -> bool:
        """Whether the rule for nets decides: it needs no loss to evaluate again, and processes agree by it alone."""
        if world_size() > 1 or any(o.loss is None for o in seen):
            return True
        return not self._state.steps and (self.blocks == "layer" or self._size() > LARGE)

    def _context(self, seen: list[Observed], points: int, failure: Exception | None) -> Context:
        state, params, seed = self._state, self._params(), int(self._state.steps)
        batch = None if state.nonconvex else joined(seen)
        return Context(
            state, self.base, params, self._learnt.means, batch, points, self.rank, self._pool,
            make_source=lambda: seen[-1]._replace(batch=batch).hessian(self._source, seed),
            make_probe=lambda: probe_of(seen, params, self._source, seed, failure),
            make_scaling=lambda: self._learnt.scaling(self.param_groups),
        )  # fmt: skip

    def _before_step(self) -> None:
        """Where micro-batches were more or fewer than those of the step before: decide on what there is."""
        if self._acted < len(self._observed):
            if (
                self._acted and self._state.steps == 1 and self._was_fresh
            ):  # the very first acted on one micro-batch alone
                self.reset()
            if not self._acted and (report := self._act()):
                self._unread = report.notes
            self._state.micro_batches = float(len(self._observed))
        self._observed.clear()
        self._acted = 0

    # ---- copies and checkpoints

    def reset(self) -> None:
        """Forget everything learnt: until the next estimate the wrapper is its base again."""
        super().reset()
        self._pool.clear()
        self._acted = 0  # the coming step is decided on again

    def _adopt(self, incoming: Any) -> None:
        super()._adopt(incoming)
        self._pool.clear()
        self._acted = 0

    def __getstate__(self) -> dict[str, Any]:
        names = ("method", "step_length", "steps", "report", "_asked_rank", "_pool", "_was_fresh", "_unread")
        kept = {name: self.__dict__[name] for name in names}
        return {**super().__getstate__(), **kept, "_observed": [], "_acted": 0}  # lambdas do not pickle
