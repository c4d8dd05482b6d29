"""Problems of the present comparison, named before any run of infhess on them.

Those of `final` were run with three rules, so development has seen them. The rule is frozen before it is run on these.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess_bench.data import sarcos
from infhess_bench.problems.features import apart, standardised
from infhess_bench.problems.held_out_nets import Jet
from infhess_bench.problems.net_problems import EVALUATED, NetProblem, letters, mnist_images, small_cifar, text
from infhess_bench.problems.nets import mlp
from infhess_bench.problems.shuffled import Data
from infhess_bench.problems.text import ALPHABET

SORTED, NUMBERS = 10, 16  # numbers to sort, and how many different ones there are
WAVE = 24  # values of a wave


class Skip(nn.Module):
    """x plus a branch of x."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        found: Tensor = x + self.branch(x)
        return found


def convnext(width: int = 32, blocks: int = 2) -> nn.Module:
    """Patches of 4×4 pixels, then depthwise 5×5 and pointwise convolutions with skips (ConvNeXt, Liu et al. 2022)."""

    def block() -> nn.Module:
        depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        wide, narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        return Skip(depthwise, nn.GroupNorm(1, width), wide, nn.GELU(), narrow)

    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    return nn.Sequential(nn.Conv2d(3, width, 4, 4), *(block() for _ in range(blocks)), *ends)


class Transposed(nn.Module):
    """(n, a, b) ↦ (n, b, a)."""

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        return x.mT


def mixer(width: int = 32, blocks: int = 2, patch: int = 7) -> nn.Module:
    """Dense layers across patches and across channels in turn, for 28×28 images (MLP-Mixer, Tolstikhin et al. 2021)."""
    patches = (28 // patch) ** 2

    def block() -> list[nn.Module]:
        across = mlp(patches, 2 * patches, patches, between=nn.GELU)
        within = mlp(width, 2 * width, width, between=nn.GELU)
        return [
            Skip(nn.LayerNorm(width), Transposed(), *across, Transposed()), Skip(nn.LayerNorm(width), *within),
        ]  # fmt: skip

    start = nn.Conv2d(1, width, patch, patch), nn.Flatten(2), Transposed()
    layers = [layer for _ in range(blocks) for layer in block()]
    return nn.Sequential(*start, *layers, nn.LayerNorm(width), nn.Flatten(), nn.Linear(patches * width, 10))


class Dilated(nn.Module):
    """Letters to logits of the next letter, by gated causal convolutions with dilation (WaveNet, van den Oord et al. 2016)."""

    def __init__(self, signs: int, width: int = 32, reaches: tuple[int, ...] = (1, 2, 4, 8)) -> None:
        super().__init__()
        self.signs, self.out = nn.Embedding(signs, width), nn.Linear(width, signs)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=reach) for reach in reaches)
        self.reaches = reaches

    def forward(self, codes: Tensor) -> Tensor:
        """(n, length) ↦ (n, length, signs)."""
        x = self.signs(codes).mT
        for layer, reach in zip(self.layers, self.reaches):
            value, gate = layer(functional.pad(x, (reach, 0))).chunk(2, 1)
            x = x + torch.tanh(value) * torch.sigmoid(gate)
        logits: Tensor = self.out(x.mT)
        return logits


class Heat(Jet):
    """u with u_t = ν u_xx: (x, t, border) ↦ 10 u on the border, u_t − ν u_xx elsewhere."""

    diffusivity = 0.1

    def forward(self, points: Tensor) -> Tensor:
        """(n, 3) ↦ (n,)."""
        u, (_, u_t), (u_xx, _) = self.jet(points[:, :2])
        return torch.where(points[:, 2] > 0.5, 10 * u, u_t - self.diffusivity * u_xx)


