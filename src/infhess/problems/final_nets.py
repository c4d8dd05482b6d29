"""Nets of the final problems."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess.problems.held_out_nets import Jet
from infhess.problems.nets import mlp


def denoiser(width: int = 8) -> nn.Module:
    """28×28 images to images: two convolutions down, two transposed ones up."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(width, 1, 4, 2, 1),
    )  # fmt: skip


class BracketLstm(nn.Module):
    """Signs to logits of the next one by one layer of LSTM."""

    def __init__(self, signs: int, width: int = 48) -> None:
        super().__init__()
        self.signs, self.lstm = nn.Embedding(signs, width // 2), nn.LSTM(width // 2, width, batch_first=True)
        self.out = nn.Linear(width, signs)

    def forward(self, codes: Tensor) -> Tensor:
        """(n, length) ↦ (n, length, signs)."""
        logits: Tensor = self.out(self.lstm(self.signs(codes))[0])
        return logits


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
    """Dense blocks with skips, each normalised before."""

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
