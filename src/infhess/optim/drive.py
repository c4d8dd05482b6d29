"""Self-driving: what `observe` does with each batch that training reads anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.optim.convex import converge
from infhess.optim.nets import follow
from infhess.optim.ranks import world
from infhess.optim.report import Seen
from infhess.optim.wrapper import LARGE

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned


def observe(opt: Preconditioned, source: Hessian, batch: Batch) -> Seen | None:
    """One batch; eigenvalues and notes if something was estimated."""
    numbers = opt._numbers
    # Processes that train one model together agree on what they see by the rule for nets alone.
    if opt.blocks == "layer" or source.size > LARGE or world() > 1:
        numbers.nonconvex = 1.0
    numbers.read += size_of(batch)
    numbers.steps += 1
    return (follow if numbers.nonconvex else converge)(opt, source, batch)
