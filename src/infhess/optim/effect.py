"""Whether steps have an effect: after ten in a row without one there is one warning, which says why."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from infhess.curvature.flat import dense
from infhess.curvature.training_pass import TrainingPass
from infhess.optim import sharded

# Steps without an effect before the warning: fewer are normal, as when a `GradScaler` looks for its scale.
IN_A_ROW = 10
# Steps without a training pass before the warning, as for `RateFree`.
UNSEEN = 160

NONE = (
    "no parameter had a gradient; call loss.backward() between zero_grad() and step(), on a loss of the model whose parameters "
    "the optimizer has"
)
CLEARED = "gradients were cleared between backward() and step(); call zero_grad() before the forward pass"
UNREACHED = (
    "backward() reached none of the optimizer's parameters; make the optimizer of the model that is trained, after its layers "
    "are final"
)
ZERO = (
    "all gradients were exactly zero; unless the loss is at its minimum, look for a mask over all the data, dead units, or a "
    "weight of 0 on the loss"
)
NO_RATE = "no learning rate is known; were training passes seen? the notes of opt.report say what a probe lacked"
EARLY = "watch() ended before backward() for 10 steps in a row, so no curvature was seen; put both passes into it"


class Effect:
    """How many steps in a row had no effect, and what was seen in their training passes."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self.idle = self._blind = self._unseen = (
            0  # steps in a row: without effect, without backward in watch(), without pass
        )
        self._reached: bool | None = None  # whether backward has reached a parameter; None: not known
        self._cleared = False  # whether gradients were cleared after a training pass
        self._early = False  # whether the last watch() ended before backward
        self._strays = 0  # parameters without a gradient, next to others that had one
        self._noted = False

    def passed(self, done: TrainingPass | None) -> None:
        """A training pass has ended; `done` is None if nothing was recorded of it."""
        if done is not None and done.seen:
            self._reached = self._reached or done.reached
            self._strays = done.strays if done.reached else 0
        self._early = done is not None and not done.seen

    def cleared(self) -> None:
        """`zero_grad` was called after a training pass."""
        self._cleared = True

    def missing(self) -> str:
        """Why there is no gradient at all, from what was seen in these steps."""
        if self._cleared or self._reached:
            return CLEARED
        return NONE if self._reached is None else UNREACHED

    def stepped(self, opt: Any, cause: str | None) -> None:
        """Count a step; `cause` says why it had no effect, or is None if it had one."""
        self._blind = self._blind + 1 if self._early and cause is None else 0
        self.idle = self.idle + 1 if cause is not None else 0
        self._early = False
        if cause is None:
            self._reached, self._cleared = None, False
        elif self.idle == IN_A_ROW:
            self._say(f"{type(opt).__name__}: {IN_A_ROW} steps in a row learnt nothing: {cause}")
        if self._blind == IN_A_ROW:
            self._say(f"{type(opt).__name__}: {EARLY}")

    def unseen(self, opt: Any, missed: bool) -> None:
        """Count a step for which no training pass was seen, where passes were seen before."""
        self._unseen = self._unseen + 1 if missed else 0
        if self._unseen == UNSEEN:
            self._say(
                f"{type(opt).__name__}: no training pass was seen for {UNSEEN} steps, and the rate follows curvature no more; "
                "call opt.step(closure), opt.watch() or opt.observe(loss, batch) with each batch"
            )

    def notes(self) -> tuple[str, ...]:
        """A note, once, if some of the parameters get no gradient, and parameters of others do."""
        if self._noted or not self._strays:
            return ()
        self._noted = True
        return (
            f"{self._strays} parameters had no gradient, and backward() reached parameters that the optimizer does not have; "
            "was a layer replaced after the optimizer was made?",
        )

    def _say(self, text: str) -> None:
        """Warn, once with each text."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=5)


def not_finite(groups: Iterable[dict[str, Any]]) -> str:
    """Which parameter is the first whose gradient is not finite."""
    first = "some parameter"
    found = ((group, i, p) for group in groups for i, p in enumerate(group["params"]) if p.grad is not None)
    for group, i, p in found:
        if not sharded.local(dense(p.grad)).isfinite().all():
            first = group["param_names"][i] if "param_names" in group else f"parameter {i}, {tuple(p.shape)}"
            break
    return f"the gradient holds NaN or infinity, first in {first}; look at the data, and at the loss on it"


def without_effect(groups: Iterable[dict[str, Any]], gradient: float, known: bool) -> str | None:
    """Why a step with a gradient of this length changes nothing; `known`: whether there is a learning rate."""
    if not math.isfinite(gradient):
        return not_finite(groups)
    return ZERO if gradient == 0 else None if known else NO_RATE


def all_zero(grads: Iterable[Tensor | None]) -> bool:
    """Whether all gradients are exactly zero. The last ones are tested first: biases of the output are small."""
    known = [g for g in grads if g is not None]
    return not any(bool(dense(g).any()) for g in reversed(known))
