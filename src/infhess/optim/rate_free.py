"""Nets without a rate: Adam's scaling, schedule-free averaging, and the rate from one product in eighty steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from infhess._checks import finite_number
from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.optim.averaging import Averaging, Group, Loss
from infhess.optim.norms import kept, norms_in
from infhess.optim.ranks import agreed, world
from infhess.optim.rate import EVERY, Rate, RateReport, log_ratio

# No divisor is smaller.
TINY = 1e-37


class RateFree(Averaging):
    """An optimizer for nets that has no rate to set.

    z moves by Adam's scaling of the gradient, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x
    (Defazio et al. 2024). The rate is σ √(gᵀDg/hᵀDh), with D Adam's scaling and h = H D g from one product in eighty steps,
    filtered over time.

    Args:
        params: as for any torch optimizer.
        weight_decay: decoupled, as in AdamW: part of y that goes for each unit of rate.
        betas: (β₁, β₂): how far y is towards the average, and the memory of squared gradients.
        lr: multiplies the rate that was found; a scheduler may change it.
        eps: Adam's ε, in units of the root mean square of the gradient.
        maximize: go up.

    Call `observe(loss, batch)` between backward and step, with each batch. Evaluate and save the model within `averaged()`, or
    after `finish()`: the averaged weights are the result. Weights changed by hand between steps are not taken over.

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
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        lr: float | Tensor = 1.0,
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        finite_number(weight_decay, "weight_decay", least=0.0)
        finite_number(float(lr), "lr", least=0.0)
        finite_number(eps, "eps", least=0.0)
        for beta in betas:
            if not 0 <= finite_number(beta, "betas") < 1:
                raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps, "maximize": maximize}
        super().__init__(params, defaults)

    # ---- the rate

    @full_precision
    def observe(
        self,
        loss: Loss,
        batch: Batch,
        *,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> RateReport | None:
        """Call it between backward and step, with each batch; now and then it looks at curvature, by one product.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batch: the one that the gradient is of.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: for dropout masks.

        Returns a report when it looked.

        """
        self._outside("observe")
        following, started = self._following, time.perf_counter()
        masks = generator or torch.Generator().manual_seed(int(following.steps))  # others at each look
        source = Hessian(loss, self._params(), [batch], products=products, generator=masks)
        following.observed += size_of(batch) * world()
        looking = following.due and following.observed_at < following.steps + 1
        following.observed_at = following.steps + 1
        before = following.allowed
        failure = self._look(source, batch) if looking else ()
        self._keep(loss, batch)
        if not looking:
            return None
        notes = (*failure, *following.words(before))
        seconds = time.perf_counter() - started
        return RateReport(self.rate, following.allowed, source.products, source.product_points, seconds, notes)

    def _look(self, source: Hessian, batch: Batch) -> tuple[str, ...]:
        """One product, along Adam's own direction. A look that fails changes nothing; the first one has to tell something."""
        following, failure = self._following, None
        seen = [math.nan] * 4
        try:
            with torch.no_grad():
                seen = self._seen(source, batch)
        except ValueError as error:
            failure = error
        following.gradient, size, length, found = _known(agreed(seen, self._params()[0].device), following.gradient)
        following.begin(size, length)
        if not math.isnan(found):
            following.see(found)
        following.look()
        hopeless = isinstance(failure, DoubleBackwardError) or (failure is not None and math.isnan(following.log_rate))
        if failure is not None and hopeless:
            raise failure
        if failure is None and math.isnan(found):
            failure = ValueError("there was no gradient, or no curvature along it, on this batch")
        return () if failure is None else (f"a look was skipped: {failure}",)

    def _seen(self, source: Hessian, batch: Batch) -> list[float]:
        """The scale of gradients, |w|, |Dg| and the logarithm of √(gᵀDg/hᵀDh), NaN where there is none."""
        local = source.local(batch)
        g = local.gradient()
        self._norms = local.watch.norms
        scale = float(torch.linalg.vector_norm(g)) / len(g) ** 0.5
        D = self._scaling(g, scale)
        p = D * g
        live = [real(w.detach()) for w in self._params() if w.requires_grad]
        return [
            scale,
            length([live]),
            float(torch.linalg.vector_norm(p)),
            log_ratio(g, p, source.product(local, p), D),
        ]

    def _scaling(self, g: Tensor, scale: float) -> Tensor:
        """D, flat, as the coming step would have it with this gradient."""
        parts, start = [], 0
        for group in self.param_groups:
            beta, eps = group["betas"][1], max(group["eps"] * scale, TINY)
            for p in group["params"]:
                own = self.state[p]
                here = g[start : start + own["z"].numel()].view_as(own["z"])
                start += own["z"].numel()
                v = beta * own["exp_avg_sq"].to(here) + (1 - beta) * here.square()
                D = 1 / ((v / (1 - beta ** (float(own["step"]) + 1))).sqrt() + eps)
                parts.append(torch.where(v > 0, D, torch.zeros_like(D)).reshape(-1))
        return torch.cat(parts)

    def _keep(self, loss: Loss, batch: Batch) -> None:
        """The last batches, where BatchNorm's statistics are to be gathered from them."""
        if self._norms is None:
            self._norms = norms_in(loss, batch, self._params())
        if self._norms:
            self._recent.append((loss, kept(batch)))

    @property
    def rate(self) -> Rate:
        """The rate in use, with its uncertainty; NaN before the first look."""
        return self._following.uncertain

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the closure runs once, before it, and its loss is returned."""
        self._outside("step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._step()
        return loss

    def _step(self) -> None:
        live = [(g, [p for p in g["params"] if p.grad is not None]) for g in self.param_groups]
        live = [(group, params) for group, params in live if params]
        if not live:
            return
        self._check_observed()
        grads = [_gradients(group, params) for group, params in live]
        if math.isnan(self._following.rate) or not math.isfinite(length(grads)):
            self._following.skip()
            return
        directions = [self._directions(*gp, g) for gp, g in zip(live, grads)]
        scale = max(float(group["lr"]) for group, _ in live)
        size = length([[real(p.detach()) for p in params] for _, params in live])
        step = self._following.advance(length(directions), size, scale)
        self._following.average(scale)
        for (group, params), direction in zip(live, directions):
            self._move(group, params, direction, step)
        self._publish()

    def _check_observed(self) -> None:
        following = self._following
        if not following.observed_at:
            raise RuntimeError(
                "RateFree: observe was not called, so there is no rate; call opt.observe(loss, batch) between backward and "
                "step, with each batch"
            )
        missed = following.steps - following.observed_at
        if missed >= 2 * EVERY and missed % (2 * EVERY) == 0:
            warnings.warn(
                f"RateFree: observe was not called for {missed:.0f} steps, and the rate follows curvature no more; "
                "call opt.observe(loss, batch) between backward and step, with each batch",
                stacklevel=3,
            )

    def _directions(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """Dg, with the squares of gradients brought up to date; weights that are new begin here."""
        beta, eps = group["betas"][1], group["eps"] * self._following.gradient
        for p in params:
            if not self.state[p].get("step"):
                self.state[p] = self._fresh(p)
            self.state[p]["step"] += 1
        own = [self.state[p] for p in params]
        squares = [o["exp_avg_sq"] for o in own]
        torch._foreach_mul_(squares, beta)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta)
        # One new tensor a parameter: new memory costs more than writing to what there is.
        directions = torch._foreach_sqrt(squares)
        roots = [(1 - beta ** float(o["step"])) ** 0.5 for o in own]
        torch._foreach_add_(directions, [max(eps * root, TINY) for root in roots])
        torch._foreach_reciprocal_(directions)
        torch._foreach_mul_(directions, grads)
        torch._foreach_mul_(directions, roots)
        return list(directions)

    def _move(self, group: Group, params: list[Tensor], directions: list[Tensor], step: float) -> None:
        """z −= step·(Dg + decay·y), x += c (z − x), y = (1 − β₁) z + β₁ x."""
        rate, decay = step * float(group["lr"]), group["weight_decay"]
        z, x = ([self.state[p][name] for p in params] for name in ("z", "averaged"))
        y = [real(p) for p in params]
        if decay:
            torch._foreach_add_(directions, [w.to(d.dtype) for w, d in zip(y, directions)], alpha=decay)
        torch._foreach_add_(z, directions, alpha=-rate)
        begun = [float(self.state[p]["begun"]) for p in params]
        if len(set(begun)) == 1:
            torch._foreach_lerp_(x, z, self._following.newest(begun[0]))
        else:
            for mean, newest, before in zip(x, z, begun):
                mean.lerp_(newest, self._following.newest(before))
        if all(w.dtype == mean.dtype for w, mean in zip(y, x)):
            torch._foreach_copy_(y, x)
            torch._foreach_lerp_(y, z, 1 - group["betas"][0])
        else:
            torch._foreach_copy_(y, torch._foreach_lerp(x, z, 1 - group["betas"][0]))


def _gradients(group: Group, params: list[Tensor]) -> list[Tensor]:
    """Real, in single precision at the least, downwards."""
    found = []
    for p in params:
        assert p.grad is not None
        if p.grad.is_sparse:
            raise RuntimeError("RateFree does not take sparse gradients; use sparse=False in the embedding")
        g = real(p.grad)
        found.append(g.to(torch.promote_types(g.dtype, torch.float32)))
    return list(torch._foreach_neg(found)) if group["maximize"] else found


def _known(seen: list[float], before: float) -> list[float]:
    """With the scale of gradients as before where there is none now."""
    return [seen[0] if 0 < seen[0] < math.inf else before, *seen[1:]]
