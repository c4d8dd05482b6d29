"""Nothing that fails to train is silent: ten steps in a row without an effect give one warning, with the cause."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infhess
from infhess.optim.effect import CLEARED, EARLY, IN_A_ROW, NONE, UNREACHED, UNSEEN, ZERO
from watch_cases import F64, WAYS, batch, net, weights

OPTIMIZERS = {
    "rotated": infhess.RateFree,
    "diagonal": lambda p: infhess.RateFree(p, scaling="diagonal"),
    "sgd": lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=0.1), blocks="layer"),
    "adam": lambda p: infhess.Preconditioned(torch.optim.Adam(p, lr=1e-3), blocks="layer"),
}
every_optimizer = pytest.mark.parametrize("name", list(OPTIMIZERS))
every_way = pytest.mark.parametrize("way", WAYS)


def made(name, model=None):
    model = model or net("mlp")
    return model, OPTIMIZERS[name](model.parameters())


def loss_of(model, factor=1.0):
    return lambda b: factor * F.cross_entropy(model(b[0]), b[1])


def steps(opt, loss, way, number=IN_A_ROW, *, backward=True, between=lambda: None, first=0):
    """Steps of a loop; `between` is called between backward and step."""
    for t in range(first, first + number):
        b = batch("mlp", t)

        def passed(b=b):
            opt.zero_grad()
            value = loss(b)
            if backward:
                value.backward()
            return value

        if way == "closure":
            opt.step(lambda f=passed: (f(), between())[0])
            continue
        if way == "watch":
            with opt.watch():
                passed()
        else:
            passed()
            opt.observe(loss, b)
        between()
        opt.step()


def told(run):
    """The texts of the warnings of a run."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in seen]


def one(run, cause):
    """A run gives one warning, with this cause."""
    found = told(run)
    assert len(found) == 1, found
    assert f"{IN_A_ROW} steps in a row" in found[0]
    assert cause in found[0]


@every_optimizer
@pytest.mark.parametrize("way", ["watch", "closure"])
@pytest.mark.parametrize("start", [0, 20])
def test_data_that_is_nan(name, way, start):
    model, opt = made(name)
    assert not told(lambda: steps(opt, loss_of(model), way, start))
    nan = lambda b: model(b[0] * torch.nan).sum()  # noqa: E731
    assert not told(lambda: steps(opt, nan, way, IN_A_ROW - 1))
    before = weights(model)
    one(lambda: steps(opt, nan, way, 40), "the gradient holds NaN or infinity, first in parameter 0, (16, 6)")
    assert torch.equal(weights(model), before)


@every_optimizer
def test_the_first_bad_parameter_has_its_name(name):
    model = net("mlp")
    opt = OPTIMIZERS[name](model.named_parameters())

    def spoilt(b):
        return F.cross_entropy(model(b[0]), b[1]) + (model[2].bias.sum() * torch.nan)

    one(lambda: steps(opt, spoilt, "watch", 12), "first in 2.bias;")


@every_optimizer
def test_skipped_without_a_step_counts_too(name):
    """A loop that leaves out the step itself, as a GradScaler does."""
    model, opt = made(name)

    def run():
        for t in range(14):
            opt.zero_grad()
            with opt.watch():
                model(batch("mlp", t)[0] * torch.nan).sum().backward()

    one(run, "the gradient holds NaN or infinity")


@every_optimizer
@every_way
def test_parameters_of_another_model(name, way):
    other = net("mlp")
    model, opt = made(name)
    loss = loss_of(other) if way != "observe" else lambda b: loss_of(other)(b) + 0 * loss_of(model)(b)
    if way == "observe":  # gradients that stay with a copy of the model
        one(lambda: steps(opt, loss, way, 40, between=lambda: opt.zero_grad()), CLEARED)
    else:
        one(lambda: steps(opt, loss, way, 40), UNREACHED)


@every_optimizer
@every_way
def test_gradients_cleared_before_the_step(name, way):
    model, opt = made(name)
    one(lambda: steps(opt, loss_of(model), way, 40, between=model.zero_grad), CLEARED if way != "observe" else NONE)
    model, opt = made(name)
    one(lambda: steps(opt, loss_of(model), way, 40, between=opt.zero_grad), CLEARED)


