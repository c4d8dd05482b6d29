"""Sequences: below 32 points the learning rate follows the number of tokens, in every kind of loop."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import infhess


class Next(nn.Module):
    """Predicts the next of five letters from the present one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.letters, self.out = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.out(self.letters(x))


def text(sequences, length):
    return torch.randint(5, (sequences, length + 1), generator=torch.Generator().manual_seed(1))


def trained(way, sequences=2, length=24, steps=6, frozen=False, **options):
    model = Next()
    model.letters.requires_grad_(not frozen)
    opt = infhess.RateFree(model.parameters())
    batch = {"text": text(sequences, length)}

    def loss(b):
        return cross_entropy(model(b["text"][:, :-1]).flatten(0, 1), b["text"][:, 1:].flatten())

    def closure():
        opt.zero_grad()
        value = loss(batch)
        value.backward()
        return value

    for _ in range(steps):
        if way == "closure":
            opt.step(closure)
            continue
        with opt.watch(**options) if way == "watch" else torch.enable_grad():
            closure()
        if way == "observe":
            opt.observe(loss, batch, **options)
        opt.step()
    return opt


@pytest.mark.parametrize("way", ["observe", "watch", "closure"])
def test_two_long_sequences_are_no_small_batch(way):
    state = trained(way)._rate_state
    assert state.points == 2
    assert state.tokens >= 48
    same = trained(way, sequences=48, length=1)._rate_state
    assert state.rule.sigma == pytest.approx(state.allowed / torch.tensor(state.log_rate, dtype=torch.float64).exp())
    assert same.rule.sigma == pytest.approx(same.allowed / torch.tensor(same.log_rate, dtype=torch.float64).exp())


@pytest.mark.parametrize("way", ["observe", "watch"])
def test_points_that_are_given_are_taken_as_they_are(way):
    state = trained(way, points=2)._rate_state
    assert (state.points, state.tokens) == (2, 2)


def test_products_count_data_points_not_tokens():
    opt = trained("observe", steps=2)
    assert opt.report.product_points == 2
    assert trained("closure", steps=2).report.product_points == 2


class Positions(nn.Module):
    """A table of biases by position, as of windows in vision transformers: its indices are no tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(16)), nn.Linear(4, 3)
        self.places = torch.arange(16).view(4, 4)

    def forward(self, x):
        return self.out(x.flatten(1) @ self.table[self.places])


@pytest.mark.parametrize("way", ["observe", "watch"])
@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Positions])
def test_images_and_labels_have_no_tokens(make, way):
    model = make()
    opt = infhess.RateFree(model.parameters())
    batch = torch.randn(2, 1, 2, 2), torch.tensor([0, 2])
    for _ in range(3):
        opt.zero_grad()
        with opt.watch() if way == "watch" else torch.enable_grad():
            cross_entropy(model(batch[0]), batch[1]).backward()
        if way == "observe":
            opt.observe(lambda b: cross_entropy(model(b[0]), b[1]), batch)
        opt.step()
    assert (opt._rate_state.points, opt._rate_state.tokens) == (2, 2)


def test_frozen_embeddings_show_tokens_too():
    found = trained("watch", frozen=True)._rate_state
    assert (found.points, found.tokens) == (2, 48)
