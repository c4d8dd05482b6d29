"""Gradients of slices in one pass, against a loop written from the definition."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from infhess.curvature.batch_source import Hessian


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
