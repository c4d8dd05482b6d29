"""The step of RateFree: where noise dominates, ⟨g, z − x⟩ says so and the learning rate falls."""

import pytest
import torch
from torch import nn

import infhess
from infhess.optim.rate.live import live
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import KRONECKER
from infhess.optim.stepping import lead
from rate_free_cases import F64, small_net, train
from util import randn


def trained(noise, steps=600, goal=1.0):
    """A quadratic of condition 100 with so much noise in each gradient."""
    w = nn.Parameter(randn(8, 4, seed=1))
    curvature, opt = torch.logspace(0, 2, 8, dtype=F64)[:, None], infhess.RateFree([w])
    g = torch.Generator().manual_seed(3)
    for _ in range(steps):
        shift = noise * torch.randn(8, 4, dtype=F64, generator=g)
        loss = lambda batch, shift=shift: (curvature * (w - goal).square() / 2 + shift * w).sum() + 0 * batch.sum()  # noqa: E731
        opt.zero_grad()
        loss(torch.zeros(1)).backward()
        opt.observe(loss, torch.zeros(1), points=32)
        opt.step()
    return opt._rate_state


def test_the_lead_is_the_gradient_along_the_way_from_the_average_to_the_newest_iterate():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 30)
    (part,) = [live(group) for group in opt.param_groups]
    owns = [opt.state[p] for p in part.params]
    expected = sum(float((p.grad * (own["z"] - own["averaged"])).sum()) for p, own in zip(part.params, owns))
    assert lead(part._replace(owns=owns)) == pytest.approx(expected, rel=1e-12)
    assert expected != 0


def test_noise_is_counted_and_a_clean_descent_is_not():
    assert trained(noise=3.0).noisy > 0.5 * trained(noise=3.0).steps
    assert trained(noise=0.0, steps=60, goal=1e4).noisy == 0  # far away, so that it is still on its way


def test_noisy_steps_lower_what_is_allowed_for():
    class State(RateState):
        rule = KRONECKER

    calm, noisy = State(log_rate=0.0), State(log_rate=0.0, noisy=3 * KRONECKER.noisy_steps)
    assert noisy.allowed == pytest.approx(calm.allowed / 2)
    assert RateState(log_rate=0.0, noisy=1e6).allowed == RateState(log_rate=0.0).allowed  # the diagonal scaling


@pytest.mark.parametrize(("leads", "noisy"), [((1.0, 1.0), 16.0), ((-1.0, 0.5), 0.0), ((-1.0, 8.0), 8.0)])
def test_the_mean_of_the_lead_decides(leads, noisy):
    class State(RateState):
        rule = KRONECKER

    state = State(steps=104.0)
    assert state.weighs_noise
    for seen in leads:
        state.weigh_noise(seen)
    assert state.noisy == noisy
    assert not State(steps=103.0).weighs_noise
    assert not State(steps=40.0).weighs_noise
    assert not RateState(steps=104.0).weighs_noise
