"""The optimizer: any torch optimizer, its gradients preconditioned by inferred curvature and its step measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from infhess._checks import count
from infhess._precision import full_precision
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import real
from infhess.curvature.local import Local
from infhess.lowrank import Operator
from infhess.optim import drive
from infhess.optim.bases import decay, moved, rate_is_known, root_of_scaling
from infhess.optim.blocks import BLOCKS
from infhess.optim.estimate import POINTS_A_DIRECTION, Estimate, layered, pooled, printed, printed_layers, read_pool
from infhess.optim.report import Report
from infhess.optim.safety import FRESH, Step, measured_step
from infhess.optim.scaling import Scaling
from infhess.optim.wrapper import Wrapper

METHODS = ("curvature", "paper")
STEP_LENGTHS = ("measured", "paper", "keep")


class Preconditioned(Wrapper):
    """Any torch optimizer, with gradients preconditioned by inferred curvature and a step that needs no tuning.

    Before the first `update` or `observe` it is its base, bit for bit. From then on w moves by −step·lr/lr₀·P²g where the base
    is sgd, with lr₀ the rate that the base was made with: `lr` is the scheduler's, and the rate given at the start does
    not matter. Momentum, Adam's scaling and weight decay stay the base's.

    Args:
        base: the optimizer to wrap; parameter groups are shared with it.
        rank: directions of P; 32 by default, less where that would take more than 1 GiB.
        method: "curvature", the library's best, or "paper", de Roos & Hennig 2019 as printed.
        blocks: "whole" (one matrix over all parameters, for small and convex problems) or "layer" (one a layer, for nets).
        step_length: "measured" (1/λmax(P²B) on fresh batches), "paper" (α² times the base's rate; 1/b0 for layers) or "keep"
            (the base's own rate). By default the method's own.
        steps: products of inference; by default rank, and for "paper" 16, or 5 for layers.

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

    _settings = ("method", "step_length", "steps")

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
        super().__init__(base, None if rank is None else count(rank, "rank"), blocks)
        self.method, self.step_length, self.steps = (
            method,
            step_length,
            None if steps is None else count(steps, "steps"),
        )

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
        found = self._estimated(source)
        step = self._step_of(source, found)
        self._install(step.scaling, step.step, step.limit)
        self._numbers.start_over()
        seconds = time.perf_counter() - started
        return Report(
            found.values, found.std, step.step, source.products, source.data_points, seconds, found.notes + step.notes,
            source.product_points,
        )  # fmt: skip

    @full_precision
    def observe(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        *,
        split: bool = True,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> Report | None:
        """Self-driving: call it between backward and step with each batch, instead of `update`.

        It estimates, refreshes and follows the step length by itself, on the batches that training reads anyway (a few of
        them are kept until an estimate is made). Where the loss proves not to be convex it follows the step alone.

        Returns a report when it did something; its data_points are 0, since nothing was read beside training.
        """
        if self.method != "curvature" or self.step_length != "measured":
            raise ValueError('observe: needs method="curvature" and step_length="measured"; with others call update')
        if not rate_is_known(self.base):
            raise ValueError(
                f"observe: {type(self.base).__name__} does not move by its rate times a known scaling; wrap SGD or Adam"
            )
        self._check_rates()
        started = time.perf_counter()
        masks = generator or torch.Generator().manual_seed(int(self._numbers.steps))  # others for each batch
        source = self._source(loss, [batch], split, products, masks)
        with torch.no_grad():
            seen = drive.observe(self, source, batch)
        if seen is None:
            return None
        values, notes = seen
        bars = torch.full_like(values, torch.nan)
        seconds = time.perf_counter() - started
        n = self._numbers
        std = n.step * n.log_rate_variance**0.5 if n.log_rate == n.log_rate else math.nan
        return Report(values, bars, n.step, source.products, 0, seconds, notes, source.product_points, std)

    def _source(
        self,
        loss: Callable[[Batch], Tensor],
        batches: Iterable[Batch],
        split: bool,
        products: str,
        generator: torch.Generator | None,
    ) -> Hessian:
        """The curvature of what is minimised: of −loss where the base maximises."""
        if not callable(loss):
            raise TypeError(f"loss: expected a callable from a batch to a scalar, got {type(loss).__name__}")
        signs = {bool(group.get("maximize", False)) for group in self.param_groups}
        if len(signs) > 1:
            raise ValueError("expected all groups to minimise, or all to maximise")
        for i, p in enumerate(self._params()):
            if real(p.detach()).shape != self._learnt.of(p)["basis"].shape[1:]:
                raise ValueError(
                    f"parameter {i} has changed its shape to {tuple(p.shape)}; make a new Preconditioned for the new model"
                )
        minimised = (lambda batch: -loss(batch)) if signs.pop() else loss
        return Hessian(minimised, self._params(), batches, products=products, split=split, generator=generator)

    def _estimated(self, source: Hessian) -> Estimate:
        sizes, rank = self._sizes(), min(self.rank, source.size)
        if self.method == "paper":
            if self.blocks == "layer":
                return printed_layers(source, sizes, rank, self.steps or max(5, rank))
            return printed(source, rank, self.steps or max(16, rank))
        root = self._root(source)
        if self.blocks == "layer":
            return layered(source, sizes, rank, self.steps or rank, root)
        steps = self.steps or rank
        return pooled(source, read_pool(source, POINTS_A_DIRECTION * steps), rank, steps, root)

    def _root(self, source: Hessian) -> Tensor | None:
        """The root of the base's own scaling; before its first step, from the squares of a few gradients."""
        if not self._adaptive:
            return None
        if all(moved(self.state.get(p, {})) for p in self._params()):
            return root_of_scaling(self.base, source.like)
        squares = source.like.new_zeros(source.size)
        for _ in range(FRESH):
            squares += source.gradient().square() / FRESH
        return root_of_scaling(self.base, source.like, squares)

    def _root_of(self, local: Local) -> Tensor | None:
        """The same for the coming step, with the gradient of its batch."""
        if not self._adaptive:
            return None
        g = local.gradient()
        return root_of_scaling(self.base, g, g.square())

    def _step_of(self, source: Hessian, found: Estimate) -> Step:
        """The step of the chosen kind, and P² with the factor that goes with it."""
        scaling = found.scaling
        if self.step_length == "keep":
            plain = self.method == "paper" or self._adaptive  # Adam's own rate is for gradients of its own scale
            return Step(replace(scaling, factor=1.0) if plain else scaling, math.nan)
        if self.step_length == "paper":
            return self._printed_step(scaling, found)
        if not rate_is_known(self.base):
            kept = f"{type(self.base).__name__} keeps its rate, which does not multiply a known scaling of gradients"
            return Step(replace(scaling, factor=1.0), math.nan, math.inf, (kept,))
        self._check_rates()
        return measured_step(source, scaling, self._numbers, self._w(), decay(self.base, scaling.root))

    def _printed_step(self, scaling: Scaling, found: Estimate) -> Step:
        """α² times the base's rate, α² = Σ₁/Σ_k; or 1/b0 for the paper's layers."""
        if not math.isnan(found.step):
            return Step(scaling, found.step)
        alpha2 = scaling.factor if self.method == "paper" else float(found.values[0]) * scaling.factor
        if self._adaptive:
            return Step(replace(scaling, factor=1.0), alpha2 * self._numbers.base_rate)
        return Step(replace(scaling, factor=alpha2), math.nan)

    def _check_rates(self) -> None:
        if not self._numbers.base_rate > 0:
            raise ValueError(
                f"lr: expected a rate above 0 when the base is made, of whatever size, got {self._numbers.base_rate:g}; "
                "a measured step is applied relative to it"
            )

    @property
    @full_precision
    def preconditioner(self) -> Operator:
        """P² as an operator on flat gradients, in the order of the parameters; the identity before the first estimate."""
        return self._scaling().operator()

    @property
    @full_precision
    def due(self) -> bool:
        """Whether curvature along the steps has left what was predicted, so that it is time for another `update`."""
        if not self._numbers.directions:
            return False
        own = [self._learnt.of(self._params()[block[0]]) for block in self._blocks()]
        return self._drift.due(torch.cat([o["values"] for o in own]), torch.cat([o["gain"] for o in own]))
