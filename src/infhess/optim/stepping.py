"""The step of RateFree: z by the scaled gradient, the average, and the weights that train; whole, or sharded over processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.join import Joinable, JoinHook

from infhess.curvature.flat import real
from infhess.optim import sharded
from infhess.optim.averaging.averaged import NUMBERS, Averaging, Group
from infhess.optim.joining import ShadowSteps
from infhess.optim.rate.live import Live
from infhess.optim.rate.prober import Prober
from infhess.optim.reports import RateReport
from infhess.optim.scalings.gradient_scaling import Share, alone
from infhess.optim.watching import Watching

# Steps so many times shorter than their bound by |w| leave |w| much as it is for so many steps.
FAR, SIZE_HOLDS = 4.0, 16


class Stepping(Averaging, Watching, Joinable):
    """z −= η D g, x the average of all z, y = (1 − β₁) z + β₁ x: the arithmetic, and what of it a checkpoint holds."""

    points: int | None
    report: RateReport | None

    def add_param_group(self, param_group: Group) -> None:
        """One more group; its average begins with the next step."""
        super().add_param_group(param_group)
        self._sharded = any(map(sharded.is_sharded, self._params()))  # spread over processes, as by `fully_shard`

    def _begin(self, part: Live) -> None:
        """What the scaling learns from the first gradients."""
        self._owns(part.params)
        for i, (g, p) in enumerate(zip(part.grads, part.params)):
            own = self._own(p)
            self._scaling.begin([own], [self._seen_by_scaling(g, p)], self._share(p, i))
            self._keep_own(p, own)

    def _directions(self, part: Live, ages: list[float]) -> tuple[list[Tensor], float]:
        """d and r with Dg = r d, for the local parts of sharded parameters."""
        beta, eps = part.group["betas"][1], self._eps(part.group)
        if not self._sharded:
            return self._scaling.directions([self.state[p] for p in part.params], ages, beta, eps, part.grads)
        found = []
        for i, (g, p, age) in enumerate(zip(part.grads, part.params, ages)):  # one by one: each is whole for a while
            own, g = self._own(p), self._seen_by_scaling(g, p)
            (d,), r = self._scaling.directions([own], [age], beta, eps, [g], self._share(p, i))
            self._keep_own(p, own)
            found.append(self._seen_by_step(d * r, p))
        return found, 1.0

    # ---- sharded parameters: a scaling sees their local parts, or all of them where it needs whole matrices

    def _own(self, p: Tensor) -> dict[str, Any]:
        """The state of a parameter as a scaling sees it."""
        own: dict[str, Any] = self.state[p]
        if not sharded.is_sharded(p):
            return own
        names = self._scaling.shapes(p) if self._gathers(p) else ()
        return {k: sharded.whole(v) if k in names else sharded.local(v) for k, v in own.items()}

    def _keep_own(self, p: Tensor, seen: dict[str, Any]) -> None:
        """What a scaling has written to whole tensors."""
        if self._gathers(p):
            for name in self._scaling.shapes(p):
                sharded.local(self.state[p][name]).copy_(sharded.part(seen[name], self.state[p][name]))

    def _share(self, p: Tensor, i: int) -> Share:
        """Each matrix of a sharded parameter is decomposed by one process."""
        return sharded.shared(p, i) if self._gathers(p) else alone

    def _seen_by_scaling(self, x: Tensor, p: Tensor) -> Tensor:
        return sharded.gathered(x, p) if self._gathers(p) else x

    def _seen_by_step(self, x: Tensor, p: Tensor) -> Tensor:
        return sharded.part(x, p) if self._gathers(p) else x

    def _owns(self, params: list[Tensor]) -> tuple[list[dict[str, Any]], list[float]]:
        """The state of each parameter and its steps so far; the average of one that is new begins where it is now."""
        ages = [float(self.state[p].get("step", 0.0)) for p in params]
        for p, age in zip(params, ages):
            if not age:
                self.state[p] = self._fresh(p)
        return [self.state[p] for p in params], ages

    def _size_of(self, parts: list[Live], scale: float) -> float:
        """|w|, measured again where a step may come close to its bound by |w|, and every few steps."""
        state = self._rate_state
        self._size_age += 1
        far = FAR * state.rate * scale * state.length <= state.rule.longest * self._size
        if not far or self._size_age >= SIZE_HOLDS:
            weights = [([sharded.local(real(p.detach())) for p in part.params], part.params) for part in parts]
            self._size, self._size_age = sharded.length_of(weights), 0
        return self._size

    def _eps(self, group: Group) -> float:
        return float(group["eps"]) * self._rate_state.gradient

    def _lead(self, part: Live, owns: list[dict[str, Any]]) -> float:
        """⟨g, z − x⟩ of a group."""
        z, x = ([sharded.local(own[name]) for own in owns] for name in ("z", "averaged"))
        leads = [float((g * d).sum()) for g, d in zip(part.grads, torch._foreach_sub(z, x))]
        return sharded.total(leads, part.params)

    def _move(self, part: Live, owns: list[dict[str, Any]], d: list[Tensor], rate: float, r: float) -> None:
        """z −= rate·(r d + decay·y), x += c (z − x), y = (1 − β₁) z + β₁ x."""
        group, newest = part.group, self._rate_state.newest
        y, z, x = [real(p) for p in part.params], [own["z"] for own in owns], [own["averaged"] for own in owns]
        if self._sharded:
            y, z, x = [[sharded.local(v.detach()) for v in values] for values in (y, z, x)]
        if group["weight_decay"]:
            torch._foreach_add_(z, [w.to(v.dtype) for w, v in zip(y, z)], alpha=-rate * group["weight_decay"])
        torch._foreach_add_(z, d, alpha=-rate * r)
        begun = [float(own["begun"]) for own in owns]
        if min(begun) == max(begun):
            torch._foreach_lerp_(x, z, newest(begun[0]))
        else:
            for mean, new, before in zip(x, z, begun):
                mean.lerp_(new, newest(before))
        weight = 1 - group["betas"][0]
        for w, mean, new in zip(y, x, z):
            if w.dtype == mean.dtype:
                torch.lerp(mean, new, weight, out=w)
            else:
                w.copy_(torch.lerp(mean, new, weight))

    # ---- processes that run out of data

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For `torch.distributed.algorithms.Join([model, opt])`."""
        return ShadowSteps(self._params, self._joined_state, self._adopt_joined)

    @property
    def join_device(self) -> torch.device:
        """Where the parameters are."""
        return self._params()[0].device

    @property
    def join_process_group(self) -> Any:
        """All processes."""
        return torch.distributed.group.WORLD

    def _joined_state(self) -> list[Tensor]:
        self._publish()
        return [t for p in self._params() for _, t in sorted(self.state[p].items())]

    def _adopt_joined(self) -> None:
        self._take_scalars(self.state[self._params()[0]][NUMBERS])

    # ---- checkpoints

    def __getstate__(self) -> dict[str, Any]:
        state = replace(self._rate_state, averaged=float(self._inside or self._rate_state.averaged))
        kept = {"_prober": Prober(self._scaling.rule, state), "points": self.points, "report": self.report}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset_size()
        super().__setstate__(state)
        Joinable.__init__(self)
        self._sharded = any(map(sharded.is_sharded, self._params()))
