"""SketchySGD (Frangella, Rathore, Zhao & Udell 2023) and its variance-reduced relatives (PROMISE, 2024), from their papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from infhess.curvature import Hessian
from infhess_bench.bench.recorder import EnoughError, Recorder
from infhess_bench.harness.training import AVERAGED, Method, Run
from infhess_bench.problems import ConvexProblem, CountedStream, Data, squares

POWER_ITERATIONS, ALPHA = 10, 0.5
RANK, RHO, BATCH = 10, 1e-3, 256  # of the variance-reduced methods


def nystrom(Y: Tensor, Omega: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of the randomised Nyström approximation Y (ΩᵀY)⁺ Yᵀ for Y = HΩ, with the stabilising shift of the paper."""
    shift = torch.finfo(Y.dtype).eps * torch.linalg.matrix_norm(Y)
    Y = Y + shift * Omega
    C = torch.linalg.cholesky(Omega.mT @ Y)
    B = torch.linalg.solve_triangular(C, Y.mT, upper=False).mT
    U, s, _ = torch.linalg.svd(B, full_matrices=False)
    return (s.square() - shift).clamp(min=0), U


def inverse(values: Tensor, U: Tensor, rho: float, g: Tensor, power: float = -1.0) -> Tensor:
    """(UΛUᵀ + ρI)^power g."""
    inside = U.mT @ g
    out: Tensor = U @ ((values + rho) ** power * inside) + rho**power * (g - U @ inside)
    return out


def smoothness(values: Tensor, U: Tensor, rho: float, product: Callable[[Tensor], Tensor], v: Tensor) -> float:
    """λmax((Ĥ+ρI)^{−½} H' (Ĥ+ρI)^{−½}) for Ĥ = UΛUᵀ, by power iterations from v."""
    for _ in range(POWER_ITERATIONS):
        half = inverse(values, U, rho, v / torch.linalg.vector_norm(v), -0.5)
        v = inverse(values, U, rho, product(half), -0.5)
    return float(torch.linalg.vector_norm(v))


class SketchySgd(Run):
    """w ← w − η (Ĥ + ρI)⁻¹ g, η = ½ / λmax((Ĥ+ρI)^{−½} H' (Ĥ+ρI)^{−½}), with Ĥ of rank r and H' of fresh points, √n each.

    Both are computed at the start, and again every epoch unless the loss is quadratic.
    """

    model: nn.Linear

    def __init__(self, problem: ConvexProblem, stream: CountedStream, rank: int, rho: float) -> None:
        super().__init__(problem, stream)
        self.rank, self.rho, self.average = rank, rho, problem.model()
        self.points, self.again = int(stream.population**0.5), problem.loss_of is not squares
        self.values, self.U, self.rate = torch.zeros(0), torch.zeros(0), 0.0
        self.steps, self.due = 0, 0

    @property
    def models(self) -> dict[str, nn.Module]:
        """The last iterate, and the average."""
        return {"": self.model, AVERAGED: self.average}

    def step(self) -> None:
        """One batch, after an estimate of curvature if one is due."""
        if not self.rate or (self.again and self.stream.points >= self.due):
            self.estimate()
        w, batch = self.model.weight, next(self.stream)
        (g,) = torch.autograd.grad(self.loss(batch), [w])
        w.data -= self.rate * inverse(self.values, self.U, self.rho, g.reshape(-1)).view_as(w)
        self.average.weight.data += 4 / (self.steps + 4) * (w.data - self.average.weight.data)
        self.steps += 1

    def estimate(self) -> None:
        """Sketch the Hessian on √n points, and measure the step on as many others."""
        like = self.model.weight
        source = self._curvature()
        Omega = torch.linalg.qr(torch.randn(like.numel(), min(self.rank, like.numel()), dtype=like.dtype)).Q
        Y = source.block(self._local, Omega)
        self.values, self.U = nystrom(Y, Omega)
        other = self._curvature()
        v = torch.randn(like.numel(), dtype=like.dtype)
        product = partial(other.product, self._local)
        self.rate = ALPHA / smoothness(self.values, self.U, self.rho, product, v)
        # In units of products with a batch of the stream's size.
        self.products += round((Omega.shape[1] + POWER_ITERATIONS) * max(self.points / self.stream.size, 1))
        self.due = self.stream.points + self.stream.population

    def _curvature(self) -> Hessian:
        """The Hessian of √n fresh points; points read beyond them are counted but not used."""
        x, y = zip(*(next(self.stream) for _ in range(-(-self.points // self.stream.size))))
        batch = torch.cat(x)[: self.points], torch.cat(y)[: self.points]
        source = Hessian(self.loss, [self.model.weight], [batch])
        self._local = source.local(batch)
        return source


def sketchy(rank: int, rho: float) -> Method:
    """SketchySGD with this rank and ρ."""
    return partial(SketchySgd, rank=rank, rho=rho)


class Sketchy:
    """What the other three share: batches, counted gradients, P⁻¹ and L.

    Batches of 256; a Nyström preconditioner of rank 10 from √n points with ρ relative to its largest eigenvalue, rebuilt every
    pass unless the loss is quadratic; and the step ½/L with L = λmax of the preconditioned Hessian on as many fresh points.
    """

    def __init__(self, problem: ConvexProblem, record: Recorder) -> None:
        self.problem, self.record, self.model = problem, record, problem.model()
        self.W, self.loss = self.model.weight, problem.loss(self.model)
        self.source = Hessian(self.loss, [self.W], [problem.data])
        self.g = torch.Generator().manual_seed(record.template.seed)

    def gradient(self, batch: Data, at: Tensor) -> Tensor:
        """The gradient at other weights; counted."""
        self.W.data.copy_(at)
        self.record.points += len(batch[1])
        return torch.autograd.grad(self.loss(batch), [self.W])[0]

    def some(self, index: Tensor) -> Data:
        """Points by index."""
        x, y = self.problem.data
        return x[index], y[index]

    def sketch(self) -> None:
        """P and L at the present weights."""
        n, N, like = self.record.n, self.W.numel(), {"dtype": self.W.dtype, "generator": self.g}
        k, rank = max(int(n**0.5), 64), min(RANK, N)
        first, second = torch.split(torch.randperm(n, generator=self.g)[: 2 * k], k)
        Omega = torch.linalg.qr(torch.randn(N, rank, **like)).Q  # type: ignore[call-overload]
        self.values, self.U = nystrom(self.source.local(self.some(first)).block(Omega), Omega)
        self.shift, v = RHO * float(self.values.max()), torch.randn(N, **like)  # type: ignore[call-overload]
        self.L = smoothness(self.values, self.U, self.shift, self.source.local(self.some(second)).product, v)
        self.record.products += rank + POWER_ITERATIONS
        self.record.product_points += k * (rank + POWER_ITERATIONS)

    def scaled(self, g: Tensor) -> Tensor:
        """P⁻¹g."""
        return inverse(self.values, self.U, self.shift, g.reshape(-1)).view_as(g)

    def passes(self) -> Iterator[Iterator[Tensor]]:
        """Batches of each pass; after each pass a row for the model's weights."""
        while True:
            if not hasattr(self, "L") or self.problem.loss_of is not squares:
                self.sketch()
            yield iter(torch.split(torch.randperm(self.record.n, generator=self.g), BATCH))
            self.record(self.W)
            if not bool(torch.isfinite(self.W).all()):
                raise EnoughError


def sketchy_svrg(problem: ConvexProblem, record: Recorder) -> None:
    """A snapshot every pass (Johnson & Zhang 2013)."""
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
