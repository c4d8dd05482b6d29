"""The optimizer: any torch optimizer, its gradients preconditioned by inferred curvature and its step measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from infhess._checks import count
from infhess._precision import full_precision
from infhess.curvature.batches import Batch
from infhess.curvature.flat import real
from infhess.lowrank import Operator
from infhess.optim.base_optimizers import rate_is_known
from infhess.optim.preconditioning.layers import BLOCKS
from infhess.optim.reports import Report
from infhess.optim.self_driving import SelfDriving
from infhess.optim.updates import Update

METHODS = ("curvature", "paper")
STEP_LENGTHS = ("measured", "paper", "keep")


class Preconditioned(SelfDriving):
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

    _settings = (*SelfDriving._settings, "steps")

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
        for name, value, allowed in (
            ("method", method, METHODS),
            ("blocks", blocks, BLOCKS),
            ("step_length", step_length, STEP_LENGTHS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
        super().__init__(base, None if rank is None else count(rank, "rank"), blocks, method, step_length)
        self.steps = None if steps is None else count(steps, "steps")

    @full_precision
    def update(
        self,
        loss: Callable[[Batch], Tensor],
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
        started = time.perf_counter()
        source = self._source(loss, batches, split, products, generator)
        if self.step_length == "measured" and rate_is_known(self.base):
            self._check_rates()
        update = self._update()
        found = update.estimate(source)
        step = update.step(source, found)
        self._install(step.scaling)
        self._state.step, self._state.limit = step.step, step.limit
        self._state.start_over()
        notes = (*self._unread, *found.notes, *step.notes, *self._state.diagnostics())
        self._unread = ()
        seconds = time.perf_counter() - started
        cost = source.products, source.data_points, seconds, notes, source.product_points
        self.report = Report(found.values, found.std, step.step, *cost)
        return self.report

    # ---- an estimate

    def _update(self) -> Update:
        params = self._params()
        sizes = [sum(real(params[i].detach()).numel() for i in block) for block in self._blocks()]
        rank = min(self.rank, sum(sizes))
        return Update(self.base, self._state, sizes, rank, self.blocks, self.method, self.step_length, self.steps)

    @property
    @full_precision
    def preconditioner(self) -> Operator:
        """P² as an operator on flat gradients, in the order of the parameters; the identity before the first estimate."""
        return self._scaling().operator()

    @property
    @full_precision
    def due(self) -> bool:
        """Whether curvature along the steps has left what was predicted, so that it is time for another `update`."""
        if not self._state.directions:
            return False
        own = self._learnt.blocks
        return self._learnt.drift.due(torch.cat([o.values for o in own]), torch.cat([o.gain for o in own]))
