"""Applies a scaling to parameters and their state, whole or sharded over processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from infhess.optim import sharded
from infhess.optim.rate.live import Live
from infhess.optim.rate.probe import dot
from infhess.optim.scalings.gradient_scaling import Gradients, GradientScaling, Own, Share, alone


class Scaler:
    """Gradients and directions are local parts; the scaling gets these, or gathered parameters if it needs whole matrices."""

    def __init__(self, scaling: GradientScaling, state: Mapping[Tensor, Own], *, any_sharded: bool) -> None:
        self.scaling, self.state, self._any_sharded = scaling, state, any_sharded

    def fresh(self, w: Tensor) -> dict[str, Tensor]:
        """State of a parameter before its first gradient; distributed over processes if a sharded one is needed as a whole."""
        if not self._gathers(w):
            return self.scaling.fresh(w)
        found = self.scaling.fresh(torch.empty(w.shape, dtype=w.dtype, device="meta"))
        return {name: sharded.spread(t, w) for name, t in found.items()}

    def begin(self, part: Live) -> None:
        """Let the scaling learn from first gradients."""
        for i, (g, p) in enumerate(zip(part.grads, part.params)):
            own = self._own(p)
            self.scaling.begin([own], [self._seen(g, p)], self._share(p, i))
            self._keep(p, own)

    def directions(self, part: Live, eps: float) -> list[Tensor]:
        """Dg of each parameter; updates the state."""
        beta = part.group["betas"][1]
        if not self._any_sharded:
            return self.scaling.directions(Gradients(part.owns, part.ages, part.grads, beta, eps))
        found = []
        # One by one, so that one is gathered at a time.
        for i, (g, p, age) in enumerate(zip(part.grads, part.params, part.ages)):
            own = self._own(p)
            step = Gradients([own], [age], [self._seen(g, p)], beta, eps, self._share(p, i))
            (d,) = self.scaling.directions(step)
            self._keep(p, own)
            found.append(self._given(d, p))
        return found

    def ahead(self, p: Tensor, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """D x, with D at the coming step, given its gradient g."""
        return self._given(self.scaling.ahead(self._own(p), beta, eps, self._seen(g, p), self._seen(x, p)), p)

    def form(self, p: Tensor, beta: float, eps: float, g: Tensor, x: Tensor, y: Tensor) -> float:
        """xᵀDy with the same D as in `ahead`, for a parameter that is not sharded."""
        return dot(*self.scaling.paired(self.state[p], beta, eps, g, x, y))

    # ---- sharded parameters

    def _gathers(self, p: Tensor) -> bool:
        """Whether a parameter is sharded and the scaling needs the whole of it."""
        return sharded.is_sharded(p) and self.scaling.needs_whole(p.shape)

    def _own(self, p: Tensor) -> Own:
        """The state of a parameter as the scaling needs it."""
        own = self.state[p]
        if not sharded.is_sharded(p):
            return own
        names = self.scaling.shapes(p) if self._gathers(p) else ()
        return {k: sharded.whole(v) if k in names else sharded.local(v) for k, v in own.items()}

    def _keep(self, p: Tensor, seen: Own) -> None:
        """Store what the scaling has written to gathered tensors."""
        if self._gathers(p):
            for name in self.scaling.shapes(p):
                sharded.local(self.state[p][name]).copy_(sharded.part(seen[name], self.state[p][name]))

    def _share(self, p: Tensor, i: int) -> Share:
        """How processes share the matrices of a sharded parameter: each is decomposed by one process."""
        return sharded.shared(p, i) if self._gathers(p) else alone

    def _seen(self, x: Tensor, p: Tensor) -> Tensor:
        return sharded.gathered(x, p) if self._gathers(p) else x

    def _given(self, x: Tensor, p: Tensor) -> Tensor:
        return sharded.part(x, p) if self._gathers(p) else x
