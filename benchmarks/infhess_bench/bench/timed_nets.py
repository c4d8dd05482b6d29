"""Nets of ten thousand to a million weights, and the truth about their Hessians, from products with all of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from infhess._files import atomic
from infhess.curvature import Hessian
from infhess.curvature.frozen import frozen
from infhess.spectra.quadrature import Lanczos, Quadrature
from infhess_bench.data import digits, mnist
from infhess_bench.problems import Shuffled, seeded
from infhess_bench.problems.nets import digit_net, mlp

TOP = 5
BATCH, RATE = 128, 1e-3  # for the epoch of Adam before the curvature is measured
PIECE = 1000  # data points per batch when all are read


@dataclass(frozen=True, eq=False)
class Timed:
    """A net after an epoch of training, and its data."""

    name: str
    model: nn.Sequential
    x: Tensor
    y: Tensor
    loss: nn.Module

    @property
    def points(self) -> int:
        """Number of data points."""
        return len(self.x)

    @property
    def params(self) -> list[Tensor]:
        """The parameters of the net."""
        return list(self.model.parameters())

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.params)

    def subset(self, points: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        """A random subset of the data."""
        order = torch.randperm(self.points, generator=g)[:points]
        return self.x[order], self.y[order]

    def source(self, batch: int, g: torch.Generator) -> Hessian:
        """Its Hessian, from batches of this size."""
        return Hessian(lambda b: self.loss(self.model(b[0]), b[1]), self.params, self.epochs(batch, g), generator=g)

    def epochs(self, batch: int, g: torch.Generator) -> Shuffled:
        """All of the data in a new order each time, including a smaller last batch."""
        return Shuffled((self.x, self.y), batch, g, every=True)


def _trained(net: nn.Sequential, x: Tensor, y: Tensor) -> None:
    optimizer, loss = torch.optim.Adam(net.parameters(), RATE), nn.CrossEntropyLoss()
    for inputs, targets in Shuffled((x, y), BATCH, torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        loss(net(inputs), targets).backward()
        optimizer.step()


def _digits(points: int, pooled: int = 1) -> tuple[Tensor, Tensor]:
    images, labels = mnist()
    return avg_pool2d(images[:points, None].float() / 255, pooled), labels[:points]


def _small_digits() -> tuple[Tensor, Tensor]:
    images, labels = digits()
    return images[:, None].float() / 16, labels


@dataclass(frozen=True)
class Entry:
    """How a net and its data are made, and the Lanczos runs behind its truth: number of starts, and steps of each."""

    layers: Callable[[], list[nn.Module]]
    data: Callable[[], tuple[Tensor, Tensor]]
    runs: tuple[int, int]
    trials: int = 6  # at most


NETS = {
    "1e4 weights": Entry(lambda: [nn.Flatten(), *mlp(196, 56, 10)], lambda: _digits(10_000, 2), (2, 192)),
    "1e5 weights": Entry(lambda: [nn.Flatten(), *mlp(784, 128, 10)], lambda: _digits(10_000), (1, 192)),
    "1e6 weights": Entry(lambda: [nn.Flatten(), *mlp(784, 800, 450, 10)], lambda: _digits(2_000), (1, 48), 2),
    "MNIST CNN": Entry(lambda: list(digit_net()), lambda: _digits(10_000), (1, 20)),  # type: ignore[call-overload]
    "digits": Entry(lambda: [nn.Flatten(), *mlp(64, 16, 10)], _small_digits, (8, 128)),
}


@lru_cache(maxsize=1)
def timed_net(name: str) -> Timed:
    """A net by name, after one epoch of Adam."""
    x, y = NETS[name].data()
    with seeded(0):
        net = nn.Sequential(*NETS[name].layers())
    _trained(net, x, y)
    return Timed(name, net, x, y, nn.CrossEntropyLoss())


@dataclass(frozen=True)
class FullData:
    """The largest eigenvalues, the trace and the spectral measure of a full-data Hessian."""

    top: Tensor
    trace: float
    measure: Quadrature

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        held = {"top": self.top, "trace": torch.tensor(self.trace, dtype=torch.float64), "T": self.measure.T}
        held |= {"beta": self.measure.beta, "share": self.measure.share, "eps": torch.tensor(self.measure.eps)}
        with atomic(path) as temporary:
            save_file({name: t.contiguous() for name, t in held.items()}, temporary)


@lru_cache(maxsize=1)
def full_data(name: str, folder: Path) -> FullData:
    """The truth about a net: read from a file, or computed and stored."""
    path = folder / f"truth-{name.replace(' ', '-')}.safetensors"
    if not path.exists():
        measured(timed_net(name), *NETS[name].runs).save(path)
    held = load_file(path)
    measure = Quadrature(held["T"], held["beta"], held["share"], float(held["eps"]))
    return FullData(held["top"], float(held["trace"]), measure)


def measured(net: Timed, starts: int, steps: int) -> FullData:
    """Lanczos with all of the data, and the exact trace."""
    g = torch.Generator().manual_seed(7)
    steps = min(steps, net.size)
    apply = frozen(net.source(min(PIECE, net.points), g), net.points).apply
    run, none = Lanczos(torch.randn(net.size, starts, generator=g), steps), torch.zeros(net.size, 0)
    for _ in range(steps):
        run.take(apply(run.directions(), none)[0])
    measure = run.result()
    top = torch.linalg.eigvalsh(measure.T).flip(1)[:, :TOP].amax(0)
    return FullData(top, exact_trace(net), measure)


def exact_trace(net: Timed) -> float:
    """The trace of the cross-entropy's Hessian for dense layers with ReLU between them; NaN for other nets.

    A single weight enters the outputs f piecewise linearly, so the trace is that of the Gauss–Newton matrix:
    Σ_c p_c |Jᵀ(e_c − p)|² for each point, and |∂(vᵀf)/∂W|² = |δ|² |a|² for a layer with inputs a.
    """
    layers = [m for m in net.model if isinstance(m, nn.Linear)]
    if any(isinstance(m, nn.Conv2d) for m in net.model):
        return float("nan")
    inputs, outputs = list[Tensor](), net.x.flatten(1).double()
    weights = [(m.weight.detach().double(), m.bias.detach().double()) for m in layers]
    for W, b in weights:
        inputs.append(outputs.relu() if inputs else outputs)
        outputs = inputs[-1] @ W.mT + b
    p, total = outputs.softmax(1), 0.0
    for c, e in enumerate(torch.eye(outputs.shape[1], dtype=torch.float64)):
        delta = (e - p) * p[:, c : c + 1].sqrt()
        for a, (W, _) in zip(reversed(inputs), reversed(weights)):
            total += float((delta.square().sum(1) * (1 + a.square().sum(1))).sum())
            delta = delta @ W * (a > 0)
    return total / net.points


def top_error(values: Tensor, exact: Tensor) -> float:
    """Mean relative error of the top eigenvalues; one that was not found counts as 1."""
    found = torch.nn.functional.pad(values[: len(exact)].double(), (0, max(0, len(exact) - len(values))))
    return float(((found - exact) / exact).abs().mean())
