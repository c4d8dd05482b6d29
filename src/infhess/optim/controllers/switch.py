"""Which controller is in charge: the convex one until curvature proves negative."""

from __future__ import annotations

from dataclasses import replace

from infhess.optim.controllers import convex_rule, nonconvex
from infhess.optim.controllers.context import Context, Decision


def decide(context: Context) -> Decision:
    """The convex controller's decision, or that of the one for nets."""
    if context.state.nonconvex:
        return nonconvex.decide(context)
    first = convex_rule.decide(context)
    if not context.state.nonconvex:
        return first
    then = nonconvex.decide(context)
    return replace(then, notes=(*first.notes, *then.notes))
