"""Gradients of slices in one pass, against a loop written from the definition; and the rate that holds where a step leads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from infhess.curvature.batch_source import Hessian
from infhess.optim.scaling import identity
from infhess.optim.step_length import that_holds


def loop(loss, batch, pieces, params):
    """Slice by slice, each its own backward pass."""
    size = len(batch[0]) // pieces
    columns = []
    for i in range(pieces):
        part = tuple(t[i * size : (i + 1) * size] for t in batch)
        columns.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(part), params)]))
    return torch.stack(columns, 1)


def model_and_loss(hidden=5, item=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.LayerNorm(hidden), nn.Linear(hidden, 2)).double()

    def loss(batch):
        value = (model(batch[0]) - batch[1]).square().mean()
        return value * float(value.detach() > -1) if item else value

    return model, loss


@settings(max_examples=20, deadline=None)
@given(points=st.integers(1, 40), pieces=st.integers(1, 40), hidden=st.integers(1, 6), item=st.booleans())
def test_slice_gradients_are_those_of_a_loop(points, pieces, hidden, item):
    pieces = min(points, pieces)
    model, loss = model_and_loss(hidden, item)  # with `item` the loss cannot be mapped, and the loop takes over
    batch = torch.randn(points, 3).double(), torch.randn(points, 2).double()
    params = list(model.parameters())
    source = Hessian(loss, params, [batch])
    found = source.slice_gradients(batch, pieces)
    torch.testing.assert_close(found, loop(loss, batch, pieces, params))
    assert source.products == 1
    assert source.product_points == points


def test_what_a_loss_may_hold_is_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    batch = {"x": torch.randn(12, 4), "names": list("abcdefghijkl")}
    state = torch.get_rng_state()
    found = Hessian(lambda b: model(b["x"]).square().mean(), model.parameters(), [batch]).slice_gradients(batch, 3)
    assert found.shape == (sum(p.numel() for p in model.parameters()), 3)
    assert torch.isfinite(found).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_frozen_and_unused_parameters_have_zero_slices():
    w, frozen, unused = (torch.ones(2, requires_grad=r) for r in (True, False, True))
    batch = (torch.randn(6, 2),)
    found = Hessian(lambda b: (b[0] @ w).square().mean(), [w, frozen, unused], [batch]).slice_gradients(batch, 3)
    assert found[:2].any()
    assert not found[2:].any()


@pytest.mark.parametrize("curving", [False, True])
def test_a_rate_holds_on_a_quadratic_and_is_cut_where_curvature_explodes(curving):
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.5]], dtype=torch.float64)

    def loss(batch):
        z = batch[0] @ w
        return (z.exp() - 40 * z).mean() if curving else (z - 40).square().mean() / 2

    source = Hessian(loss, [w], [(x,)])
    local = source.local((x,))
    H = torch.stack([local.product(e) for e in torch.eye(3).double()])
    rate = 1 / float(torch.linalg.eigvalsh(H)[-1])
    found = that_holds(source, (x,), local, identity([3], source.like), rate)
    if not curving:
        assert found == rate
        return
    end = torch.zeros(3).double() - found * local.gradient()
    mean = torch.zeros(3, 3).double()
    for share in torch.linspace(0, 1, 1001):
        p = (x @ (share * end)).exp()
        mean += (x.mT * p / len(x)) @ x / 1001
    change = mean @ end
    assert found < rate / 2
    assert float(change.norm() / end.norm()) * found <= 1.42
    assert not w.detach().any()
