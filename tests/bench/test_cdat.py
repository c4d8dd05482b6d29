"""CDAT as published."""

from __future__ import annotations

import torch
from torch import nn

from infhess.bench.cdat import Cdat
from infhess.problems.net_problems import NetProblem
from infhess.problems.shuffled import CountedStream, Shuffled


def test_cdat_is_the_published_rule():
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([[1.0], [2.0], [3.0]])
    problem = NetProblem(
        lambda: nn.Linear(3, 1, bias=False), lambda: ((x, y), (x, y)), nn.functional.mse_loss, batch=30
    )
    torch.manual_seed(1)
    run = Cdat(problem, CountedStream(Shuffled(problem.data, 30, torch.Generator().manual_seed(0))))
    w, H = run.model.weight.detach().clone()[0], 2 * x.mT @ x / 30
    m = v = torch.zeros(3)
    above = below = 0.0
    for t in range(1, 4):
        g = H @ w - 2 * x.mT @ y[:, 0] / 30
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        u = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        above, below = 0.9 * above + 0.1 * max(float(g @ u), 0), 0.9 * below + 0.1 * abs(float(u @ H @ u))
        w = w - 2 * above / below * u
        run.step()
        torch.testing.assert_close(run.model.weight.detach()[0], w, rtol=1e-4, atol=1e-4)
    assert run.products == 3
