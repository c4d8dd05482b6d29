"""Weight decay without a constant to tune: noise makes weights longer, and part of that is removed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import real, widened
from infhess.optim import sharded
from infhess.optim.rate.live import Live
from infhess.optim.rate.settings import RateFreeRule


def shrink(
    part: Live, owns: Sequence[dict[str, Any]], directions: Sequence[Tensor], rate: float, rule: RateFreeRule
) -> None:
    """z −= ½ k κ (|step|/|W|)² W for each matrix W, where the step is `rate` times its direction.

    A step orthogonal to W lengthens it by ½ (|step|/|W|)² of |W|. If gradients are noise, this is diffusion: |W|² grows step by
    step without fitting the data. The share κ of this growth is removed, every k steps. The result depends on neither the
    units of the loss nor those of the weights. Vectors (biases, gains of normalisation) stay as they are.
    """
    matrices = [i for i, p in enumerate(part.params) if p.ndim > 1]
    params = [part.params[i] for i in matrices]
    if not params:
        return
    y, z = ([sharded.local(real(w.detach())) for w in params], [sharded.local(owns[i]["z"]) for i in matrices])
    sizes, steps = (sharded.lengths(tensors, params) for tensors in (y, [directions[i] for i in matrices]))
    share = rule.shrinkage * rule.noise_every / 2
    turns = [min(rate * step / size, rule.widest_turn) if size > 0 else 0.0 for step, size in zip(steps, sizes)]
    shares = [share * turn**2 if turn == turn else 0.0 for turn in turns]
    torch._foreach_sub_(z, torch._foreach_mul([widened(w) for w in y], shares))
