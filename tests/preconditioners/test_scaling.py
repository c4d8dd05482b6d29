"""Preconditioners from a posterior, against dense formulas."""

from __future__ import annotations

import torch

import infhess
from infhess import Products, infer, paper_preconditioner
from util import F64, close, randn, spectrum

N = 20
B = spectrum(torch.logspace(0, 1.5, N))
G = randn(N, seed=7)


def exact(matrix=B, gradient=G):
    return Products(lambda s: matrix @ s, lambda: gradient.clone(), len(gradient))


def test_the_papers_preconditioner_is_as_printed():
    posterior = infer(exact(), 12, method="paper")
    sigma, U, _ = posterior.svd(4)
    P = torch.eye(N, dtype=F64) + U @ (torch.diag(2.0 / sigma.sqrt()) - torch.eye(4, dtype=F64)) @ U.mT
    alpha = (sigma[0] / sigma[-1]).sqrt()
    close(paper_preconditioner(posterior, 4, beta=2.0).dense(), alpha * P, 1e-10)
    close(paper_preconditioner(posterior, 4, alpha=1.0, beta=2.0).power(2).dense(), P @ P, 1e-10)


def test_the_default_preconditioner_is_invariant_and_inverts_what_was_seen():
    posterior = infer(exact(), N)
    P2 = infhess.preconditioner(posterior)
    rho = torch.linalg.eigvalsh(B)[0]
    close(P2.dense(), torch.linalg.inv(B + rho * torch.eye(N, dtype=F64)), 1e-3)
    scaled = infhess.preconditioner(infer(exact(1e6 * B, 1e6 * G), N))
    close(1e6 * scaled.dense(), P2.dense(), 1e-3)
