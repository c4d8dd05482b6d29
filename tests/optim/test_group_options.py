"""lr and weight_decay that schedules and factories set without being asked are not silent."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

import infhess
from watch_cases import batch, net, train, weights

FACTOR = "multiplies the learning rate that curvature gives"
DECAY = "turns off RateFree's own decay"


def steps(model, opt, number=3, schedule=None):
    """The texts of the warnings in these steps."""
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for t in range(number):
            train(opt, loss, [batch("mlp", t)], "watch")
            if schedule is not None:
                schedule.step()
    return [str(w.message) for w in seen]


ABSOLUTE = {
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.01, total_steps=100, cycle_momentum=False),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.01, cycle_momentum=False),
}
RELATIVE = {
    "none": lambda o: None,
    "one-cycle to 1": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=100, cycle_momentum=False),
    "cyclic to 1": lambda o: lr_scheduler.CyclicLR(o, 0.2, 1.0, cycle_momentum=False),
    "warm-up": lambda o: lr_scheduler.LambdaLR(o, lambda t: min(1.0, (t + 1) / 1000)),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.001),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 3),
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [1, 2], 0.01),
}


@pytest.mark.parametrize("schedule", list(ABSOLUTE))
def test_a_schedule_that_sets_lr_itself_is_warned_of_once(schedule):
    model = net("mlp")
    opt = infhess.RateFree(model.parameters())
    found = steps(model, opt, 6, ABSOLUTE[schedule](opt))
    assert len([text for text in found if FACTOR in text]) == 1
    assert "max_lr=1" in found[0]
    assert opt.rate.value == pytest.approx(opt.param_groups[0]["lr"] * opt._rate_state.rate)


@pytest.mark.parametrize("schedule", list(RELATIVE))
def test_a_schedule_of_factors_is_not(schedule):
    model = net("mlp")
    opt = infhess.RateFree(model.parameters())
    assert not [text for text in steps(model, opt, 6, RELATIVE[schedule](opt)) if FACTOR in text]


def test_groups_with_the_rates_of_another_optimizer_are_warned_of():
    model = net("mlp")
    opt = infhess.RateFree([{"params": layer.parameters(), "lr": 1e-3} for layer in (model[0], model[2])])
    assert FACTOR in steps(model, opt)[0]
    other = net("mlp")
    shares = infhess.RateFree([{"params": other[0].parameters(), "lr": 0.01}, {"params": other[2].parameters()}])
    assert not steps(other, shares)  # layers may have rates of their own


def test_an_lr_of_the_constructor_is_warned_of_there_alone():
    model = net("mlp")
    with pytest.warns(UserWarning, match=FACTOR):
        opt = infhess.RateFree(model.parameters(), lr=1e-3)
    assert not steps(model, opt)


def test_copies_and_loaded_checkpoints_are_not_warned_of():
    model = net("mlp")
    opt = infhess.RateFree(model.parameters())
    steps(model, opt)
    twin_model, twin = copy.deepcopy((model, opt))
    assert not steps(twin_model, twin)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    assert not steps(model, again)


# ---- weight decay


@pytest.mark.parametrize("scaling", ["kronecker", "diagonal"])
def test_auto_is_the_default_and_none_its_synonym(scaling):
    found = []
    for options in ({}, {"weight_decay": "auto"}, {"weight_decay": None}):
        model = net("mlp")
        opt = infhess.RateFree(model.parameters(), scaling=scaling, **options)
        steps(model, opt, 100)
        found.append(weights(model))
        in_groups = net("mlp")
        opt = infhess.RateFree([{"params": in_groups.parameters(), **options}], scaling=scaling, weight_decay=0.0)
        steps(in_groups, opt, 100)
        if options:
            found.append(weights(in_groups))
    assert all(torch.equal(found[0], w) for w in found)


@pytest.mark.parametrize("wrong", ["none", "0.1", -1.0])
def test_other_words_are_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="weight_decay: expected"):
        infhess.RateFree(net("mlp").parameters(), weight_decay=wrong)


def notes_on_decay(model, groups, **options):
    opt, found = infhess.RateFree(groups, **options), []
    for _ in range(30):
        before = opt.report
        steps(model, opt, 1)
        if opt.report is not before:
            found += [note for note in opt.report.notes if DECAY in note]
    return found


def test_a_group_that_turns_the_decay_off_is_noted_once():
    """As Transformers' Trainer and timm make them: biases without decay, matrices with a number that is 0 by default."""
    model = net("mlp")
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    both = [{"params": matrices, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.0}]
    found = notes_on_decay(model, both)
    assert len(found) == 1
    assert "in 1 of 1 groups" in found[0]
    found = notes_on_decay(model, [{"params": [matrices[0]], "weight_decay": 0}, {"params": [matrices[1], *vectors]}])
    assert "in 1 of 2 groups" in found[0]


def test_what_was_meant_is_not_noted():
    model = net("mlp")
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    assert not notes_on_decay(model, [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}])
    assert not notes_on_decay(model, [{"params": matrices, "weight_decay": "auto"}, {"params": vectors}])
    assert not notes_on_decay(model, model.parameters(), weight_decay=0.0)
    assert not notes_on_decay(model, [{"params": model.parameters(), "weight_decay": 0.0}], scaling="diagonal")


def test_observe_tells_it_too():
    model = nn.Sequential(nn.Linear(6, 3)).double()
    opt = infhess.RateFree([{"params": model.parameters(), "weight_decay": 0.0}], scaling="kronecker")
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    given = []
    for t in range(5):
        opt.zero_grad()
        loss(batch("mlp", t)).backward()
        given.append(opt.observe(loss, batch("mlp", t)))
        opt.step()
    assert sum(DECAY in note for report in given if report for note in report.notes) == 1
