"""The scalars that an optimizer carries from step to step, as one tensor in its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

Some = TypeVar("Some", bound="Scalars")


@dataclass
class Scalars:
    """Floats that go into a checkpoint as one tensor."""

    def tensor(self) -> Tensor:
        """All of them in double precision."""
        return torch.tensor([getattr(self, name) for name in self.__dataclass_fields__], dtype=torch.float64)

    @classmethod
    def of(cls: type[Some], tensor: Tensor) -> Some:
        """From such a tensor; from a shorter one, of an earlier version, what it has."""
        names = [f.name for f in fields(cls)]
        if len(tensor) > len(names):
            got, most = len(tensor), len(names)
            raise ValueError(f"state_dict: expected up to {most} numbers, got {got}; is it of another version?")
        return cls(**dict(zip(names, tensor.tolist())))


@dataclass
class Numbers(Scalars):
    """What is in use (to `momentum`), and what self-driving follows.

    Attributes:
        base_rate: lr₀, the largest rate that a group of the base was made with.
        armed: 1 from the first estimate on.
        directions: how many there are.
        factor: the coefficient of the identity in P².
        step: multiplies P²g; NaN where the base keeps its own rate.
        limit: the longest step |Δw|; infinite on convex problems.
        momentum: self-driving, around plain sgd.
        nonconvex: 1 once negative curvature has been seen.
        read, steps: data points and batches seen by `observe`.
        built_at, steps_at_build: the same when P was last built, NaN before.
        curvature, squares, looks: means of λmax(P²B) and of its square, and number of looks that went into them.
        first_curvature: the first of them after a build.
        log_rate, log_rate_variance: filter on the logarithm of the rate that curvature allows for.
        rate, steps_at_look: rate in use by the rule for nets, and `steps` at its last look.
        slow: 1 once the rate has reached what curvature allows for, so that it grows slowly from then on.
        longest, gradient_scale: the longest P²g (but for the factor) and g at looks since P was built; at the last, in nets.
        slope, slope_squares: means of gᵀ(w̄ − w̄') and of its square, for two means of iterates.
        worn: steps in which these did not descend.
        size: |w| at the last step, in nets.
        shrinking: the share of |w| that a step takes off for each unit of the rate, a moving average; in nets.

    """

    base_rate: float = float("nan")
    armed: float = 0.0
    directions: float = 0.0
    factor: float = 1.0
    step: float = float("nan")
    limit: float = float("inf")
    momentum: float = 0.0
    nonconvex: float = 0.0
    read: float = 0.0
    steps: float = 0.0
    built_at: float = float("nan")
    steps_at_build: float = float("nan")
    curvature: float = 0.0
    squares: float = 0.0
    looks: float = 0.0
    first_curvature: float = float("nan")
    log_rate: float = float("nan")
    log_rate_variance: float = 0.0
    rate: float = float("nan")
    steps_at_look: float = 0.0
    slow: float = 0.0
    longest: float = 0.0
    gradient_scale: float = 0.0
    slope: float = 0.0
    slope_squares: float = 0.0
    worn: float = 0.0
    size: float = 0.0
    shrinking: float = 0.0

    def start_over(self) -> None:
        """After an `update`: what self-driving would go on from."""
        self.momentum, self.rate, self.log_rate, self.slow = 0.0, float("nan"), float("nan"), 0.0
        self.steps_at_build, self.steps_at_look = self.steps, self.steps
        self.built_at = max(self.read, 1.0)
        self.curvature = self.first_curvature = 1 / (self.step * self.factor) if self.step > 0 else 1.0
        self.squares, self.looks, self.longest = self.curvature**2, 1.0, self.limit * self.curvature / 3
        self.gradient_scale = float("inf")
