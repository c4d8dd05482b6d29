"""Nets of the held-out problems: residual and attention nets on images, a variational autoencoder, and others."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess_bench.problems.nets import _Block, digit_net, mlp
from infhess_bench.problems.shuffled import seeded


class ResNet(nn.Module):
    """Three stages of residual blocks with batch normalisation, for 32×32 images."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        sizes = [width, width, 2 * width, 4 * width]
        self.blocks = nn.Sequential(*(_Residual(a, b, 1 + (a != b)) for a, b in pairwise(sizes)))
        self.out = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) ↦ (n, 10)."""
        logits: Tensor = self.out(self.blocks(functional.avg_pool2d(self.first(x), 2)).mean((2, 3)))
        return logits


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.main(x) + self.skip(x))


class VisionTransformer(nn.Module):
    """Patches of 8×8 pixels, two blocks of attention, the mean over patches; for 32×32 images."""

    def __init__(self, width: int = 48, heads: int = 4, blocks: int = 2, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((32 // patch) ** 2, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(blocks)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) ↦ (n, 10). Attention is causal, as in the blocks for text: only the last patches see all."""
        found: Tensor = self.out(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))
        return found


class Variational(nn.Module):
    """Pixels to logits of the same pixels through a Gaussian code, with its divergence from the prior as an extra column."""

    def __init__(self, pixels: int = 784, width: int = 128, code: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*mlp(pixels, width, 2 * code))
        self.decoder = nn.Sequential(*mlp(code, width, pixels))

    def forward(self, x: Tensor) -> Tensor:
        """(n, pixels) ↦ (n, pixels + 1); without noise in evaluation mode."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        logits = self.decoder(mean + noise * (log_variance / 2).exp())
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1, keepdim=True) / 2
        return torch.cat([logits, divergence], 1)


class CharLstm(nn.Module):
    """Letters to logits of the next letter, by two layers of LSTM; the embedding is also the output layer."""

    def __init__(self, letters: int, width: int = 48) -> None:
        super().__init__()
        self.letters, self.lstm = nn.Embedding(letters, width), nn.LSTM(width, width, 2, batch_first=True)
        nn.init.normal_(self.letters.weight, std=1 / math.sqrt(width))

    def forward(self, codes: Tensor) -> Tensor:
        """(n, length) ↦ (n, length, letters)."""
        return functional.linear(self.lstm(self.letters(codes))[0], self.letters.weight)


class Recommender(nn.Module):
    """A user and an item to a rating: embeddings, their product, and a small net on both."""

    def __init__(self, users: int, items: int, width: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.biases = nn.ModuleList([nn.Embedding(users, 1), nn.Embedding(items, 1)])
        self.net = nn.Sequential(*mlp(2 * width, 32, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        """(n, 2) ↦ (n,)."""
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        both: Tensor = self.net(torch.cat([user, item], 1)) + self.biases[0](pairs[:, 0]) + self.biases[1](pairs[:, 1])
        agreement: Tensor = (user * item).mean(1)
        return both[:, 0] + agreement


class Jet(nn.Module):
    """A tanh net u of two variables whose derivatives are propagated forward through the layers with the values.

    As for physics-informed nets (Raissi, Perdikaris & Karniadakis 2019).
    """

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer in mlp(2, *[width] * depth, 1) if isinstance(layer, nn.Linear))

    def jet(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u (n,), its first and its second derivatives along each axis (2, n)."""
        first = torch.eye(2, dtype=u.dtype, device=u.device)[:, None].expand(2, len(u), 2)
        second = torch.zeros_like(first)
        for i, layer in enumerate(self.layers):
            weight = torch.as_tensor(layer.weight)
            u, first, second = layer(u), first @ weight.T, second @ weight.T
            if i < len(self.layers) - 1:
                u = torch.tanh(u)
                slope = 1 - u.square()
                first, second = slope * first, slope * second - 2 * u * slope * first.square()
        return u[:, 0], first[..., 0], second[..., 0]


class Residuals(Jet):
    """u with −Δu = f in the unit square and 0 on its border: (x, y, border) ↦ 10 u there, −Δu elsewhere."""

    def forward(self, points: Tensor) -> Tensor:
        """(n, 3) ↦ (n,)."""
        u, _, second = self.jet(points[:, :2])
        return torch.where(points[:, 2] > 0.5, 10 * u, -second.sum(0))


class GraphNet(nn.Module):
    """Adjacency matrices to classes: three rounds of messages between nodes, and the mean over nodes."""

    def __init__(self, width: int = 32, rounds: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(2, width), nn.Sequential(*mlp(2 * width, width, classes))
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.others = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))

    def forward(self, edges: Tensor) -> Tensor:
        """(n, nodes, nodes) ↦ (n, classes)."""
        degree = edges.sum(2, keepdim=True)
        x = self.first(torch.cat([torch.ones_like(degree), degree / 4], 2))
        for own, others in zip(self.own, self.others):
            x = x + functional.relu(own(x) + others(edges @ x) / 4)
        found: Tensor = self.out(torch.cat([x.mean(1), x.amax(1)], 1))
        return found


class LowRankAdapter(nn.Module):
    """A frozen dense layer plus B A of low rank, with B = 0 initially (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Same shapes as the layer."""
        found: Tensor = self.layer(x) + x @ self.a.T @ self.b.T
        return found


@lru_cache(maxsize=1)
def _pretrained(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The digit net after 200 steps of Adam on whether a digit is even; the same for all seeds."""
    with seeded(7):
        net, draw = digit_net(), torch.Generator().manual_seed(7)
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(200):
            part = torch.randint(len(x), (64,), generator=draw)
            optimizer.zero_grad()
            functional.cross_entropy(net(x[part]), y[part] % 2).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return {name: t.detach().clone() for name, t in net.state_dict().items()}


def fine_tuned(x: Tensor, y: Tensor) -> nn.Module:
    """The pretrained net with its weights frozen, low-rank factors on the dense layers, and a new last layer."""
    net = digit_net()
    assert isinstance(net, nn.Sequential)
    net.load_state_dict(_pretrained(x, y))
    net.requires_grad_(False)
    hidden, last = [i for i, layer in enumerate(net) if isinstance(layer, nn.Linear)]
    dense = net[hidden]
    assert isinstance(dense, nn.Linear)
    net[hidden], net[last] = LowRankAdapter(dense), nn.Linear(48, 10)
    return net


def deep_mlp(depth: int = 12, width: int = 64) -> nn.Module:
    """Dense layers with ReLU and He initialisation, without normalisation or skip connections."""
    net = nn.Sequential(nn.Flatten(), *mlp(784, *[width] * depth, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return net
