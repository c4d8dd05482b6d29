"""One table of small nets: (model, batch) by name. A new layer to cover is one entry."""

from __future__ import annotations

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Sdpa(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)[:, 0].mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.mix(self.embed(x))).mean(1) @ self.embed.weight.T


def images(n=8):
    return torch.randn(n, 2, 6, 6)


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), lambda: torch.randn(8, 4)),
    "layernorm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)),
        lambda: torch.randn(8, 4),
    ),
    "batchnorm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Softplus(), nn.Linear(6, 3)),
        lambda: torch.randn(8, 4),
    ),
    "instancenorm": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.Tanh(), nn.Flatten()),
        images,
    ),
    "attention": (Attention, lambda: torch.randn(8, 5, 6)),
    "sdpa": (Sdpa, lambda: torch.randn(8, 5, 4)),
    "lstm": (Recurrent, lambda: torch.randn(8, 5, 3)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)
        ),
        images,
    ),
    "tied embedding": (Tied, lambda: torch.randint(7, (8, 5))),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3)),
        lambda: torch.randn(8, 4),
    ),
}


def build(name, dtype=torch.float64, seed=0):
    """(model, loss of a batch, batch) in a dtype; the global random state is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make, data = NETS[name]
        model, x = make().to(dtype), data()
        x = x.to(dtype) if x.is_floating_point() else x
        with torch.no_grad():
            y = torch.randn_like(model.eval()(x))
        model.train()
    loss_of = nn.functional.mse_loss
    return model, lambda batch: loss_of(model(batch[0]), batch[1]) + 0.1 * model(batch[0]).logsumexp(-1).mean(), (x, y)


SEED = 123


def flat_gradient(model, loss, batch, seed=SEED):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(batch), list(model.parameters()))])
