"""The net of the paper's appendix with narrower copies, and other small nets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


def paper_net(width: float = 1.0, *, xavier: bool = False) -> nn.Module:
    """Three convolutions (64, 96, 128 channels; 5×5, 3×3, 3×3) and three dense layers (512, 256, 10), for 32×32 images.

    `width` scales channels and dense layers; `xavier` replaces PyTorch's default initialisation.
    """
    c1, c2, c3, d1, d2 = (max(4, round(width * n)) for n in (64, 96, 128, 512, 256))
    net = nn.Sequential(
        nn.Conv2d(3, c1, 5), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(c1, c2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(c2, c3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Flatten(), nn.Linear(9 * c3, d1), nn.ReLU(), nn.Linear(d1, d2), nn.ReLU(), nn.Linear(d2, 10),
    )  # fmt: skip
    for layer in net if xavier else ():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(torch.as_tensor(layer.bias))
    return net


def mlp(*sizes: int, between: Callable[[], nn.Module] = nn.ReLU) -> list[nn.Module]:
    """Dense layers of these sizes, with a nonlinearity between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), between()]
    return layers[:-1]


def digit_net() -> nn.Module:
    """Two convolutions and two dense layers, for 28×28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), *mlp(192, 48, 10),
    )  # fmt: skip


def batch_norm_net() -> nn.Module:
    """Three convolutions with batch normalisation, for 32×32 images."""
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16), (16, 32)):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class CharTransformer(nn.Module):
    """Letters to logits of the next letter: two blocks of causal attention and a dense layer, with pre-normalisation."""

    def __init__(self, letters: int, length: int, width: int = 32, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, codes: Tensor) -> Tensor:
        """(n, length) ↦ (n, length, letters)."""
        x = self.letters(codes) + self.places[: codes.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.out(x)
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.mix(self.first(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.back(mixed.transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.dense(self.second(x))
        return out


class CharRecurrent(nn.Module):
    """Letters to logits of the next letter, by a layer of GRU or LSTM; embeddings may have another width."""

    def __init__(self, letters: int, width: int = 64, layer: type[nn.GRU | nn.LSTM] = nn.GRU, code: int = 0) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, code or width)
        self.layer = layer(code or width, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, codes: Tensor) -> Tensor:
        """(n, length) ↦ (n, length, letters)."""
        logits: Tensor = self.out(self.layer(self.letters(codes))[0])
        return logits