class Sorter(nn.Module):
    """Numbers to logits of the same numbers in order: two layers of bidirectional attention."""

    def __init__(self, numbers: int = NUMBERS, length: int = SORTED, width: int = 32) -> None:
        super().__init__()
        self.numbers, self.places = nn.Embedding(numbers, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.out = nn.Linear(width, numbers)

    def forward(self, codes: Tensor) -> Tensor:
        """(n, length) ↦ (n, length, numbers)."""
        x = self.numbers(codes) + self.places
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.out(x)
        return logits


def angle_net(width: int = 8) -> nn.Module:
    """Strided convolutions with group normalisation, from 28×28 images to cosine and sine."""
    layers: list[nn.Module] = []
    for before, after in ((1, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.GroupNorm(4, after), nn.SiLU()]
    return nn.Sequential(*layers, nn.Flatten(), *mlp(32 * width, 32, 2, between=nn.SiLU))


class WaveGru(nn.Module):
    """Values of a wave to the next values, by a recurrent net."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length) ↦ (n, length)."""
        found: Tensor = self.out(self.gru(x[:, :, None])[0])[:, :, 0]
        return found


def accelerations() -> tuple[Data, Data]:
    """SARCOS inverted: positions, velocities and torques to accelerations; every ninth row is for testing."""
    x, torques = (standardised(t).float() for t in sarcos())
    return apart(torch.cat([x[:, :14], torques], 1), x[:, 14:], every=9)


def rod() -> tuple[Data, Data]:
    """Points (x, t) of [0, 1] × [0, 1], and targets: two sines at t = 0, 0 at both ends, residuals of 0 elsewhere."""

    def part(n: int, seed: int) -> Data:
        draw = torch.Generator().manual_seed(seed)
        x, t = torch.rand(n, generator=draw), torch.rand(n, generator=draw)
        kind = torch.randint(6, (n,), generator=draw)  # 0: the start; 1: the ends
        x, t = torch.where(kind == 1, x.round(), x), torch.where(kind == 0, 0.0, t)
        start = torch.sin(math.pi * x) + 0.5 * torch.sin(3 * math.pi * x)
        return torch.stack([x, t, (kind < 2).float()], 1), torch.where(kind == 0, 10 * start, 0.0)

    return part(10_000, 21), part(EVALUATED, 22)


def unsorted() -> tuple[Data, Data]:
    """Numbers in random order, and sorted."""
    draw = torch.Generator().manual_seed(23)
    x = torch.randint(NUMBERS, (8_000 + EVALUATED, SORTED), generator=draw)
    y = x.sort(1).values
    return (x[:-EVALUATED], y[:-EVALUATED]), (x[-EVALUATED:], y[-EVALUATED:])


def turned_digits() -> tuple[Data, Data]:
    """MNIST's images rotated by up to ±90°, and cosine and sine of the angle."""
    draw = torch.Generator().manual_seed(24)

    def turned(x: Tensor) -> Data:
        angle = math.pi * (torch.rand(len(x), generator=draw) - 0.5)
        c, s, o = angle.cos(), angle.sin(), torch.zeros(len(x))
        maps = torch.stack([torch.stack([c, -s, o], 1), torch.stack([s, c, o], 1)], 1)
        grid = functional.affine_grid(maps, list(x.shape), align_corners=False)
        return functional.grid_sample(x, grid, align_corners=False), torch.stack([c, s], 1)

    (x, _), (tx, _) = mnist_images()
    return turned(x), turned(tx)


def waves() -> tuple[Data, Data]:
    """Sums of two damped oscillations with noise, and the same shifted by one value."""
    draw = torch.Generator().manual_seed(25)
    count = 6_000 + EVALUATED
    t = torch.arange(WAVE + 1.0)
    frequency, phase, size = (torch.rand(count, 2, 1, generator=draw) for _ in range(3))
    parts = size * torch.sin((0.2 + frequency) * t + 6.3 * phase) * torch.exp(-0.05 * frequency * t)
    wave = parts.sum(1) + 0.02 * torch.randn(count, WAVE + 1, generator=draw)
    x, y = wave[:, :-1], wave[:, 1:]
    return (x[:-EVALUATED], y[:-EVALUATED]), (x[-EVALUATED:], y[-EVALUATED:])


_problem = partial(NetProblem, seen=False)
FRESH: dict[str, NetProblem] = {
    "cifar-convnext": _problem(convnext, small_cifar, batch=64, steps=300),
    "mnist-mixer": _problem(mixer, mnist_images, batch=64, steps=500),
    "text-dilated": _problem(lambda: Dilated(len(ALPHABET)), text, letters, batch=32, steps=500),
    "sarcos-accelerations": _problem(
        lambda: nn.Sequential(*mlp(21, 64, 64, 64, 7, between=nn.GELU)), accelerations, functional.mse_loss, steps=1000
    ),
    "heat-residuals": _problem(Heat, rod, functional.mse_loss, batch=128, steps=800),
    "sorting-transformer": _problem(Sorter, unsorted, letters, batch=64, steps=500),
    "mnist-angles": _problem(angle_net, turned_digits, functional.mse_loss, batch=64, steps=500),
    "waves-gru": _problem(WaveGru, waves, functional.mse_loss, batch=64, steps=500),
}
