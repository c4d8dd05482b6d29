"""Problems that development never looks at.

They were named before the first run of the rotated scaling. No constant of it was chosen with results on them in view; they
are run once the rule is frozen, and a change of the rule after that needs new ones.
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess_bench.problems import held_out_nets as nets
from infhess_bench.problems.net_problems import (
    EVALUATED,
    NetProblem,
    letters,
    mnist_images,
    mnist_themselves,
    pixels,
    small_cifar,
    text,
)
from infhess_bench.problems.nets import mlp
from infhess_bench.problems.shuffled import Data
from infhess_bench.problems.text import ALPHABET

# Share of training labels that are replaced by random ones.
WRONG = 0.2
USERS, ITEMS, RATINGS = 400, 300, 12_000
NODES, GRAPHS = 24, 4_000


def wrong_labels() -> tuple[Data, Data]:
    """MNIST with a fifth of the training labels drawn at random; test labels are the true ones."""
    (x, y), test = mnist_images()
    draw = torch.Generator().manual_seed(3)
    drawn = torch.randint(10, y.shape, generator=draw)
    return (x, torch.where(torch.rand(len(y), generator=draw) < WRONG, drawn, y)), test


def elbo(outputs: Tensor, y: Tensor) -> Tensor:
    """The negative evidence lower bound, averaged over images."""
    return pixels(outputs[:, :-1], y) + outputs[:, -1].mean()


def ratings() -> tuple[Data, Data]:
    """Noisy ratings of items by users with four-dimensional tastes; few items are rated by many."""
    draw = torch.Generator().manual_seed(4)
    tastes, traits = (torch.randn(n, 4, generator=draw) for n in (USERS, ITEMS))
    count = RATINGS + EVALUATED
    user = torch.randint(USERS, (count,), generator=draw)
    item = (ITEMS * torch.rand(count, generator=draw).square()).long()
    rating = torch.tanh((tastes[user] * traits[item]).sum(1)) + 0.1 * torch.randn(count, generator=draw)
    pairs = torch.stack([user, item], 1)
    return (pairs[:RATINGS], rating[:RATINGS]), (pairs[RATINGS:], rating[RATINGS:])


def unit_square() -> tuple[Data, Data]:
    """Points, a fifth of them on the border, and the right-hand side there: that of u = sin(2πx) sin(πy)."""

    def part(n: int, seed: int) -> Data:
        draw = torch.Generator().manual_seed(seed)
        xy, border = torch.rand(n, 2, generator=draw), torch.rand(n, generator=draw) < 0.2
        side = torch.randint(4, (n,), generator=draw)
        rows = torch.arange(n)[border]
        xy[rows, side[border] % 2] = (side[border] // 2).float()
        u = torch.sin(2 * torch.pi * xy[:, 0]) * torch.sin(torch.pi * xy[:, 1])
        return torch.cat([xy, border.float()[:, None]], 1), torch.where(border, 0.0, 5 * torch.pi**2 * u)

    return part(10_000, 5), part(EVALUATED, 6)


def graphs() -> tuple[Data, Data]:
    """Random graphs of 24 nodes in 1 to 4 communities, as adjacency matrices, and the number of communities."""

    def part(n: int, seed: int) -> Data:
        draw = torch.Generator().manual_seed(seed)
        classes = torch.randint(4, (n,), generator=draw)
        member = (torch.rand(n, NODES, generator=draw) * (classes[:, None] + 1)).long()
        same = member[:, :, None] == member[:, None, :]
        within = 0.12 + 0.1 * classes[:, None, None]  # about as many edges in all classes
        edges = torch.rand(n, NODES, NODES, generator=draw) < torch.where(same, within, 0.06)
        upper = edges.triu(1)
        return (upper | upper.transpose(1, 2)).float(), classes

    return part(GRAPHS, 7), part(EVALUATED, 8)


@lru_cache(maxsize=1)
def _digits() -> Data:
    return mnist_images()[0]


_problem = partial(NetProblem, seen=False)
HELD_OUT: dict[str, NetProblem] = {
    "cifar-resnet": _problem(nets.ResNet, small_cifar, batch=64, steps=300),
    "cifar-vit": _problem(nets.VisionTransformer, small_cifar, batch=64, steps=500),
    "mnist-vae": _problem(nets.Variational, mnist_themselves, elbo, steps=1000),
    "text-lstm": _problem(lambda: nets.CharLstm(len(ALPHABET)), text, letters, batch=32, steps=500),
    "wrong-labels-mlp": _problem(
        lambda: nn.Sequential(nn.Flatten(), *mlp(784, 128, 64, 10)), wrong_labels, batch=64, steps=1000
    ),
    "recommender": _problem(
        lambda: nets.Recommender(USERS, ITEMS), ratings, functional.mse_loss, batch=128, steps=1500
    ),
    "poisson-residuals": _problem(nets.Residuals, unit_square, functional.mse_loss, batch=128, steps=1500),
    "deep-plain-mlp": _problem(nets.deep_mlp, mnist_images, batch=64, steps=600),
    "graph-net": _problem(nets.GraphNet, graphs, batch=64, steps=800),
    "fine-tuning": _problem(lambda: nets.fine_tuned(*_digits()), mnist_images, batch=64, steps=400),
}
