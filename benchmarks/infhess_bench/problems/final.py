"""Problems that were named before any run of infhess on them, and then run with three rules: development has seen them.

Those of `fresh` are the ones of the present comparison.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess_bench.data import sarcos
from infhess_bench.problems.features import apart, standardised
from infhess_bench.problems.held_out_nets import Jet
from infhess_bench.problems.net_problems import EVALUATED, NetProblem, letters, mnist_images, small_cifar, text
from infhess_bench.problems.nets import CharRecurrent, mlp
from infhess_bench.problems.shuffled import Data
from infhess_bench.problems.text import SIGNS, nested

FIELDS = (1000, 300, 100, 20)  # numbers of categories, most of them rare
LEVELS = (0.1, 0.5, 0.9)


def denoiser(width: int = 8) -> nn.Module:
    """28×28 images to images: two convolutions down, two transposed ones up."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(width, 1, 4, 2, 1),
    )  # fmt: skip


class Burgers(Jet):
    """u with u_t + u u_x = ν u_xx: (x, t, border) ↦ 10 u on the border, u_t + u u_x − ν u_xx elsewhere."""

    viscosity = 0.05

    def forward(self, points: Tensor) -> Tensor:
        """(n, 3) ↦ (n,)."""
        u, (u_x, u_t), (u_xx, _) = self.jet(points[:, :2])
        return torch.where(points[:, 2] > 0.5, 10 * u, u_t + u * u_x - self.viscosity * u_xx)


def depthwise_net(sizes: tuple[int, ...] = (16, 32, 64)) -> nn.Module:
    """Depthwise and pointwise convolutions with batch normalisation, for 32×32 images (MobileNet, Howard et al. 2017)."""

    def normalised(convolution: nn.Conv2d) -> list[nn.Module]:
        return [convolution, nn.BatchNorm2d(convolution.out_channels), nn.Hardswish()]

    layers = normalised(nn.Conv2d(3, sizes[0], 3, 2, 1, bias=False))
    for before, after in pairwise(sizes):
        layers += normalised(nn.Conv2d(before, before, 3, 2, 1, groups=before, bias=False))
        layers += normalised(nn.Conv2d(before, after, 1, bias=False))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 10))


class ResidualMlp(nn.Module):
    """Dense blocks with skip connections and pre-normalisation."""

    def __init__(self, inputs: int, outputs: int, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), *mlp(width, width, width, between=nn.SiLU)) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) ↦ (n, outputs)."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.out(x)
        return found


