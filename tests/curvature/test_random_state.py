"""Random numbers of every device: seeded, repeated and put back. A made-up device stands for those that are not here."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import infhess
from infhess.curvature.no_side_effects import no_side_effects, repeated
from infhess.curvature.random_state import RandomState

HERE = torch.device("privateuseone:1")  # torch's name for devices that come from outside


class Module:
    """What torch.cuda is for CUDA, with a generator for each of two devices. They live on the CPU."""

    def __init__(self):
        self.generators, self.present = [torch.Generator(), torch.Generator()], 0

    @contextmanager
    def device(self, device):
        before, self.present = self.present, torch.device(device).index
        yield
        self.present = before

    def manual_seed(self, seed):
        self.generators[self.present].manual_seed(seed)

    def get_rng_state(self, device):
        return self.generators[torch.device(device).index].get_state()

    def set_rng_state(self, state, device):
        self.generators[torch.device(device).index].set_state(state)

    def rand(self, *shape):
        return torch.rand(*shape, generator=self.generators[HERE.index], dtype=torch.float64)


class Parameter(nn.Parameter):
    """A parameter that says it is elsewhere to whoever looks for its generator."""

    @property
    def device(self):
        return HERE


@pytest.fixture
def device(monkeypatch):
    module = Module()
    monkeypatch.setattr(torch, HERE.type, module, raising=False)
    return module


def test_random_numbers_of_a_device_come_from_the_seed_and_are_put_back(device):
    p, draws = SimpleNamespace(device=HERE, is_cuda=False, _backward_hooks=None), []
    before = RandomState([p])
    for seed in (3, 3, 4):
        with no_side_effects([p], seed) as trace:
            draws.append(device.rand(5))
        assert trace.random
        assert before.same(RandomState([p]))
    with no_side_effects([p], 3) as trace:
        pass
    assert not trace.random
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_random_numbers_of_a_device_are_repeated(device):
    p = SimpleNamespace(device=HERE)
    state = RandomState([p])
    first, on_cpu = device.rand(5), torch.rand(5)
    after = RandomState([p])
    with repeated(state, [p]):
        assert torch.equal(device.rand(5), first)
        assert torch.equal(torch.rand(5), on_cpu)
    assert after.same(RandomState([p]))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_without_generators_of_its_own_a_device_has_the_state_of_the_cpu(place):
    state = RandomState([torch.ones(2, device=place)])
    first = torch.rand(3)
    assert not state.same(RandomState(()))
    state.restore()
    assert torch.equal(torch.rand(3), first)


def test_a_device_without_present_ones_is_seeded_as_it_is(device, monkeypatch):
    monkeypatch.setattr(Module, "device", None)  # as torch.mps, which has one device
    device.present = HERE.index
    RandomState([SimpleNamespace(device=HERE)]).seed(5)
    assert torch.equal(device.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5), dtype=torch.float64))


def test_the_second_run_of_a_closure_has_the_dropout_masks_of_the_first(device):
    """With other masks, a difference of gradients over so short a distance would be noise, and the rate would collapse."""
    masks = []

    def rate(dropout):
        w = Parameter(torch.linspace(1, 2, 50, dtype=torch.float64))
        opt = infhess.RateFree([w], scaling="diagonal", points=32)
        opt._rate_state.differences = 1.0

        def closure():
            opt.zero_grad()
            mask = (device.rand(50) < 0.5) if dropout else 1.0
            masks.append(mask)
            loss = (mask * w.square()).sum()
            loss.backward()
            return loss

        for _ in range(3):
            opt.step(closure)
        return opt.rate.value

    assert rate(True) == pytest.approx(rate(False), rel=0.5)
    pairs = list(zip(masks[0:6:2], masks[1:6:2]))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(masks[0], masks[2])
