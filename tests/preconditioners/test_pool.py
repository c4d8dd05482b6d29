"""The sources that estimates come from: pools of batches, blocks and roots, against dense matrices."""

from __future__ import annotations

import torch
from torch import nn

import infhess
from infhess.preconditioners.pool import Blockwise, Pool, ScaledSource
from observing import least_squares
from util import F64, close, randn, spd


def linear_loss(x, y):
    w = nn.Parameter(randn(x.shape[1], seed=3))
    return w, lambda batch: (batch[0] @ w - batch[1]).square().mean() / 2


def test_a_pool_is_the_mean_curvature_of_its_batches():
    x, y = least_squares(60, 6)
    w, loss = linear_loss(x, y)
    source = infhess.Hessian(loss, [w], [(x, y)])
    pool = Pool(source, [(x[:20], y[:20]), (x[20:], y[20:])], slices=5)
    B = x.mT @ x / 60
    s = randn(6, seed=4)
    close(pool.matvec(s), B @ s, 1e-10)
    slices = torch.stack([pool.gradient() for _ in range(5)])
    close(slices.mean(0), x.mT @ (x @ w.detach() - y) / 60, 1e-10)
    assert source.products == 2


def test_error_bars_of_a_pool_are_the_spread_over_its_batches():
    x, y = least_squares(800, 4, power=0.3)
    w, loss = linear_loss(x, y)
    source = infhess.Hessian(loss, [w], [(x, y)])
    batches = [(a, b) for a, b in zip(x.split(100), y.split(100))]
    pool = Pool(source, batches, slices=4)
    S = torch.linalg.qr(randn(4, 4, seed=5)).Q
    for s in S.mT:
        pool.matvec(s)
    u = torch.linalg.qr(randn(4, 2, seed=6)).Q
    each = torch.stack([((a @ u) ** 2).mean(0) for a, _ in batches])
    close(pool.spread(S, u), each.std(0) / 8**0.5, 1e-8)


def test_blockwise_products_leave_the_other_blocks_out():
    A = spd(7)
    w = nn.Parameter(randn(7))
    source = infhess.Hessian(lambda batch: 0.5 * w @ A @ w * batch.mean(), [w], [torch.ones(2, dtype=F64)])
    blocks = Blockwise(source, [3, 4])
    s = randn(7, seed=2)
    close(blocks.matvec(s), torch.block_diag(A[:3, :3], A[3:, 3:]) @ s, 1e-10)
    assert source.products == 2
    root = randn(7, seed=1).abs()
    close(ScaledSource(blocks, root).matvec(s), root * (torch.block_diag(A[:3, :3], A[3:, 3:]) @ (root * s)), 1e-10)


def test_a_pool_of_one_batch_is_sliced_and_has_no_error_bars():
    x, y = least_squares(60, 6)
    w, loss = linear_loss(x, y)
    pool = Pool(infhess.Hessian(loss, [w], [(x, y)]), [(x, y)], slices=3)
    s = torch.nn.functional.normalize(randn(6, seed=4), dim=0)
    close(pool.matvec(s), x.mT @ (x @ s) / 60, 1e-10)
    close(pool.gradient(), x[:20].mT @ (x[:20] @ w.detach() - y[:20]) / 20, 1e-10)
    assert bool(pool.spread(s[:, None], s[:, None]).isnan().all())
