"""The inference loop as measured: a source with a clock, the methods, and their peak memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from infhess.active import infer_steps
from infhess.curvature import Products, Source
from infhess.posterior import Isotropic
from infhess_bench.harness.peak import resident_peak
from infhess_bench.harness.timing import FLOAT

STEPS = 16
PRIOR = Isotropic(mean=1.0, scale=1.0, noise=0.1)


class Clocked:
    """A diagonal matrix as a source; time inside it does not count for the loop."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.d = torch.rand(size, generator=generator) + 0.5
        self.g = torch.randn(size, generator=generator)
        self.seconds = 0.0
        self.turn = 0

    def _clocked(self, compute: Callable[[], Tensor]) -> Tensor:
        start = time.perf_counter()
        result = compute()
        self.seconds += time.perf_counter() - start
        return result

    def gradient(self) -> Tensor:
        """A cheap gradient that differs from call to call: the same numbers, shifted."""
        self.turn += 1
        return self._clocked(lambda: self.g.roll(self.turn * 7919))

    def product(self, s: Tensor) -> Tensor:
        """diag(d) s."""
        return self._clocked(lambda: self.d * s)

    def source(self) -> Products:
        """As a source of the library."""
        return Products(self.product, self.gradient, len(self.d))


def methods() -> dict[str, Callable[[Products], Iterator[Any]]]:
    """The two methods of infhess; the paper's with a given prior, so that the pilot is not part of the loop."""
    return {
        "paper": lambda source: infer_steps(source, STEPS, method="paper", prior=PRIOR),
        "curvature": lambda source: infer_steps(source, STEPS),
    }


def paper_steps(source: Source, steps: int, prior: Isotropic) -> Iterator[tuple[Tensor, Tensor]]:
    """The paper's algorithm, recomputed at each step: yields the factors WX (N, m) and WS (N, m) of B_m − b0 I.

    Each iteration forms Δ, SᵀWS, the two generalised eigenproblems, X, and the inverse by the matrix inversion lemma, with no
    shortcut for scaled identities.
    """
    r = source.gradient()
    W = torch.full_like(r, prior.scale)
    Lam = torch.full_like(r, prior.noise)
    D, U = W / Lam, Lam.rsqrt()  # WU = ΛUD, UᵀΛU = I for diagonals
    b0 = prior.mean
    S, Y = r.new_empty(len(r), 0), r.new_empty(len(r), 0)
    s = -r / b0
    for _ in range(steps):
        y = source.matvec(s)
        S, Y = torch.cat([S, s[:, None]], 1), torch.cat([Y, y[:, None]], 1)
        delta = Y - b0 * S
        WS = W[:, None] * S
        noise = (S * (Lam[:, None] * S)).sum(0)
        root = noise.rsqrt()
        omega, V = torch.linalg.eigh(root[:, None] * (S.mT @ WS) * root)
        V = root[:, None] * V
        psi = (U[:, None] * (delta @ V)) / (torch.outer(D, omega) + 1)
        X = (U[:, None] * psi) @ V.mT
        WX = W[:, None] * X
        yield WX, WS
        r = source.gradient()
        capacitance = torch.eye(S.shape[1], dtype=r.dtype) + WS.mT @ WX / b0
        s = -(r - WX @ torch.linalg.solve(capacitance, WS.mT @ r / b0)) / b0


def drained(method: str, source: Products) -> None:
    """Run the whole loop."""
    for _ in methods()[method](source):
        pass


def peak(method: str, size: int, seed: int) -> float:
    """Number of float32 columns that the loop holds at its peak, above what the source holds."""
    drained(method, Clocked(1000, seed).source())  # so that libraries are loaded and workspaces allocated
    source = Clocked(size, seed).source()
    return resident_peak(lambda: drained(method, source))[1] / (size * FLOAT)


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
