"""Linear classifiers on raw features, with scales from 1e-3 to 1e3: from where nn.Linear starts, most points saturate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from sklearn.datasets import load_breast_cancer, load_wine
from torch.nn import functional

import infhess

BINARY, SOFTMAX = "binary", "softmax"
DATA = {"cancer": load_breast_cancer, "wine": load_wine}
CASES = [(data, kind) for data in DATA for kind in (BINARY, SOFTMAX)]


@dataclass(frozen=True)
class Raw:
    """A model, its loss of a batch with L2, and all the data in a random order."""

    model: torch.nn.Linear
    x: torch.Tensor
    y: torch.Tensor

    def loss(self, batch):
        """The mean over the points of a batch, with ½ 10⁻⁴ |w|²."""
        f = self.model(batch[0])
        margins = self.y.is_floating_point()
        mean = functional.softplus(-batch[1] * f[:, 0]).mean() if margins else functional.cross_entropy(f, batch[1])
        return mean + 0.5e-4 * sum(p.square().sum() for p in self.model.parameters())

    def value(self):
        """The loss over all the data."""
        with torch.no_grad():
            return float(self.loss((self.x, self.y)))

    def batches(self, size=32):
        """All the data, in the same order each time."""
        return list(zip(self.x.split(size), self.y.split(size)))


def raw(data, kind, seed, *, zero=False):
    """A case, with nn.Linear's own start by this seed, or all weights zero."""
    bunch = DATA[data]()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed))
    x, y = torch.from_numpy(bunch.data)[order], torch.from_numpy(bunch.target)[order]
    outputs = 1 if kind == BINARY else int(y.max()) + 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = torch.nn.Linear(x.shape[1], outputs, dtype=torch.float64)
    if zero:
        for p in model.parameters():
            torch.nn.init.zeros_(p)
    return Raw(model, x, 2.0 * (y == 1).double() - 1 if kind == BINARY else y)


@lru_cache
def optimum(data, kind):
    """The least loss, found from zero weights."""
    problem = raw(data, kind, 0, zero=True)
    result = infhess.minimize(problem.loss, problem.model.parameters(), problem.batches(), gap=1e-10)
    assert result.stopped == "gap"
    return problem.value()
