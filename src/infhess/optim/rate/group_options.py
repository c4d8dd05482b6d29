"""What `lr` and `weight_decay` of parameter groups do, where schedules and factories of groups set them without being asked."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

# The largest lr of a run may be this many times below or above 1 without a warning: layers may have rates of their own.
FAR = 10.0

Group = dict[str, Any]


def without_auto(group: Group) -> None:
    """In a group, weight_decay="auto" is stored as None, as checkpoints of earlier versions have it."""
    if group.get("weight_decay") == "auto":
        group["weight_decay"] = None


def warn_of_factor(groups: Sequence[Group], made_with: float, default: float) -> None:
    """Warn where the largest `lr` of the whole run is far from 1: of a schedule, or else as the groups were made.

    A warm-up starts low, but its `initial_lr` is 1. OneCycleLR and CyclicLR set `lr` itself, whatever it was. `default` is the
    `lr` of the constructor, which has warned of it already.
    """
    named = [float(group["max_lr"]) for group in groups if "max_lr" in group]
    first = [float(group["initial_lr"]) for group in groups if "initial_lr" in group]
    largest = max(named or first or [made_with])
    if largest > 0 and largest != default and not 1 / FAR <= largest <= FAR:
        warnings.warn(
            f"RateFree: lr={largest:g} multiplies the learning rate that curvature gives; a schedule or the groups have "
            "set it. Pass max_lr=1 to OneCycleLR and CyclicLR, and lr=1 in groups, unless you mean that",
            stacklevel=4,
        )


def note_on_decay(groups: Sequence[Group], default: float | None) -> tuple[str, ...]:
    """A note if groups of matrices turn off the decay that the optimizer has by default."""
    own = [group for group in groups if any(p.ndim > 1 and p.requires_grad for p in group["params"])]
    off = [group for group in own if group["weight_decay"] == 0]
    if default is not None or not off:
        return ()
    return (
        f"weight_decay=0 turns off RateFree's own decay in {len(off)} of {len(own)} groups with matrices; if a factory has put "
        'it there, pass weight_decay="auto" to keep the decay',
    )