@every_optimizer
@pytest.mark.parametrize("way", ["watch", "closure"])
def test_no_backward(name, way):
    model, opt = made(name)
    one(lambda: steps(opt, loss_of(model), way, 40, backward=False), NONE)


@every_optimizer
def test_no_backward_in_a_bare_loop(name):
    """As before the first `update`: the wrapper is its base, and the base does nothing either."""
    _, opt = made(name)

    def run():
        for _ in range(30):
            opt.zero_grad()
            opt.step()

    one(run, NONE)


@every_optimizer
def test_a_layer_that_was_replaced(name):
    """The last layer, where it is all that trains."""
    model = net("mlp")
    model[0].requires_grad_(False)
    opt = OPTIMIZERS[name](model[2].parameters())
    model[2] = nn.Linear(16, 3).to(F64)
    one(lambda: steps(opt, loss_of(model), "watch", 30), UNREACHED)


@every_optimizer
def test_a_layer_that_was_replaced_among_others(name):
    """The others train, so it is a note; what another optimizer trains is none, and no layer that is left out."""
    note = "was a layer replaced"
    model, opt = made(name)
    steps(opt, loss_of(model), "watch", 2)
    assert not any(note in text for text in opt.report.notes)
    model[2] = nn.Linear(16, 3).to(F64)
    notes = []
    for t in range(100):
        steps(opt, loss_of(model), "watch", 1, first=2 + t)
        notes.append(opt.report)
    assert sum(any(note in text for text in r.notes) for r in {id(r): r for r in notes}.values()) == 1

    whole = net("mlp")
    part = OPTIMIZERS[name](whole[0].parameters())
    steps(part, loss_of(whole), "watch", 20)
    assert not any(note in text for text in part.report.notes)
    more = OPTIMIZERS[name]([*whole.parameters(), nn.Parameter(torch.ones(2, dtype=F64))])
    steps(more, loss_of(whole), "watch", 20)
    assert not any(note in text for text in more.report.notes)


@every_optimizer
@every_way
def test_exact_zeros_are_said_once_and_few_are_not(name, way):
    model, opt = made(name)
    for _ in range(3):
        assert not told(lambda: steps(opt, loss_of(model), way, 5))
        assert not told(lambda: steps(opt, loss_of(model, 0.0), way, IN_A_ROW - 1))
    steps(opt, loss_of(model), way, 5)
    one(lambda: steps(opt, loss_of(model, 0.0), way, 30), ZERO)
    steps(opt, loss_of(model), way, 5)
    assert not told(lambda: steps(opt, loss_of(model, 0.0), way, 30))


@every_optimizer
@every_way
def test_where_nothing_is_wrong_nothing_is_said(name, way):
    model, opt = made(name)
    assert not told(lambda: steps(opt, loss_of(model), way, 200))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_after_an_update_a_loop_without_passes_is_right(name):
    model, opt = made(name)
    opt.update(loss_of(model), [batch("mlp", t) for t in range(8)])

    def run():
        for t in range(UNSEEN + 20):
            opt.zero_grad()
            loss_of(model)(batch("mlp", t)).backward()
            opt.step()

    assert not told(run)

    def nans():
        for t in range(30):
            opt.zero_grad()
            model(batch("mlp", t)[0] * torch.nan).sum().backward()
            opt.step()

    one(nans, "the gradient holds NaN or infinity")


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_watch_that_ends_before_backward(name):
    model, opt = made(name)

    def run():
        for t in range(40):
            opt.zero_grad()
            with opt.watch():
                value = loss_of(model)(batch("mlp", t))
            value.backward()
            opt.step()

    one(run, EARLY)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_passes_that_are_seen_at_first_only(name):
    model, opt = made(name)
    steps(opt, loss_of(model), "watch", 5)

    def run():
        for t in range(3 * UNSEEN):
            opt.zero_grad()
            loss_of(model)(batch("mlp", t)).backward()
            opt.step()

    found = told(run)
    assert len(found) == 1
    assert f"no training pass was seen for {UNSEEN} steps" in found[0]


@every_optimizer
def test_copies_and_checkpoints_go_on(name):
    model, opt = made(name)
    steps(opt, loss_of(model), "watch", 5)
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        one(lambda o=other: [(o.zero_grad(), o.step()) for _ in range(20)], NONE)
    again = made(name)[1]
    again.load_state_dict(opt.state_dict())
    one(lambda: [(again.zero_grad(), again.step()) for _ in range(20)], NONE)
