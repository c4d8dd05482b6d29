"""Convex problems with a known optimum: linear models, (model, loss, data) by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess_bench.data import digits
from infhess_bench.problems.features import apart, constant, sarcos_polynomial, signs, standardised, three_or_five
from infhess_bench.problems.shuffled import Data, Loss, Shuffled, objective


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean of squares, as in the paper: without ½."""
    return functional.mse_loss(outputs[:, 0], y)


def logistic(outputs: Tensor, y: Tensor) -> Tensor:
    """−log σ(y f), for y = ±1."""
    return functional.softplus(-y * outputs[:, 0]).mean()


def softmax(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy for classes."""
    return functional.cross_entropy(outputs, y)


def poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """e^f − y f, for counts y: −log of Poisson's probability up to a constant."""
    return (torch.exp(outputs[:, 0]) - y * outputs[:, 0]).mean()


THRESHOLD = 0.5


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """½ r² up to |r| = ½, and linear beyond, for r = f − y."""
    return functional.huber_loss(outputs[:, 0], y, delta=THRESHOLD)


def second(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """The second derivative of a point's loss with respect to its outputs, (n, outputs, outputs)."""
    if loss is poisson:
        return torch.exp(outputs)[:, :, None]
    if loss is huber:
        return ((outputs - y[:, None]).abs() < THRESHOLD).to(outputs)[:, :, None]
    if loss is squares:
        return torch.full_like(outputs, 2.0)[:, :, None]
    if loss is logistic:
        p = torch.sigmoid(outputs)
        return (p * (1 - p))[:, :, None]
    p = torch.softmax(outputs, 1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


# With more weights than this no dense Hessian is formed.
LARGEST_DENSE = 2000


@dataclass(frozen=True)
class ConvexProblem:
    """A linear model f(x) = Wx, started at zero; the mean of a loss over data plus ½ l2 |W|²; and held-out data for testing."""

    data: Data
    loss_of: Loss
    l2: float = 0.0
    outputs: int = 1
    test: Data | None = None

    # A row is written each time that this many times more points were read; iterates are averaged alongside the method.
    spacing: ClassVar[float] = 1.07
    averages: ClassVar[bool] = True
    price: ClassVar[float] = 0.0  # budgets are of data points

    def model(self) -> nn.Linear:
        """The model at its start."""
        x = self.data[0]
        model = nn.Linear(x.shape[1], self.outputs, bias=False, dtype=x.dtype)
        nn.init.zeros_(model.weight)
        return model

    def batches(self, size: int, seed: int) -> list[Data]:
        """All of the data in random order, in batches of this size; the last one may be smaller."""
        return list(Shuffled(self.data, size, torch.Generator().manual_seed(seed), every=True))

    def loss(self, model: nn.Module) -> Callable[[Data], Tensor]:
        """Batch ↦ mean loss of the model."""
        return objective(self.loss_of, model, self.l2)

    def value(self, model: nn.Module) -> float:
        """The objective over all the data."""
        with torch.no_grad():
            return float(self.loss(model)(self.data))

    def limit(self) -> float:
        """The objective above which a run has diverged: a thousand times that at the start."""
        return 1e3 * self.value(self.model())

    def tested(self, model: nn.Module) -> float:
        """On held-out data: the loss for regression, accuracy for classes; NaN without such data."""
        if self.test is None:
            return math.nan
        x, y = self.test
        with torch.no_grad():
            f = model(x)
            if self.loss_of is squares:
                return float(squares(f, y))
            right = f.argmax(1) == y if self.loss_of is softmax else f[:, 0] * y > 0
            return float(right.double().mean())

    def hessian(self, W: Tensor) -> Tensor:
        """The dense Hessian over all the data: the mean of ℓ''(f) ⊗ xxᵀ, for W of shape (outputs, inputs)."""
        x, y = self.data
        curved = second(self.loss_of, x @ W.detach().mT, y)
        blocks = [torch.cat([(x * c[:, None]).mT @ x for c in row.unbind(1)], 1) for row in curved.unbind(1)]
        H = torch.cat(blocks) / len(x)
        return (H + H.mT) / 2 + self.l2 * torch.eye(len(H), dtype=H.dtype)

    def _newton_direction(self, W: Tensor, g: Tensor) -> Tensor:
        """H⁻¹g: dense if there are few weights, else by conjugate gradients to a residual of 1e-3."""
        if W.numel() <= LARGEST_DENSE:
            dense: Tensor = torch.linalg.solve(self.hessian(W), g.reshape(-1))
            return dense.view_as(W)
        x, y = self.data
        curved = second(self.loss_of, x @ W.detach().mT, y)
        mean = curved.diagonal(dim1=1, dim2=2).mean(1)
        inverse = torch.linalg.inv((mean[:, None] * x).mT @ x / len(x) + self.l2 * torch.eye(x.shape[1], dtype=x.dtype))
        d, r, p = torch.zeros_like(g), g, g @ inverse  # averaged over outputs: twenty products instead of hundreds
        while float(r.norm()) > 1e-3 * float(g.norm()):
            Hp = (curved @ (x @ p.mT)[:, :, None])[:, :, 0].mT @ x / len(x) + self.l2 * p
            a = (r * (r @ inverse)).sum() / (p * Hp).sum()
            d, before, r = d + a * p, r, r - a * Hp
            p = r @ inverse + (r * (r @ inverse)).sum() / (before * (before @ inverse)).sum() * p
        return d

    def solved(self) -> nn.Linear:
        """The minimiser by Newton's method, halving steps that raise the loss."""
        model = self.model()
        W, loss = model.weight, self.loss(model)
        for _ in range(50):
            value = loss(self.data)
            (g,) = torch.autograd.grad(value, [W])
            d = self._newton_direction(W, g)
            before, step = W.detach().clone(), 1.0
            W.data.copy_(before - d)
            while self.value(model) > value.item() and step > 1e-6:
                step /= 2
                W.data.copy_(before - step * d)
            if (g * d).sum().item() < 1e-14 * value.item():
                break
        return model


def sarcos_natural() -> ConvexProblem:
    """253 standardised polynomial features of SARCOS, torque 1 (κ = 8e4)."""
    return ConvexProblem(sarcos_polynomial(), squares)


def sarcos_mapped() -> ConvexProblem:
    """The same features in their principal axes, whitened, rescaled to the spectrum σ and rotated by a random Q.

    A = V Λ^{−½} diag(√σ) Qᵀ, σ = logspace(3, .5, 12), logspace(−.5, −2, 241): twelve large eigenvalues, κ = 1e5, along the
    axes of largest variance. The paper does not print its own map.
    """
    features, y = sarcos_polynomial()
    values, vectors = torch.linalg.eigh(features.mT @ features / len(features))
    sigma = torch.cat([torch.logspace(3, 0.5, 12), torch.logspace(-0.5, -2, 241)]).to(features)
    g = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(253, 253, generator=g, dtype=features.dtype)).Q
    A = (vectors / values.sqrt()).flip(1) * sigma.sqrt() @ Q.mT
    return ConvexProblem((features @ A, y), squares)


def held_out(problem: ConvexProblem) -> ConvexProblem:
    """The same problem with every tenth row, which for SARCOS is the test file, kept out of training."""
    data, test = apart(*problem.data, every=10)
    return replace(problem, data=data, test=test)


def mnist_logistic() -> ConvexProblem:
    """Logistic regression of 3 against 5 on 784 pixels in [0, 1], weight prior N(0, I), as in Rasmussen & Williams 3.4.

    The mean over 11,552 images with l2 = 1/11,552; 1,902 images to test.
    """
    (x, y), (tx, ty) = three_or_five("train"), three_or_five("t10k")
    return ConvexProblem((x, signs(y)), logistic, 1 / len(x), test=(tx, signs(ty)))


def digits_softmax() -> ConvexProblem:
    """All ten of scikit-learn's digits: 1,797 images of 64 pixels and a constant, 650 weights."""
    images, labels = digits()
    x = torch.cat([images.reshape(-1, 64) / 16, constant(images)], 1)
    return ConvexProblem((x, labels), softmax, 1e-4, outputs=10)


def breast_cancer() -> ConvexProblem:
    """Scikit-learn's breast cancer data, 569 cases, 30 standardised features and a constant."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x, y = standardised(torch.from_numpy(bunch.data)), torch.from_numpy(bunch.target)
    return ConvexProblem((torch.cat([x, constant(x)], 1), signs(y == 1)), logistic, 1e-3)


CONVEX: dict[str, Callable[[], ConvexProblem]] = {
    "sarcos-map": sarcos_mapped,
    "sarcos-nat": sarcos_natural,
    "mnist-3v5": mnist_logistic,
    "digits": digits_softmax,
    "breast-cancer": breast_cancer,
    "sarcos-map/held-out": lambda: held_out(sarcos_mapped()),
    "sarcos-nat/held-out": lambda: held_out(sarcos_natural()),
}


@lru_cache(maxsize=2)
def convex_problem(name: str) -> ConvexProblem:
    """A problem by name, cached for the next run in this process."""
    return CONVEX[name]()


@lru_cache(maxsize=8)
def solution(name: str) -> nn.Linear:
    """The optimum of a problem."""
    return convex_problem(name).solved()
