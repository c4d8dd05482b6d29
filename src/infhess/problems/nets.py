"""The net of the paper's appendix, and narrow copies of it."""

from __future__ import annotations

import torch
from torch import nn


def paper_net(width: float = 1.0, *, xavier: bool = False) -> nn.Module:
    """Three convolutions (64, 96, 128 channels; 5×5, 3×3, 3×3) and three dense layers (512, 256, 10), for 32×32 images.

    `width` scales channels and dense layers; `xavier` takes the place of PyTorch's default initialisation.
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