class Clicks(nn.Module):
    """Categories to logits of no click and click: embeddings, their pairwise products, and a net (DeepFM, Guo et al. 2017)."""

    def __init__(self, sizes: tuple[int, ...], width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.net = nn.Sequential(*mlp(width * len(sizes), 32, 2))
        for table in self.tables:
            nn.init.normal_(torch.as_tensor(table.weight), std=0.1)

    def forward(self, codes: Tensor) -> Tensor:
        """(n, fields) ↦ (n, 2)."""
        found = torch.stack([table(codes[:, i]) for i, table in enumerate(self.tables)], 1)
        products = (found.sum(1).square() - found.square().sum(1)).sum(1) / 2
        both: Tensor = self.net(found.flatten(1))
        return both + functional.pad(products[:, None], (1, 0))


def dropout_mlp() -> nn.Module:
    """Two hidden layers with dropout, for 28×28 images."""
    layers = mlp(784, 256, 128, 10, between=lambda: nn.Sequential(nn.SiLU(), nn.Dropout(0.3)))
    return nn.Sequential(nn.Flatten(), *layers)


def noisy_digits() -> tuple[Data, Data]:
    """MNIST's images with noise of standard deviation ½, and without noise."""
    draw = torch.Generator().manual_seed(11)
    (x, _), (tx, _) = mnist_images()
    return (x + 0.5 * torch.randn(x.shape, generator=draw), x), (tx + 0.5 * torch.randn(tx.shape, generator=draw), tx)


def shock() -> tuple[Data, Data]:
    """Points (x, t) of [−1, 1] × [0, 1], and targets: u = −sin πx at t = 0, 0 at the sides, residuals of 0 elsewhere."""

    def part(n: int, seed: int) -> Data:
        draw = torch.Generator().manual_seed(seed)
        x, t = 2 * torch.rand(n, generator=draw) - 1, torch.rand(n, generator=draw)
        kind = torch.randint(8, (n,), generator=draw)  # 0: the start; 1: the sides
        x, t = torch.where(kind == 1, x.sign(), x), torch.where(kind == 0, 0.0, t)
        target = torch.where(kind == 0, -10 * torch.sin(torch.pi * x), 0.0)
        return torch.stack([x, t, (kind < 2).float()], 1), target

    return part(10_000, 12), part(EVALUATED, 13)


def some_torques() -> tuple[Data, Data]:
    """SARCOS, torques 2 to 7, standardised; every seventh row is for testing."""
    x, y = (standardised(t).float() for t in sarcos())
    return apart(x, y[:, 1:], every=7)


def uneven() -> tuple[Data, Data]:
    """A function of ten variables with heteroscedastic noise that has a long upper tail."""
    draw = torch.Generator().manual_seed(14)
    x = torch.randn(12_000 + EVALUATED, 10, generator=draw)
    mean = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs()
    scale = 0.1 + 0.5 * torch.sigmoid(2 * x[:, 4] + x[:, 5])
    y = (mean + scale * torch.randn(len(x), generator=draw).exp())[:, None]
    return (x[:-EVALUATED], y[:-EVALUATED]), (x[-EVALUATED:], y[-EVALUATED:])


def pinball(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss that is minimised by the quantiles."""
    excess, levels = y - outputs, outputs.new_tensor(LEVELS)
    return torch.maximum(levels * excess, (levels - 1) * excess).mean()


def visits() -> tuple[Data, Data]:
    """Categories drawn by Zipf's law, and random clicks from three-dimensional tastes of each category."""
    draw = torch.Generator().manual_seed(15)
    count = 20_000 + EVALUATED
    codes = [torch.multinomial(1 / torch.arange(1.0, n + 1), count, True, generator=draw) for n in FIELDS]
    tastes = torch.stack([torch.randn(n, 3, generator=draw)[code] for n, code in zip(FIELDS, codes)], 1)
    agreement = (tastes.sum(1).square() - tastes.square().sum(1)).sum(1) / 2
    y = (torch.rand(count, generator=draw) < torch.sigmoid(agreement - 1)).long()
    x = torch.stack(codes, 1)
    return (x[:-EVALUATED], y[:-EVALUATED]), (x[-EVALUATED:], y[-EVALUATED:])


_problem = partial(NetProblem, seen=False)
FINAL: dict[str, NetProblem] = {
    "mnist-denoising": _problem(denoiser, noisy_digits, functional.mse_loss, batch=32, steps=400),
    "brackets-lstm": _problem(
        lambda: CharRecurrent(len(SIGNS), 48, nn.LSTM, 24),
        partial(text, 32, SIGNS, nested),
        letters,
        batch=32,
        steps=400,
    ),
    "burgers-residuals": _problem(Burgers, shock, functional.mse_loss, batch=128, steps=800),
    "cifar-depthwise": _problem(depthwise_net, small_cifar, batch=32, steps=400),
    "sarcos-residual": _problem(lambda: ResidualMlp(21, 6), some_torques, functional.smooth_l1_loss, steps=1000),
    "quantiles": _problem(lambda: ResidualMlp(10, len(LEVELS), blocks=2), uneven, pinball, steps=1000),
    "clicks": _problem(lambda: Clicks(FIELDS), visits, batch=128, steps=1000),
    "mnist-dropout": _problem(
        dropout_mlp, mnist_images, partial(functional.cross_entropy, label_smoothing=0.1), steps=600
    ),
}
