"""Nets that train in seconds to a minute on two cores: (net, data, loss) by name. A new problem is one entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess_bench.data import mnist, sarcos
from infhess_bench.problems.features import apart, cifar_images, standardised
from infhess_bench.problems.nets import CharRecurrent, CharTransformer, batch_norm_net, digit_net, mlp, paper_net
from infhess_bench.problems.shuffled import Data, Loss, objective
from infhess_bench.problems.text import ALPHABET, generated

# Points on which the training objective and the test loss are evaluated.
EVALUATED = 1000


@dataclass(frozen=True)
class NetProblem:
    """A net from a random start, the mean of a loss over data plus ½ l2 |w|², and held-out data for testing.

    `seen` says whether defaults were chosen with knowledge of its results.
    """

    net: Callable[[], nn.Module]
    read: Callable[[], tuple[Data, Data]]
    loss_of: Loss = functional.cross_entropy
    batch: int = 64
    steps: int = 600
    l2: float = 0.0
    seen: bool = True

    # A row is written each time that this many times more points were read, and at least this often in a run.
    spacing: ClassVar[float] = 2.0
    parts: ClassVar[int] = 8
    averages: ClassVar[bool] = False  # methods average iterates themselves
    price: ClassVar[float] = 2.5  # of a product with its graph, in gradients: an upper bound on all of these problems

    @cached_property
    def both(self) -> tuple[Data, Data]:
        """Training data and test data."""
        return self.read()

    @property
    def data(self) -> Data:
        """Training data."""
        return self.both[0]

    def model(self) -> nn.Module:
        """A net at its start, initialised by torch's global generator."""
        return self.net()

    def loss(self, model: nn.Module) -> Callable[[Data], Tensor]:
        """Batch ↦ mean loss of the model."""
        return objective(self.loss_of, model, self.l2)

    def value(self, model: nn.Module) -> float:
        """The training objective on the first points, to six digits."""
        penalty = self.l2 / 2 * float(sum(w.detach().square().sum() for w in model.parameters())) if self.l2 else 0.0
        return rounded(self._evaluated(model, self.both[0]) + penalty)

    def tested(self, model: nn.Module) -> float:
        """The loss on held-out data, to six digits."""
        return rounded(self._evaluated(model, self.both[1]))

    def limit(self) -> float:
        """No limit: only a net that is not finite is lost."""
        return math.inf

    def accuracies(self, model: nn.Module) -> list[tuple[float, float]]:
        """Training and test accuracy, as one pair; empty if targets are not classes."""
        if self.data[1].is_floating_point():
            return []
        train, test = (rounded(self._evaluated(model, data, hits)) for data in self.both)
        return [(train, test)]

    def _evaluated(self, model: nn.Module, data: Data, measure: Loss | None = None) -> float:
        mode, measure = model.training, measure or self.loss_of
        parts = [t[:EVALUATED].split(500) for t in data]  # type: ignore[no-untyped-call]
        with torch.no_grad():
            model.eval()
            total = sum(len(y) * float(measure(model(x), y)) for x, y in zip(*parts))
            model.train(mode)
        return total / min(EVALUATED, len(data[0]))


def hits(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of outputs whose largest logit is that of the true class."""
    return (outputs.argmax(-1) == y).double().mean()


def rounded(x: float) -> float:
    """Rounded to six digits; infinite if it is NaN."""
    return float(f"{x:.6g}") if math.isfinite(x) else math.inf


def letters(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each next letter."""
    return functional.cross_entropy(outputs.flatten(0, 1), y.flatten())


def pixels(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of pixels in [0, 1], summed over an image."""
    return functional.binary_cross_entropy_with_logits(outputs, y, reduction="sum") / len(y)


small_cifar, large_cifar = (partial(cifar_images, images, EVALUATED) for images in (5_000, 10_000))


def mnist_images() -> tuple[Data, Data]:
    """10,000 images in [0, 1] with their labels."""

    def part(name: str, n: int) -> Data:
        x, y = mnist(name)
        return x[:n, None].float() / 255, y[:n]

    return part("train", 10_000), part("t10k", EVALUATED)


def mnist_themselves() -> tuple[Data, Data]:
    """The same images, flat, as inputs and as targets."""
    (x, _), (tx, _) = mnist_images()
    return (x.flatten(1), x.flatten(1)), (tx.flatten(1), tx.flatten(1))


def text(length: int = 32, alphabet: str = ALPHABET, write: Callable[[int, int], str] = generated) -> tuple[Data, Data]:
    """Windows of generated text, and the same shifted by one letter."""

    def part(size: int, seed: int) -> Data:
        codes = torch.tensor([alphabet.index(letter) for letter in write(size * length + 1, seed)])
        return codes[:-1].view(size, length), codes[1:].view(size, length)

    return part(4_000, 1), part(EVALUATED // 2, 2)


def torques() -> tuple[Data, Data]:
    """SARCOS, all seven torques, standardised; every tenth row is for testing."""
    x, y = (standardised(t).float() for t in sarcos())
    return apart(x, y, every=10)


DEEP: dict[str, NetProblem] = {
    "cifar-net, Xavier": NetProblem(lambda: paper_net(0.15, xavier=True), small_cifar, batch=32, steps=500, l2=0.01),
    "cifar-net, default": NetProblem(lambda: paper_net(0.15), small_cifar, batch=32, steps=500, l2=0.01),
    "mnist-mlp": NetProblem(lambda: nn.Sequential(nn.Flatten(), *mlp(784, 128, 64, 10)), mnist_images, steps=1000),
    "mnist-cnn": NetProblem(digit_net, mnist_images, steps=500),
    "text-transformer": NetProblem(lambda: CharTransformer(len(ALPHABET), 32), text, letters, batch=32, steps=500),
    "mnist-autoencoder": NetProblem(
        lambda: nn.Sequential(*mlp(784, 128, 32, 128, 784)), mnist_themselves, pixels, steps=1000, seen=False
    ),
    "sarcos-mlp": NetProblem(
        lambda: nn.Sequential(*mlp(21, 64, 64, 7, between=nn.Tanh)), torques, functional.mse_loss, 64, 1000, seen=False
    ),
    "cifar-batchnorm": NetProblem(batch_norm_net, small_cifar, batch=32, steps=500, seen=False),
    "text-gru": NetProblem(lambda: CharRecurrent(len(ALPHABET)), text, letters, batch=32, steps=500, seen=False),
}
FULL: dict[str, NetProblem] = {
    "paper's net, Xavier": NetProblem(lambda: paper_net(xavier=True), large_cifar, batch=32, steps=3_000, l2=0.01),
    "paper's net, default": NetProblem(paper_net, large_cifar, batch=32, steps=3_000, l2=0.01),
}
# Five million weights, with shape and batch size such that one core makes twenty steps per second.
LARGE: dict[str, NetProblem] = {
    "large-transformer": NetProblem(
        lambda: CharTransformer(len(ALPHABET), 16, 128, blocks=26), partial(text, 16), letters, batch=4, steps=2_000
    ),
}
