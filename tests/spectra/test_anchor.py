"""The change of a matrix along vectors: identities against dense matrices, and what is doubted."""

from __future__ import annotations

import pytest
import torch

from infhess.spectra.anchor import Anchor, Kept, keep, kept_products, with_noise
from infhess.spectra.ritz import ritz
from infhess.spectra.rounds import Plan, Task, explore
from moving import Moving
from util import F64, close, randn


def anchored(problem, k=1, points=128):
    source = problem.source()
    plan = Plan(k, None, 0, (points, 2), (2 * k + 6, 4 * k + 16))
    (krylov,) = explore([Task(source, plan, randn(20, seed=9))])
    return Anchor(source, krylov, ritz(krylov), k)


def dense(problem, x):
    p = torch.sigmoid(x @ problem.w.detach())
    return (x.mT * (p * (1 - p))) @ x / len(x)


def kept_matrix(problem, anchor):
    """The exact matrix of the kept data."""
    return sum(
        share * dense(problem, torch.cat([piece.batch[0] for piece in chunk]))
        for share, chunk in zip(anchor.kept.shares.tolist(), anchor.kept.chunks)
    )


def test_without_a_change_the_pairs_are_those_of_the_anchor():
    anchor = anchored(Moving(), 2)
    moved = anchor.moved()
    assert moved.doubt is None
    close(moved.errors.values, anchor.errors.values, 1e-12)
    close(moved.errors.se, anchor.errors.se, 1e-12)
    close(moved.vectors.abs(), anchor.U[:, :2].abs(), 1e-9)


def test_values_move_as_those_of_the_matrix_plus_the_change_on_the_kept_data():
    problem = Moving()
    anchor = anchored(problem, 2)
    before = kept_matrix(problem, anchor)
    problem.drift(0.05)
    change = kept_matrix(problem, anchor) - before
    U, m = anchor.U, anchor.m
    expected = torch.linalg.eigvalsh(torch.diag(anchor.errors.values[:m]) + U.mT @ change @ U).flip(0)
    moved = anchor.moved()
    close(moved.errors.values[:2], expected[:2], 1e-9)
    assert bool((moved.errors.se[:2] > anchor.errors.se[:2]).all())
    v = moved.vectors
    close(v.mT @ v, torch.eye(2, dtype=F64), 1e-9)
    outside = change @ v - U @ (U.mT @ change @ v)
    assert bool((moved.errors.truncation[:2] >= anchor.errors.truncation[:2] - 1e-12).all())
    assert float(outside.norm()) > 0


def test_products_with_kept_data_are_those_of_its_chunks():
    problem = Moving()
    source, U = problem.source(), randn(20, 3)
    kept = keep(source, 128)
    Y = kept_products(source, kept, U)
    assert Y.shape == (4, 3, 20)
    for c, chunk in enumerate(kept.chunks):
        x = torch.cat([piece.batch[0] for piece in chunk])
        close(Y[c], (dense(problem, x) @ U).mT, 1e-9)
    assert sum(p.points for chunk in kept.chunks for p in chunk) == 128
    assert float(kept.shares.sum()) == pytest.approx(1.0)


def test_the_variance_of_the_change_is_added():
    found = anchored(Moving()).errors
    x = torch.randn(4, len(found.values), generator=torch.Generator().manual_seed(0), dtype=F64)
    kept = Kept([[]] * 4, torch.full((4,), 0.25, dtype=F64), 0.9)
    more = with_noise(found, x, kept)
    variance = 0.9 * x.var(0) / 4
    close(more.se.square(), found.se.square() + variance, 1e-12)
    dof = more.se.pow(4) / (found.se.pow(4) / found.dof + variance.square() / 3)
    close(more.dof, dof.clamp(min=2.0), 1e-12)
    assert with_noise(found, x, kept._replace(population_factor=0.0)) is found


@pytest.mark.parametrize(
    "move",
    [
        lambda p: p.w.data.mul_(30.0),
        lambda p: p.w.data.copy_(4 * randn(20, seed=8)),
        lambda p: p.w.data.mul_(1e6),
    ],
)
def test_what_moved_far_is_doubted(move):
    problem = Moving()
    anchor = anchored(problem)
    move(problem)
    assert anchor.moved().doubt is not None
