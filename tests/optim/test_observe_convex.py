"""observe on convex problems: it solves them from any rate, counts what it takes, and leaves the rest alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.curvature import batch_source
from infhess.curvature.batch_curvature import BatchDifference, BatchHessian
from observing import least_squares, train_on
from util import F64


@pytest.mark.parametrize("size", [8, 64, 512])
@pytest.mark.parametrize("lr", [1e-6, 1e2])
def test_it_solves_an_ill_conditioned_regression_whatever_the_rate(size, lr):
    x, y = least_squares()
    w = nn.Parameter(torch.zeros(30, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=lr))

    def loss(batch):
        return (batch[0] @ w - batch[1]).square().mean()

    start = float(y.square().mean())
    train_on(loss, opt, (x, y), size, 600)
    assert float((x @ w.detach() - y).square().mean()) < 1e-3 * start


def test_what_it_counts_is_what_it_takes(monkeypatch):
    taken, points, product, block = [], [], BatchHessian.product, BatchHessian.block

    def counted(self, s):
        taken.append(1)
        points.append(self.points)
        return product(self, s)

    def counted_block(self, S):
        taken.extend([1] * S.shape[1])
        points.extend([self.points] * S.shape[1])
        return block(self, S)

    def counted_gradient(self):
        taken.append(1)
        points.append(len(self.batch[0]))
        return gradient(self)

    def counted_slices(loss, batch, *rest):
        taken.append(1)
        points.append(len(batch[0]))
        return slices(loss, batch, *rest)

    gradient, slices = BatchDifference.gradient, batch_source.slice_gradients
    monkeypatch.setattr(BatchHessian, "product", counted)
    monkeypatch.setattr(BatchHessian, "block", counted_block)
    monkeypatch.setattr(BatchDifference, "gradient", counted_gradient)
    monkeypatch.setattr(batch_source, "slice_gradients", counted_slices)
    x, y = least_squares(500, 10)
    w = nn.Parameter(torch.zeros(10, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0))
    reports = train_on(lambda batch: (batch[0] @ w - batch[1]).square().mean(), opt, (x, y), 32, 100)
    assert sum(r.products for r in reports) == len(taken) > 0
    assert sum(r.product_points for r in reports) == sum(points)
    assert {r.data_points for r in reports} == {0}
    assert any(len(r.values) for r in reports)


def test_observe_leaves_everything_but_itself_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(16, 3)

    def loss(batch):
        return model(batch).square().mean()

    for _ in range(12):
        opt.zero_grad()
        loss(x).backward()
        before = [p.detach().clone() for p in model.parameters()], [p.grad.clone() for p in model.parameters()]
        buffers, random = [b.clone() for b in model.buffers()], torch.get_rng_state()
        opt.observe(loss, x)
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))
        assert all(torch.equal(a, p) and torch.equal(g, p.grad) for a, g, p in zip(*before, model.parameters()))
        opt.step()


def test_observe_needs_a_step_of_its_own():
    w = [nn.Parameter(torch.ones(2))]
    for opt in (
        infhess.Preconditioned(torch.optim.SGD(w, lr=1.0), method="paper"),
        infhess.Preconditioned(torch.optim.SGD(w, lr=1.0), step_length="keep"),
        infhess.Preconditioned(torch.optim.Rprop(w, lr=1.0)),
    ):
        with pytest.raises(ValueError, match="observe"):
            opt.observe(lambda x: (x * w[0]).square().mean(), torch.ones(2))


def test_steps_wear_where_noise_rules_and_not_while_iterates_travel():
    x, y = least_squares(4000, 10)
    w = nn.Parameter(torch.full((10,), 3.0, dtype=F64))

    def loss(batch):
        return (batch[0] @ w - batch[1]).square().mean()

    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0))
    noise = torch.randn(len(y), generator=torch.Generator().manual_seed(5), dtype=F64)
    train_on(loss, opt, (x, y + 5 * noise), 32, 300)
    assert opt._state.noise_dominated > 100
    quiet = nn.Parameter(torch.full((10,), 3.0, dtype=F64))
    far = infhess.Preconditioned(torch.optim.SGD([quiet], lr=1.0))
    scale = torch.logspace(0, -3, 10, dtype=F64)  # slow directions, and no noise
    train_on(lambda batch: (batch[0] * scale @ quiet).square().mean(), far, (x, y), 500, 60)
    assert far._state.noise_dominated < 20
