"""Nets that two cores train in seconds to a minute: (net, data, loss) by name. A new problem is one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess.data import cifar10, mnist, sarcos
from infhess.problems.features import standardised
from infhess.problems.nets import CharGru, CharTransformer, batch_norm_net, digit_net, mlp, paper_net
from infhess.problems.text import ALPHABET, generated

Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
# Points on which training objective and test loss are evaluated.
EVALUATED = 1000


@dataclass(frozen=True)
class NetProblem:
    """A net from a random start, the mean of a loss over data with ½ l2 |w|² beside it, and data to test on.

    `seen` says whether defaults were chosen with a look at it.
    """

    net: Callable[[], nn.Module]
    read: Callable[[], tuple[Data, Data]]
    loss_of: Loss = functional.cross_entropy
    batch: int = 64
    steps: int = 600
    l2: float = 0.0
    seen: bool = True

    # Rows are written each time so many times more points were read, and the average of iterates is a method's own affair.
    spacing: ClassVar[float] = 2.0
    averages: ClassVar[bool] = False
    price: ClassVar[float] = 2.5  # of a product with its graph, in gradients: more than it costs on any of these

    @cached_property
    def _both(self) -> tuple[Data, Data]:
        return self.read()

    @property
    def data(self) -> Data:
        """To train on."""
        return self._both[0]

    def model(self) -> nn.Module:
        """A net at its start, by torch's global generator."""
        return self.net()

    def loss(self, model: nn.Module) -> Callable[[Data], Tensor]:
        """Batch ↦ mean loss of the model."""
        weights = list(model.parameters())

        def value(batch: Data) -> Tensor:
            penalty = torch.stack([w.square().sum() for w in weights]).sum() if self.l2 else 0.0
            return self.loss_of(model(batch[0]), batch[1]) + self.l2 / 2 * penalty

        return value

    def value(self, model: nn.Module) -> float:
        """The training objective, on the first points."""
        penalty = self.l2 / 2 * float(sum(w.detach().square().sum() for w in model.parameters())) if self.l2 else 0.0
        return self._evaluated(model, self._both[0]) + penalty

    def tested(self, model: nn.Module) -> float:
        """The loss on data held back."""
        return self._evaluated(model, self._both[1])

    def _evaluated(self, model: nn.Module, data: Data) -> float:
        mode = model.training
        model.eval()
        try:
            with torch.no_grad():
                parts = [t[:EVALUATED].split(500) for t in data]  # type: ignore[no-untyped-call]
                return sum(len(y) * float(self.loss_of(model(x), y)) for x, y in zip(*parts)) / min(
                    EVALUATED, len(data[0])
                )
        finally:
            model.train(mode)


def letters(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each next letter."""
    return functional.cross_entropy(outputs.flatten(0, 1), y.flatten())


def pixels(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of pixels in [0, 1], summed over an image."""
    return functional.binary_cross_entropy_with_logits(outputs, y, reduction="sum") / len(y)


def cifar(images: int = 5_000) -> tuple[Data, Data]:
    """Images standardised by the channels of the training set."""
    (x, y), (tx, ty) = cifar10(), cifar10(["test_batch"])
    x, tx = x[:images].float() / 255, tx[:EVALUATED].float() / 255
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return ((x - mean) / std, y[:images]), ((tx - mean) / std, ty[:EVALUATED])


def numerals(images: int = 10_000, *, themselves: bool = False) -> tuple[Data, Data]:
    """MNIST in [0, 1] with its labels, or flat with itself as target."""

    def part(name: str, n: int) -> Data:
        x, y = mnist(name)
        x = x[:n, None].float() / 255
        return (x.flatten(1), x.flatten(1)) if themselves else (x, y[:n])

    return part("train", images), part("t10k", EVALUATED)


def text(length: int = 32) -> tuple[Data, Data]:
    """Windows of generated text, and the same shifted by one letter."""

    def part(size: int, seed: int) -> Data:
        codes = torch.tensor([ALPHABET.index(letter) for letter in generated(size * length + 1, seed)])
        return codes[:-1].view(size, length), codes[1:].view(size, length)

    return part(4_000, 1), part(EVALUATED // 2, 2)


def torques() -> tuple[Data, Data]:
    """SARCOS, all seven torques, standardised; every tenth row is for the test."""
    x, y = (standardised(t).float() for t in sarcos())
    test = torch.arange(len(x)) % 10 == 0
    return (x[~test], y[~test]), (x[test], y[test])


DEEP: dict[str, NetProblem] = {
    "cifar-net, Xavier": NetProblem(lambda: paper_net(0.15, xavier=True), cifar, batch=32, steps=500, l2=0.01),
    "cifar-net, default": NetProblem(lambda: paper_net(0.15), cifar, batch=32, steps=500, l2=0.01),
    "mnist-mlp": NetProblem(lambda: nn.Sequential(nn.Flatten(), *mlp(784, 128, 64, 10)), numerals, steps=1000),
    "mnist-cnn": NetProblem(digit_net, numerals, steps=500),
    "text-transformer": NetProblem(lambda: CharTransformer(len(ALPHABET), 32), text, letters, batch=32, steps=500),
    "mnist-autoencoder": NetProblem(
        lambda: nn.Sequential(*mlp(784, 128, 32, 128, 784)),
        lambda: numerals(themselves=True),
        pixels,
        steps=1000,
        seen=False,
    ),
    "sarcos-mlp": NetProblem(
        lambda: nn.Sequential(*mlp(21, 64, 64, 7, between=nn.Tanh)),
        torques,
        functional.mse_loss,
        steps=1000,
        seen=False,
    ),
    "cifar-batchnorm": NetProblem(batch_norm_net, cifar, batch=32, steps=500, seen=False),
    "text-gru": NetProblem(lambda: CharGru(len(ALPHABET)), text, letters, batch=32, steps=500, seen=False),
}
FULL: dict[str, NetProblem] = {
    "paper's net, Xavier": NetProblem(
        lambda: paper_net(xavier=True), lambda: cifar(10_000), batch=32, steps=3_000, l2=0.01
    ),
    "paper's net, default": NetProblem(paper_net, lambda: cifar(10_000), batch=32, steps=3_000, l2=0.01),
}


@lru_cache(maxsize=1)
def net_problem(name: str) -> NetProblem:
    """By name; its data is kept for the next run in this process."""
    return {**DEEP, **FULL}[name]
