"""The demo: a 200×200 matrix with a decaying spectrum from 24 noisy products."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from infhess.active import infer
from infhess.curvature import Products
from infhess.experiments.rows import Row
from infhess.posterior import Posterior
from infhess.preconditioner import preconditioner

SIZE, STEPS, BATCH, SHOWN = 200, 24, 256, 10
EXPERIMENT, PROBLEM = "demo", "decaying-200"


def spectrum_of(size: int) -> Tensor:
    """Eigenvalues 100 / i² + 0.01: a few large ones and a long tail, as Hessians have."""
    return 100 / torch.arange(1, size + 1, dtype=torch.float64) ** 2 + 0.01


def mini_batch_source(values: Tensor, batch: int, generator: torch.Generator) -> tuple[Products, Tensor]:
    """Products with XᵀX/batch, where fresh rows X of covariance B are drawn for each product; and B itself."""
    size = len(values)
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=values.dtype)).Q
    root = (Q * values.sqrt()) @ Q.mT

    def rows() -> Tensor:
        draw: Tensor = torch.randn(batch, size, generator=generator, dtype=values.dtype) @ root
        return draw

    def product(s: Tensor) -> Tensor:
        X = rows()
        return X.mT @ (X @ s) / batch

    return Products(product, lambda: rows().mean(0), size, points=batch), root @ root


def rows(seed: int) -> Iterator[Row]:
    """Truth, estimate and error bar of the top eigenvalues, and the condition numbers before and after."""
    start = time.perf_counter()
    source, B = mini_batch_source(spectrum_of(SIZE), BATCH, torch.Generator().manual_seed(seed))
    posterior = infer(source, steps=STEPS)
    seconds = time.perf_counter() - start
    pairs = posterior.eigh(SHOWN)
    assert pairs.std is not None
    truth = torch.linalg.eigvalsh(B).flip(0)[:SHOWN]
    for i in range(SHOWN):
        for method, values in (("truth", truth), ("estimate", pairs.values), ("std", pairs.std)):
            yield Row(
                EXPERIMENT, f"{PROBLEM}/eigenvalue-{i + 1}", method, seed, BATCH, source.data_points, source.products,
                seconds, loss=abs(float(values[i] - truth[i])), metric=float(values[i]),
            )  # fmt: skip
    for method, value in (("plain", condition_number(B)), ("preconditioned", condition_number(B, posterior))):
        yield Row(
            EXPERIMENT, f"{PROBLEM}/condition", method, seed, BATCH, source.data_points, source.products, seconds,
            metric=value,
        )  # fmt: skip


def condition_number(B: Tensor, posterior: Posterior | None = None) -> float:
    """λ₁/λ_N of B, or of P B P with the preconditioner that a posterior gives."""
    if posterior is not None:
        P = preconditioner(posterior).power(0.5).dense()
        B = P @ B @ P
    values = torch.linalg.eigvalsh(B)
    return float(values[-1] / values[0])
