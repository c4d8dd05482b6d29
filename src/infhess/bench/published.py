"""SketchySGD, written from its paper (Frangella, Rathore, Zhao & Udell 2023)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from infhess.curvature import Hessian
from infhess.harness.training import AVERAGED, Method, Run
from infhess.problems import ConvexProblem, CountedStream, squares

POWER_ITERATIONS, ALPHA = 10, 0.5


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


class Sketchy(Run):
    """w ← w − η (Ĥ + ρI)⁻¹ g, η = ½ / λmax((Ĥ+ρI)^{−½} H' (Ĥ+ρI)^{−½}), with Ĥ of rank r and H' of fresh points, √n each.

    Both are computed at the start, and again each epoch unless the loss is quadratic.
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
        """One batch; before it, the curvature where it is due."""
        if not self.rate or (self.again and self.stream.points >= self.due):
            self.estimate()
        w, batch = self.model.weight, next(self.stream)
        (g,) = torch.autograd.grad(self.loss(batch), [w])
        w.data -= self.rate * inverse(self.values, self.U, self.rho, g.reshape(-1)).view_as(w)
        self.average.weight.data += 4 / (self.steps + 4) * (w.data - self.average.weight.data)
        self.steps += 1

    def estimate(self) -> None:
        """A sketch of the Hessian on √n points, and the step on as many others."""
        like = self.model.weight
        source = self._curvature()
        Omega = torch.linalg.qr(torch.randn(like.numel(), min(self.rank, like.numel()), dtype=like.dtype)).Q
        Y = source.block(self._local, Omega)
        self.values, self.U = nystrom(Y, Omega)
        other = self._curvature()
        v = torch.randn(like.numel(), dtype=like.dtype)
        for _ in range(POWER_ITERATIONS):
            v = v / torch.linalg.vector_norm(v)
            half = inverse(self.values, self.U, self.rho, v, -0.5)
            v = inverse(self.values, self.U, self.rho, other.product(self._local, half), -0.5)
        self.rate = ALPHA / float(torch.linalg.vector_norm(v))
        # In products with a batch of the stream's size.
        self.products += round((Omega.shape[1] + POWER_ITERATIONS) * max(self.points / self.stream.size, 1))
        self.due = self.stream.points + self.stream.population

    def _curvature(self) -> Hessian:
        """The Hessian of √n fresh points; what is read beyond them is counted and left."""
        x, y = zip(*(next(self.stream) for _ in range(-(-self.points // self.stream.size))))
        batch = torch.cat(x)[: self.points], torch.cat(y)[: self.points]
        source = Hessian(self.loss, [self.model.weight], [batch])
        self._local = source.local(batch)
        return source


def sketchy(rank: int, rho: float) -> Method:
    """SketchySGD of a rank, with its ρ."""
    return partial(Sketchy, rank=rank, rho=rho)
