"""The port of the paper's loop: what the fast one is timed beside."""

from __future__ import annotations

import torch

from infhess import Isotropic, Products, infer_steps
from infhess_bench.bench.loop import paper_steps
from util import F64, close, randn, spectrum

N = 20
B = spectrum(torch.logspace(0, 1.5, N))
G = randn(N, seed=7)


def test_the_fast_loop_is_the_papers_algorithm():
    """Step by step, the same posterior mean as the plain port that recomputes everything, with noise."""
    prior = Isotropic(1.3, 0.8, 0.4)
    products = [randn(N, seed=40 + i) for i in range(8)]
    gradients = [G + 0.3 * randn(N, seed=60 + i) for i in range(9)]

    def source():
        p, g = iter(products), iter(gradients)
        return Products(lambda s: B @ s + 0.1 * s.norm() * next(p), lambda: next(g), N)

    fast = [s.posterior.mean.dense() for s in infer_steps(source(), 8, method="paper", prior=prior)]
    theirs = [prior.mean * torch.eye(N, dtype=F64) + WX @ WS.mT for WX, WS in paper_steps(source(), 8, prior)]
    for a, b in zip(fast, theirs, strict=True):
        close(a, b, 1e-9)
