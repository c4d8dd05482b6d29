"""Blocks on the diagonal against dense arrays."""

from __future__ import annotations

import torch

from infhess import LowRank
from util import close, randn


def test_blocks_on_the_diagonal_do_what_the_dense_matrix_does():
    from infhess.lowrank import BlockDiagonal

    parts = [
        LowRank(2.0, randn(4, 2)),
        LowRank(0.5, randn(3, 1, seed=1)),
        LowRank(randn(5, seed=2).abs() + 1, randn(5, 2, seed=3)),
    ]
    A, v = BlockDiagonal(parts), randn(12, seed=4)
    dense = torch.block_diag(*(p.dense() for p in parts))
    close(A.dense(), dense, 1e-12)
    close(A @ v, dense @ v, 1e-12)
    close(A.T @ v, dense.mT @ v, 1e-12)
    close(A.solve(v), torch.linalg.solve(dense, v), 1e-9)
    close(A.inverse().dense(), torch.linalg.inv(dense), 1e-9)
    root = A.power(-0.5).dense()
    close(root @ root, torch.linalg.inv(dense), 1e-6)
    close(A.eigh(3).values, torch.linalg.eigvalsh(dense).flip(0)[:3], 1e-7)
    close(torch.as_tensor(A.to_scipy() @ v.numpy()), dense @ v, 1e-12)
