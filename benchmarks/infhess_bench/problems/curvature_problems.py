"""Losses whose full-data Hessian is known exactly, as references for estimates of its spectrum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess.curvature import GaussNewton, Hessian
from infhess.curvature.batch_source import BatchSource
from infhess_bench.data import digits, mnist
from infhess_bench.problems.features import constant, sarcos_polynomial, three_or_five
from infhess_bench.problems.shuffled import Shuffled, closure

Model = Callable[[Tensor, Tensor], Tensor]
HIDDEN, CLASSES = 24, 10  # of the small net


@dataclass(frozen=True)
class CurvatureProblem:
    """model(w, x) and loss(outputs, y) on data (x, y), with its curvature at the parameters w.

    The losses are torch's own modules, as other tools require.
    """

    w: Tensor
    x: Tensor
    y: Tensor
    model: Model
    loss: nn.Module
    matrix: str = "hessian"

    def source(self, batch: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> BatchSource:
        """A source of mini-batch products."""
        w = self.w.to(dtype).requires_grad_()
        data = self.x.to(dtype), self.y.to(dtype) if self.y.is_floating_point() else self.y
        batches = Shuffled(data, batch, generator)
        if self.matrix == "gauss-newton":
            return GaussNewton(partial(self.model, w), self.loss, [w], batches)
        return Hessian(lambda b: self.loss(self.model(w, b[0]), b[1]), [w], batches)

    def dense(self) -> Tensor:
        """The exact matrix over all the data, column by column."""
        whole = self.source(len(self.x), torch.Generator().manual_seed(0)).at((self.x, self.y), 0)
        H = torch.stack([whole.product(e) for e in torch.eye(len(self.w), dtype=self.w.dtype)], 1)
        return (H + H.mT) / 2


def linear(w: Tensor, x: Tensor) -> Tensor:
    """xᵀw."""
    return x @ w


def one_hidden(w: Tensor, x: Tensor) -> Tensor:
    """A tanh layer and a linear layer, with the weights in one flat vector."""
    inputs = x.shape[1]
    a, b, c, d = torch.split(w, [inputs * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])
    return torch.tanh(x @ a.view(inputs, HIDDEN) + b) @ c.view(HIDDEN, CLASSES) + d


def minimised(problem: CurvatureProblem, steps: int) -> CurvatureProblem:
    """The same problem after some steps of full-batch L-BFGS."""
    w = problem.w.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([w], max_iter=steps, line_search_fn="strong_wolfe")
    loss = closure(optimizer, lambda: problem.loss(problem.model(w, problem.x), problem.y))
    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return replace(problem, w=w.detach())


def from_zero(x: Tensor, y: Tensor, loss: nn.Module) -> CurvatureProblem:
    """A linear model at w = 0."""
    return CurvatureProblem(torch.zeros(x.shape[1], dtype=x.dtype), x, y, linear, loss)


def mnist_start() -> CurvatureProblem:
    """Logistic regression of the digits 3 and 5: 11,552 images, 784 weights, at w = 0."""
    x, y = three_or_five()
    return from_zero(x, y.double(), nn.BCEWithLogitsLoss())


def mlp_on(images: Tensor, labels: Tensor, matrix: str = "hessian") -> CurvatureProblem:
    """A small net with cross-entropy on images, with Xavier initialisation."""
    x = images.reshape(len(images), -1)
    g, parts = torch.Generator().manual_seed(0), []
    for ins, outs in pairwise((x.shape[1], HIDDEN, CLASSES)):
        weights = torch.randn(ins, outs, generator=g, dtype=x.dtype) * (2 / (ins + outs)) ** 0.5
        parts += [weights.reshape(-1), torch.zeros(outs, dtype=x.dtype)]
    return CurvatureProblem(torch.cat(parts), x, labels, one_hidden, nn.CrossEntropyLoss(), matrix)


def mnist_mlp(matrix: str = "hessian") -> CurvatureProblem:
    """The first 10,000 images at 7×7, 1,450 weights."""
    images, labels = mnist()
    small = functional.avg_pool2d(images[:10000, None].double() / 255, 4)
    return mlp_on(small, labels[:10000], matrix)


def small_digits() -> tuple[CurvatureProblem, CurvatureProblem]:
    """scikit-learn's 1,797 digits: logistic regression of those below 5, 65 weights; the small net at 4×4, 658 weights."""
    images, labels = digits()
    x = torch.cat([constant(images), images.reshape(-1, 64) / 16], 1)
    logistic = from_zero(x, (labels < 5).double(), nn.BCEWithLogitsLoss())
    return logistic, mlp_on(functional.avg_pool2d(images[:, None] / 16, 2), labels)


CURVATURE: dict[str, Callable[[], CurvatureProblem]] = {
    "mnist-3v5/start": mnist_start,
    "mnist-3v5/near-optimum": lambda: minimised(mnist_start(), 60),
    "sarcos-natural": lambda: from_zero(*sarcos_polynomial(), nn.MSELoss()),
    "mlp/start": mnist_mlp,
    "mlp/trained": lambda: minimised(mnist_mlp(), 60),
    "mlp-gauss-newton/trained": lambda: minimised(mnist_mlp("gauss-newton"), 60),
    "digits-logistic": lambda: small_digits()[0],
    "digits-mlp": lambda: small_digits()[1],
}
