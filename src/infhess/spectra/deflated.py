"""Quadratic forms zᵀHz whose noise excludes the top of the spectrum: a sketch of it, then fresh batches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from infhess._random import normal, signs
from infhess.curvature import BatchSource

# Random vectors per batch, and the least number of batches: with fewer, intervals are wide.
VECTORS, BATCHES = 6, 8
MOST = 2**26  # entries of a block of vectors


def fits(source: object, sketch: int) -> bool:
    """Whether a source has batches, more parameters than the sketch, and not too many for a block of vectors."""
    width = sketch + VECTORS
    return isinstance(source, BatchSource) and sketch > 0 and 4 * width <= source.size <= MOST // width


def deflated_products(source: BatchSource, probes: int, sketch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Vectors whose expectation is the diagonal of H, each from its own batch, in double precision.

    Q = orth(H_b Ω) from a first batch. On each further batch, Σ q ⊙ H_b q + mean_z z ⊙ H_b z, with signs z orthogonalised
    against Q: their noise only comes from the rest of the spectrum. This is Hutch++ (Meyer et al. 2021) with fresh data: the
    sum over Q uses as many batches as the rest, and the spread over batches contains all of the noise.
    """
    size, like = source.size, source.like
    Omega = normal(size, sketch, like=like, generator=generator)
    Q = torch.linalg.qr(source.block(source.local(source.draw()), Omega)).Q.mT.contiguous()
    weights = torch.cat([torch.ones(sketch), torch.full((VECTORS,), 1 / VECTORS)]).to(like)
    for _ in range(max(BATCHES, -(-probes // VECTORS))):
        Z = signs(VECTORS, size, like=like, generator=generator)
        S = torch.cat([Q, Z - (Z @ Q.mT) @ Q])  # as rows: a block is read and written along them
        Y = source.block(source.local(source.draw()), S.mT).mT
        yield (weights @ (S * Y)).to(torch.float64)
