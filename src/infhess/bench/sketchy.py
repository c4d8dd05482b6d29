"""SketchySVRG, SketchySAGA and SketchyKatyusha, from their paper (PROMISE, Frangella, Rathore, Zhao & Udell 2024).

Batches of 256, a Nyström preconditioner of rank 10 from √n points with ρ relative to its largest eigenvalue, built each pass
unless the loss is quadratic, and the step ½/L with L = λmax of the preconditioned Hessian of as many fresh points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from infhess.bench.published import ALPHA, POWER_ITERATIONS, inverse, nystrom
from infhess.bench.recorder import EnoughError, Recorder
from infhess.curvature import Hessian
from infhess.problems import ConvexProblem
from infhess.problems.convex_problems import squares
from infhess.problems.shuffled import Data

RANK, RHO, BATCH = 10, 1e-3, 256


class Sketchy:
    """What the three have in common: batches, gradients that are counted, P⁻¹ and L."""

    def __init__(self, problem: ConvexProblem, record: Recorder) -> None:
        self.problem, self.record, self.model = problem, record, problem.model()
        self.W, self.loss = self.model.weight, problem.loss(self.model)
        self.source = Hessian(self.loss, [self.W], [problem.data])
        self.g = torch.Generator().manual_seed(record.template.seed)

    def gradient(self, batch: Data, at: Tensor) -> Tensor:
        """At other weights; counted."""
        self.W.data.copy_(at)
        self.record.points += len(batch[1])
        return torch.autograd.grad(self.loss(batch), [self.W])[0]

    def some(self, index: Tensor) -> Data:
        """Points by their numbers."""
        x, y = self.problem.data
        return x[index], y[index]

    def sketch(self) -> None:
        """P and L, at the weights as they are."""
        n, N, like = self.record.n, self.W.numel(), {"dtype": self.W.dtype, "generator": self.g}
        k, rank = max(int(n**0.5), 64), min(RANK, N)
        first, second = torch.split(torch.randperm(n, generator=self.g)[: 2 * k], k)
        Omega = torch.linalg.qr(torch.randn(N, rank, **like)).Q  # type: ignore[call-overload]
        self.values, self.U = nystrom(self.source.local(self.some(first)).block(Omega), Omega)
        self.shift, v = RHO * float(self.values.max()), torch.randn(N, **like)  # type: ignore[call-overload]
        other = self.source.local(self.some(second))
        for _ in range(POWER_ITERATIONS):
            v = inverse(self.values, self.U, self.shift, v / v.norm(), -0.5)
            v = inverse(self.values, self.U, self.shift, other.product(v), -0.5)
        self.record.products += rank + POWER_ITERATIONS
        self.record.product_points += k * (rank + POWER_ITERATIONS)
        self.L = float(v.norm())

    def scaled(self, g: Tensor) -> Tensor:
        """P⁻¹g."""
        return inverse(self.values, self.U, self.shift, g.reshape(-1)).view_as(g)

    def passes(self) -> Iterator[Iterator[Tensor]]:
        """Batches of each pass; after it a row of the weights in the model."""
        while True:
            if not hasattr(self, "L") or self.problem.loss_of is not squares:
                self.sketch()
            yield iter(torch.split(torch.randperm(self.record.n, generator=self.g), BATCH))
            self.record(self.W)
            if not bool(torch.isfinite(self.W).all()):
                raise EnoughError


def sketchy_svrg(problem: ConvexProblem, record: Recorder) -> None:
    """A snapshot each pass (Johnson & Zhang 2013)."""
    s = Sketchy(problem, record)
    w = s.W.detach().clone()
    for batches in s.passes():
        anchor, mean = w, s.gradient(problem.data, w)
        for i in batches:
            g = s.gradient(s.some(i), w) - s.gradient(s.some(i), anchor) + mean
            w = w - ALPHA / s.L * s.scaled(g)
        s.W.data.copy_(w)


def sketchy_saga(problem: ConvexProblem, record: Recorder) -> None:
    """A table of each point's last gradient with respect to its outputs (Defazio, Bach & Lacoste-Julien 2014)."""
    s, (x, y), l2 = Sketchy(problem, record), problem.data, problem.l2
    w, table, mean = s.W.detach().clone(), x.new_zeros(record.n, problem.outputs), torch.zeros_like(s.W)
    for batches in s.passes():
        for i in batches:
            outputs = (x[i] @ w.mT).requires_grad_()
            now = torch.autograd.grad(problem.loss_of(outputs, y[i]), [outputs])[0] * len(i)
            record.points += len(i)
            change = (now - table[i]).mT @ x[i]
            w = w - ALPHA / s.L * s.scaled(change / len(i) + mean + l2 * w)
            table[i], mean = now, mean + change / record.n
        s.W.data.copy_(w)


def sketchy_katyusha(problem: ConvexProblem, record: Recorder) -> None:
    """Loopless Katyusha (Kovalev, Horváth & Richtárik 2020): θ₂ = ½, p = batch/n, and μ = l2/ρ from 1e-4 to 1."""
    s, n = Sketchy(problem, record), record.n
    y = z = w = s.W.detach().clone()
    mean, share = s.gradient(problem.data, y), min(1.0, BATCH / n)
    for batches in s.passes():
        sigma = min(max(problem.l2 / s.shift, 1e-4), 1.0) / s.L
        first = min(math.sqrt(2 * sigma / (3 * share)), 0.5)
        eta = 0.5 / (1.5 * first)
        for i in batches:
            at = first * z + 0.5 * y + (0.5 - first) * w
            g = s.gradient(s.some(i), at) - s.gradient(s.some(i), y) + mean
            before, z = z, (eta * sigma * at + z - eta / s.L * s.scaled(g)) / (1 + eta * sigma)
            w = at + first * (z - before)
            if float(torch.rand((), generator=s.g)) < share:
                y, mean = w, s.gradient(problem.data, w)
        s.W.data.copy_(w)


SKETCHY = {"SketchySVRG": sketchy_svrg, "SketchySAGA": sketchy_saga, "SketchyKatyusha": sketchy_katyusha}
