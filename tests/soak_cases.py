"""Tiny nets that fit their data within a few hundred steps, and optimizers that train them twenty times as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import infhess

Data = tuple[Tensor, Tensor]


def mlp(*sizes: int, between: Callable[[int], nn.Module] = lambda n: nn.ReLU()) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), between(b)]
    return nn.Sequential(*layers[:-1])


class Letters(nn.Module):
    """Rows of an image as a sequence, read by a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.GRU(8, 24, batch_first=True), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(x.view(-1, 8, 8))[0][:, -1])


class Recommender(nn.Module):
    """Scores of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.head = nn.Embedding(40, 8), nn.Embedding(30, 8), mlp(16, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.users(x[:, 0]), self.items(x[:, 1])], 1))


@cache
def table(load: Callable[..., tuple[object, object]], points: int, kind: torch.dtype) -> Data:
    x, y = (torch.as_tensor(a) for a in load(return_X_y=True))
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:points]
    return x[order].to(kind), y[order] if not y.is_floating_point() else ((y - y.mean()) / y.std())[order, None].to(
        kind
    )


@cache
def tastes() -> Data:
    g = torch.Generator().manual_seed(3)
    pairs = torch.stack([torch.randint(40, (600,), generator=g), torch.randint(30, (600,), generator=g)], 1)
    u, v = torch.randn(40, 3, generator=g), torch.randn(30, 3, generator=g)
    return pairs, torch.tanh((u[pairs[:, 0]] * v[pairs[:, 1]]).sum(1, keepdim=True))


@dataclass(frozen=True)
class Net:
    """A model, its data, and the steps in which every optimizer here fits them."""

    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    steps: int
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    batch: int = 32


@cache
def digits(points: int = 600) -> Data:
    x, y = (torch.as_tensor(a) for a in datasets.load_digits(return_X_y=True))
    return x[:points].float() / 16, y[:points]


NETS = {
    "digits": Net(lambda: mlp(64, 64, 10), digits, 400),
    "wine": Net(lambda: mlp(13, 16, 3), lambda: table(datasets.load_wine, 178, torch.float32), 200),
    "cancer": Net(lambda: mlp(30, 16, 2), lambda: table(datasets.load_breast_cancer, 400, torch.float32), 250),
    "diabetes": Net(
        lambda: mlp(10, 48, 48, 1), lambda: table(datasets.load_diabetes, 200, torch.float32), 400, mse_loss
    ),
    "gru": Net(Letters, lambda: digits(300), 300),
    "batch norm": Net(lambda: mlp(64, 32, 32, 10, between=lambda n: nn.Sequential(nn.BatchNorm1d(n), nn.ReLU())),
                      digits, 300),
    "embedding": Net(Recommender, tastes, 400, mse_loss),
    "double": Net(
        lambda: mlp(13, 16, 3, between=lambda n: nn.Tanh()).double(),
        lambda: table(datasets.load_wine, 178, torch.float64), 200,
    ),
}  # fmt: skip

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "kronecker": lambda m: infhess.RateFree(m.parameters()),
    "diagonal": lambda m: infhess.RateFree(m.parameters(), scaling="diagonal"),
    "sgd": lambda m: infhess.Preconditioned(torch.optim.SGD(m.parameters(), lr=0.1)),
    "momentum": lambda m: infhess.Preconditioned(torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)),
    "adam": lambda m: infhess.Preconditioned(torch.optim.Adam(m.parameters(), lr=1e-3)),
}


def loss_of(model: nn.Module, opt: torch.optim.Optimizer, net: Net) -> float:
    """The training loss of what a user would keep: the averaged weights, or the iterate."""
    x, y = net.data()
    if not isinstance(opt, infhess.RateFree):
        with torch.no_grad():
            return float(net.loss(model(x), y))
    with opt.averaged(), torch.no_grad():
        return float(net.loss(model(x), y))


def train(model: nn.Module, opt: torch.optim.Optimizer, net: Net, steps: int, seed: int = 0) -> Iterator[int]:
    """Train on random batches; yields the number of each step before it is made."""
    g = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        yield step
        x, y = net.data()
        part = torch.randint(len(x), (net.batch,), generator=g)
        opt.zero_grad()
        with opt.watch():
            net.loss(model(x[part]), y[part]).backward()
        opt.step()


def made(net: Net, name: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer by name."""
    torch.manual_seed(seed)
    model = net.make()
    return model, OPTIMIZERS[name](model)


def losses(net: Net, name: str, seed: int, times: float = 20.0, every: int = 100) -> list[float]:
    """The loss every so many steps of a run of `times` as many steps as fit the data."""
    model, opt = made(net, name, seed)
    steps = train(model, opt, net, int(times * net.steps) + 1, seed)
    return [loss_of(model, opt, net) for step in steps if step % every == 1 and step > 1]
