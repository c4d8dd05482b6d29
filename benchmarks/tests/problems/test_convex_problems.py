"""Convex problems with their Hessians and exact solutions, and what the real files hold."""

from __future__ import annotations

import pytest
import torch

from bench_cases import needs_data, small
from infhess_bench.problems.convex_problems import breast_cancer, huber, poisson, softmax
from infhess_bench.problems.convex_problems import logistic as logistic_loss

CASES = [
    small(),
    small(poisson, l2=1e-3),
    small(huber, l2=1e-3),
    small(logistic_loss, l2=1e-3),
    small(softmax, 4, l2=1e-3),
    breast_cancer(),
]


@pytest.mark.parametrize("problem", CASES)
def test_the_hessian_is_that_of_the_loss(problem):
    W = 0.1 * torch.randn(problem.model().weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def objective(w):
        model = problem.model()
        return torch.func.functional_call(model, {"weight": w.view_as(W)}, problem.data[0])

    def loss(w):
        return problem.loss_of(objective(w), problem.data[1]) + problem.l2 / 2 * w.square().sum()

    dense = torch.autograd.functional.hessian(loss, W.reshape(-1))
    torch.testing.assert_close(problem.hessian(W), dense, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("problem", CASES)
def test_the_exact_solution_has_no_gradient(problem):
    model = problem.solved()
    (g,) = torch.autograd.grad(problem.loss(model)(problem.data), [model.weight])
    assert float(g.abs().max()) < 1e-9
    assert problem.value(model) < problem.value(problem.model())


@needs_data
def test_no_row_of_the_sarcos_test_file_is_trained_on():
    from infhess_bench.data import sarcos
    from infhess_bench.problems.convex_problems import convex_problem

    problem = convex_problem("sarcos-nat/held-out")
    train, test = (data[0][:, 1:22] for data in (problem.data, problem.test))
    assert (len(train), len(test)) == (40035, 4449)
    everything, tested = sarcos()[0], sarcos("test")[0]
    mean, std = everything.mean(0), everything.std(0, correction=0)
    torch.testing.assert_close(test, (tested - mean) / std, rtol=1e-4, atol=1e-4)
    assert float(torch.cdist(train[:4000], test[:400]).min()) > 0


@needs_data
def test_the_mapped_features_have_the_spectrum_that_is_documented():
    from infhess_bench.problems.convex_problems import sarcos_mapped

    x, _ = sarcos_mapped().data
    values = torch.linalg.eigvalsh(x.mT @ x / len(x)).flip(0)
    assert x.shape == (44484, 253)
    torch.testing.assert_close(values[:12], torch.logspace(3, 0.5, 12, dtype=x.dtype), rtol=1e-6, atol=0)
    assert float(values[0] / values[-1]) == pytest.approx(1e5, rel=1e-4)
