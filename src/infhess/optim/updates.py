"""What `update` does: estimate curvature by the chosen method, and choose the step length."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.optim.base_optimizers import adaptive, decay, moved, rate_is_known, sqrt_scaling
from infhess.optim.controllers.context import Decision
from infhess.optim.controllers.controller_state import LONGER, ControllerState
from infhess.optim.controllers.step_length import SMALL, Largest, NothingSeenError, backtracked, largest_curvature
from infhess.preconditioners import build
from infhess.preconditioners.build import Built
from infhess.preconditioners.scaling import Scaling

# Fresh batches on which a step is measured, and Lanczos iterations on each.
FRESH, ITERATIONS = 4, 6
# Nonconvex: the longest step relative to |w|, the first relative to |w|, and the growth from one estimate to the next.
LONGEST, FIRST, GROWTH = 0.03, 0.01, 4.0


@dataclass(frozen=True)
class Update:
    """The settings of an estimate."""

    base: torch.optim.Optimizer
    state: ControllerState
    sizes: list[int]  # sizes of the blocks
    rank: int
    blocks: str
    method: str
    step_length: str
    steps: int | None

    def estimate(self, source: Hessian) -> Built:
        """P² by the chosen method."""
        if self.method == "paper":
            if self.blocks == "layer":
                return build.paper_layers(source, self.sizes, self.rank, self.steps or max(5, self.rank))
            return build.paper(source, self.rank, self.steps or max(16, self.rank))
        root, steps = self._root(source), self.steps or self.rank
        if self.blocks == "layer":
            return build.layered(source, self.sizes, self.rank, steps, root)
        pool = build.read_pool(source, build.POINTS_A_DIRECTION * steps)
        return build.pooled(source, pool, self.rank, steps, root)

    def _root(self, source: Hessian) -> Tensor | None:
        """The square root of the base's own scaling; before its first step, from the squares of a few gradients."""
        if not adaptive(self.base):
            return None
        if all(moved(self.base.state.get(p, {})) for p in source.flat.params):
            return sqrt_scaling(self.base, source.like)
        squares = source.like.new_zeros(source.size)
        for _ in range(FRESH):
            squares += source.gradient().square() / FRESH
        return sqrt_scaling(self.base, source.like, squares)

    def decide(self, source: Hessian, found: Built) -> Decision:
        """The step of the chosen kind, and P² with the factor to match; a rate of NaN is the base's own."""
        scaling, without_factor = found.scaling, replace(found.scaling, factor=1.0)
        if self.step_length == "keep":  # Adam's own rate is meant for gradients in its own scale
            scaled = self.method == "paper" or adaptive(self.base)
            return Decision(scaling=without_factor if scaled else scaling)
        if self.step_length == "paper":
            if not math.isnan(found.step):  # 1/b0 for the paper's method by layer
                return Decision(found.step, scaling=scaling)
            # α² = Σ₁/Σ_k times the base's rate.
            alpha2 = scaling.factor if self.method == "paper" else float(found.values[0]) * scaling.factor
            if adaptive(self.base):
                return Decision(alpha2 * self.state.base_rate, scaling=without_factor)
            return Decision(scaling=replace(scaling, factor=alpha2))
        if not rate_is_known(self.base):
            kept = f"{type(self.base).__name__} keeps its rate, which does not multiply a known scaling of gradients"
            return Decision(scaling=without_factor, notes=(kept,))
        w = source.flat.pack([p.detach() for p in source.flat.live])
        return measured_step(source, scaling, self.state, w, decay(self.base, scaling.root))


def measured_step(source: Hessian, scaling: Scaling, state: ControllerState, w: Tensor, decay: float) -> Decision:
    """1/λmax(P²B), averaged over a few fresh batches; bounded once negative curvature was seen.

    Weight decay is added to λmax: the base applies it at the same rate, outside P. For small batches λ is replaced by the mean
    of λ² over the mean of λ: in mean square, steps on single points are stable up to twice its inverse.
    """
    found, last, size = _probes(source, scaling)
    mean = sum(f.value for f in found) / len(found)
    value = sum(f.value**2 for f in found) / len(found) / mean if size < SMALL else mean
    longest = max(f.length for f in found)
    if not (any(f.negative for f in found) or state.nonconvex):
        rate = backtracked(source, last, source.local(last), scaling, 1 / (value + decay))
        return Decision(rate, LONGER * rate * longest, scaling=scaling)
    state.nonconvex = 1.0
    return _bounded(scaling, 1 / (value + decay), state, float(torch.linalg.vector_norm(w)), longest)


def _probes(source: Hessian, scaling: Scaling) -> tuple[list[Largest], Batch, int]:
    """λmax(P²B) on at least four fresh batches and 32 points, skipping zero gradients; the last batch, and points per batch."""
    found: list[Largest] = []
    last, points, tries, failure = None, 0, 0, None
    while (len(found) < FRESH or points < SMALL) and tries < 4 * FRESH + SMALL:
        batch = source.draw()
        tries += 1
        try:
            found.append(largest_curvature(source, source.local(batch), scaling, ITERATIONS))
            points, last = points + source.points_of(batch), batch
        except NothingSeenError as error:
            failure = error
    if not found:
        raise failure or NothingSeenError("no batch to measure a step on")
    return found, last, points // len(found)


def _bounded(scaling: Scaling, rate: float, state: ControllerState, size: float, length: float) -> Decision:
    """A rate that first moves w by a hundredth of |w|, and grows at most fourfold from one estimate to the next."""
    notes = ["negative curvature was seen: steps are kept below 3 % of |w|"]
    before = state.step * state.factor if state.active else math.nan
    most = GROWTH * before if before > 0 else FIRST * size / length if size > 0 else math.inf
    if rate > most:
        notes.append(f"curvature allows for a rate of {rate:.3g}; it is held at {most:.3g} until the next estimate")
        rate = most
    limit = LONGEST * size if size > 0 else math.inf
    return Decision(rate, limit, scaling=scaling, notes=tuple(notes))
