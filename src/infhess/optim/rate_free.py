"""Nets without a learning rate: scaled gradients, schedule-free averaging, and the rate from one probe in eighty steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable

from infhess._checks import count, finite_number
from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.optim import sharded
from infhess.optim.averaging.averaged import Group, Loss
from infhess.optim.joining import probing
from infhess.optim.probing import Probing
from infhess.optim.rate.live import length_of, live
from infhess.optim.rate.prober import Prober
from infhess.optim.reports import RateReport
from infhess.optim.scalings import SCALINGS


class RateFree(Probing):
    """An optimizer for nets that has no learning rate to set.

    z moves by the scaled gradient Dg, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x (Defazio et al.
    2024). The learning rate is σ √(gᵀDg/hᵀDh), with h = H D g from one Hessian-vector product in eighty steps, filtered over
    time.

    Args:
        params: as for any torch optimizer.
        weight_decay: decoupled, as in AdamW: part of y that goes for each unit of learning rate.
        scaling: D: "kronecker", Adam's in coordinates that are rotated for each matrix (SOAP, Vyas et al. 2024); or "diagonal",
            Adam's. The former takes fewer steps, and for a layer of out × in up to 512 · out · in operations a step and
            128 · (out + in) numbers of memory more: with small batches and wide dense layers the latter may be faster.
        betas: (β₁, β₂): how far y is towards the average, and the memory of squared gradients; (.9, .99) by default, (.9, .999)
            with the diagonal scaling.
        lr: multiplies the learning rate that was found; a scheduler may change it.
        eps: Adam's ε, in units of the root mean square of the gradient, the largest so far; 1e-3 by default. With the diagonal
            scaling, of the last gradient that was probed; 1e-8.
        maximize: go up.
        points: the batch size of a process, where a training pass does not tell; 32 is assumed without.

    Call `observe(loss, batch)` between backward and step, with each batch. Evaluate and save the model within `averaged()`, or
    after `finish()`: the averaged weights are the result. Weights changed by hand between steps are not taken over.

    Gradients are what `.grad` holds when the step is made. Clipped, accumulated over several batches (call `observe` with
    each of them), averaged over processes or multiplied by a `GradScaler`: the learning rate is the same.

    >>> import torch, infhess
    >>> model = torch.nn.Linear(3, 1)
    >>> opt = infhess.RateFree(model.parameters())
    >>> x = torch.randn(64, 3); y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    >>> loss = lambda batch: (model(batch[0]) - batch[1]).square().mean()
    >>> for _ in range(300):
    ...     opt.zero_grad(); loss((x, y)).backward()
    ...     report = opt.observe(loss, (x, y)); opt.step()
    >>> opt.finish()
    >>> bool(loss((x, y)) < 1e-2)
    True

    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        scaling: str = "kronecker",
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
        lr: float | Tensor = 1.0,
        eps: float | None = None,
        maximize: bool = False,
        points: int | None = None,
    ) -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling: expected one of {', '.join(SCALINGS)}; got {scaling!r}")
        chosen = SCALINGS[scaling]
        betas, eps = betas or (0.9, chosen.beta), chosen.eps if eps is None else eps
        finite_number(weight_decay, "weight_decay", least=0.0)
        if finite_number(lr, "lr", least=0.0) != 1:
            warnings.warn(
                f"RateFree: lr={float(lr):g} multiplies the learning rate that curvature gives; pass lr=1, as skorch's "
                "NeuralNet(..., lr=1), unless you mean that",
                stacklevel=2,
            )
        finite_number(eps, "eps", least=0.0)
        pair = isinstance(betas, Sequence) and len(betas) == 2
        if not pair or not all(0 <= finite_number(beta, "betas") < 1 for beta in betas):
            raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
        defaults: Group = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps}
        defaults |= {"maximize": maximize, "scaling": scaling}
        self._prober = Prober(chosen.rule)
        self._reset_size()
        self.points = None if points is None else count(points, "points")
        self.report: RateReport | None = None  # of the last curvature probe
        super().__init__(params, defaults)
        Joinable.__init__(self)

    # ---- the learning rate

    @full_precision
    def observe(
        self,
        loss: Loss,
        batch: Batch,
        *,
        points: int | None = None,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> RateReport | None:
        """Call it between backward and step, with each batch; now and then it probes curvature, by one product.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batch: the one that the gradient is of. With gradient accumulation, call it for each micro-batch; or for the last
                one alone, with `points`.
            points: data points that this call stands for, where the batch does not tell.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: for dropout masks.

        Returns a report when it probed curvature.

        """
        self._outside("observe")
        self._outside_watch("observe")
        sharded.check_whole(self._params() if self._sharded else (), "RateFree.observe")
        started = time.perf_counter()
        due = self._prober.expects(lambda: size_of(batch) if points is None else count(points, "points"))
        if not due or not self._ready:
            self._keep(loss, batch)
            return None
        try:
            self._prober.attempt(lambda: self._add(loss, batch, points, products, generator or self._masks()))
            before, probes = self._rate_state.allowed, self._prober.complete and not self._join_config.enable
            notes = self._prober.begin(self._read, self._params()) if probes else ()
        except BaseException:
            self._prober.reset()
            raise
        self._prober.attempt(lambda: self._keep(loss, batch))
        return self._report(notes, before, started) if probes else None

    def _add(self, loss: Loss, batch: Batch, points: int | None, products: str, masks: torch.Generator) -> None:
        source = Hessian(loss, self._params(), [batch], products=products, points=points, generator=masks)
        source.pooled = False  # the probe takes the mean over processes
        self._prober.add(source, batch)

    def _masks(self) -> torch.Generator:
        """For dropout, others at each probe and for each micro-batch."""
        return torch.Generator().manual_seed(int(self._rate_state.steps) + (self._prober.micro_batches - 1) * 2**32)

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Around the forward and backward pass of training, in a loop without a closure; then `step()`.

        On the steps at which curvature is probed, one in eighty, the gradient's graph is kept and the Hessian-vector product
        is taken in `step`. Else nothing happens. With gradient accumulation, watch each micro-batch.

        Args:
            points: the batch size. By default it is the leading dimension of what the model's parameters are applied to.

        """
        self._to_train("watch")
        sharded.check_whole(self._params() if self._sharded else (), "RateFree.watch")
        known = None if points is None else count(points, "points")
        with self._open_watch(), self._training_pass() as done:
            yield
        self._take(done, known)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A batch that was observed and never stepped with, for a gradient that is not finite, is skipped."""
        grads = [real(p.grad) for p in self._params() if p.grad is not None and not p.grad.is_sparse]
        if self._prober.micro_batches and grads and not (self._sharded or math.isfinite(length([grads]))):
            self._prober.reset()
            self._rate_state.skip(finite=False)
        super().zero_grad(set_to_none)

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the closure runs once, before it, and its loss is returned.

        Curvature is probed on the closure's own pass. Where that cannot be differentiated twice (FSDP2, some kernels), the
        closure runs once more on probing steps, and curvature is a difference of gradients.
        """
        self._outside("step")
        loss = random_state = None
        if closure is not None:
            self._to_train("step")
            random_state = torch.get_rng_state() if self._probes else None
            with torch.enable_grad():
                loss = self._run(closure)
        self._outside_watch("step")  # a closure may end it, as Lightning's does
        if closure and random_state is not None and (self._rate_state.differences or self._sharded):
            self._difference(closure, random_state)
        seen = int(self._rate_state.observed)
        with torch.no_grad():
            try:
                self._step()
            except DoubleBackwardError as error:
                if closure is None:
                    raise
                self._rate_state.differences = 1.0
                self._prober.expects(lambda: seen)
                self._difference(closure, random_state)
                self._step()
                self._note(f"curvature is probed by differences of gradients from here on: {error}")
        return loss

    def _step(self) -> None:
        parts = [part for part in map(live, self.param_groups) if part.params]
        if not parts:
            return
        self._check_observed()
        if self._probes and not self._sharded:
            self._prober.expect_of_all()
        if self._join_config.enable:
            Join.notify_join_context(self)
        gradient, before, started = length_of(parts), self._rate_state.allowed, time.perf_counter()
        if self._join_config.enable:
            probing(bool(self._prober.pieces or self._prober.failure) and math.isfinite(gradient), self._params())
        notes = self._prober.finish(gradient, self._read, self._params())
        state = self._rate_state
        if notes is not None:
            self._report(notes, before, started)
        if 0 < gradient < math.inf and not self._ready:
            for part in parts:
                self._begin(part)
            state.wait()
            return
        if math.isnan(state.rate) or not math.isfinite(gradient):
            state.skip(math.isfinite(gradient))
            return
        known = [self._owns(part.params) for part in parts]
        if state.weighs_noise:
            state.weigh_noise(sum(self._lead(part, owns) for part, (owns, _) in zip(parts, known)))
        moves = [self._directions(part, ages) for part, (_, ages) in zip(parts, known)]
        scale = max(float(part.group["lr"]) for part in parts)
        move = math.hypot(*(r * sharded.length_of([(d, part.params)]) for part, (d, r) in zip(parts, moves)))
        step = state.advance(move, self._size_of(parts, scale), scale)
        state.average(scale)
        for part, (owns, _), (d, r) in zip(parts, known, moves):
            self._move(part, owns, d, step * float(part.group["lr"]), r)
