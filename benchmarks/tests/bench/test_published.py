"""SketchySGD as published."""

from __future__ import annotations

import pytest
import torch

from bench_cases import small
from infhess_bench.bench.published import SketchySgd, inverse, nystrom
from infhess_bench.problems.convex_problems import logistic
from infhess_bench.problems.shuffled import CountedStream, Shuffled

F64 = torch.float64


def sketchy(rank, rho, problem=None):
    problem = problem or small()
    torch.manual_seed(0)
    reading = CountedStream(Shuffled(problem.data, 300, torch.Generator().manual_seed(0)))
    run = SketchySgd(problem, reading, rank, rho)
    run.points = 300  # all of the data in each sketch
    return problem, run


def test_the_sketch_of_full_rank_is_the_matrix():
    g = torch.Generator().manual_seed(0)
    A = torch.randn(8, 8, generator=g, dtype=F64)
    H, Omega = A @ A.mT, torch.linalg.qr(torch.randn(8, 8, generator=g, dtype=F64)).Q
    values, U = nystrom(H @ Omega, Omega)
    torch.testing.assert_close(U * values @ U.mT, H, rtol=1e-8, atol=1e-8)
    low, V = nystrom(H @ Omega[:, :3], Omega[:, :3])
    Y = H @ Omega[:, :3]
    torch.testing.assert_close(V * low @ V.mT, Y @ torch.linalg.inv(Omega[:, :3].mT @ Y) @ Y.mT, rtol=1e-7, atol=1e-7)


def test_its_inverse_and_root_against_dense():
    g = torch.Generator().manual_seed(1)
    U, values = torch.linalg.qr(torch.randn(6, 2, generator=g, dtype=F64)).Q, torch.tensor([5.0, 2.0], dtype=F64)
    M, v = U * values @ U.mT + 0.3 * torch.eye(6, dtype=F64), torch.randn(6, generator=g, dtype=F64)
    torch.testing.assert_close(inverse(values, U, 0.3, v), torch.linalg.solve(M, v))
    root = inverse(values, U, 0.3, inverse(values, U, 0.3, v, -0.5), -0.5)
    torch.testing.assert_close(root, torch.linalg.solve(M, v))


def test_its_first_step_is_the_published_rule():
    problem, run = sketchy(12, 1e-2)
    H = problem.hessian(run.model.weight)
    (g,) = torch.autograd.grad(problem.loss(run.model)(problem.data), [run.model.weight])
    run.step()
    M = torch.linalg.inv(H + 1e-2 * torch.eye(12, dtype=F64))
    top = float(torch.linalg.eigvals(M @ H).real.max())
    assert run.rate == pytest.approx(0.5 / top, rel=0.02)  # ten power iterations
    torch.testing.assert_close(run.model.weight.detach()[0], -run.rate * (M @ g[0]), rtol=1e-5, atol=1e-8)
    assert run.products == (12 + 10)


def test_sketchy_estimates_again_each_epoch_unless_the_loss_is_quadratic():
    for problem, times in ((small(), 1), (small(logistic, l2=1e-2), 3)):
        reading = CountedStream(Shuffled(problem.data, 20, torch.Generator().manual_seed(0)))
        run, estimates = SketchySgd(problem, reading, 4, 0.1), []
        estimate = run.estimate
        run.estimate = lambda estimates=estimates, estimate=estimate: (estimates.append(1), estimate())
        while reading.points < 950:
            run.step()
        assert len(estimates) == times
