"""Copies and checkpoints: a run goes on bit for bit, and what does not fit is named."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

import infhess
from contract import BASES, active, batches, each_base, loss_of, net, same, steps, through_a_file, weights
from observing import curved, drive
from util import randn


@each_base
@pytest.mark.parametrize("blocks", ["whole", "layer"])
def test_a_checkpoint_resumes_bit_for_bit(base, blocks):
    model, opt = active(base, blocks=blocks)
    steps(model, opt, 3)
    saved = through_a_file({"model": model.state_dict(), "opt": opt.state_dict()})
    other = net()
    other.load_state_dict(saved["model"])
    again = infhess.Preconditioned(BASES[base](other.parameters()), rank=3, blocks=blocks)
    again.load_state_dict(state_dict=saved["opt"])
    steps(model, opt, 3, seed=9)
    steps(other, again, 3, seed=9)
    assert same(weights(model), weights(other))
    assert again.param_groups is again.base.param_groups
    assert again.state is again.base.state


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_a_checkpoint_of_a_self_driving_run_resumes_bit_for_bit(base):
    def drive(model, opt, n, seed):
        stream, loss = batches(seed), loss_of(model)
        for _ in range(n):
            batch = next(stream)
            opt.zero_grad()
            loss(batch).backward()
            opt.observe(loss, batch)
            opt.step()

    model = net()
    opt = infhess.Preconditioned(BASES[base](model.parameters()), rank=3)
    drive(model, opt, 30, 1)
    saved = through_a_file({"model": model.state_dict(), "opt": opt.state_dict()})
    other = net()
    other.load_state_dict(saved["model"])
    again = infhess.Preconditioned(BASES[base](other.parameters()), rank=3)
    again.load_state_dict(saved["opt"])
    drive(model, opt, 40, 9)
    drive(other, again, 40, 9)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_loading_ones_own_state_changes_nothing(base):
    _model, opt = active(base)
    before = opt.preconditioner.dense()
    opt.load_state_dict(opt.state_dict())
    assert torch.equal(opt.preconditioner.dense(), before)


def test_hooks_on_checkpoints_see_everything():
    _, opt = active("momentum")
    seen = []
    opt.register_state_dict_post_hook(lambda o, state: seen.append("curvature_basis" in state["state"][0]))
    opt.register_load_state_dict_pre_hook(lambda o, state: seen.append("curvature_basis" in state["state"][0]))
    opt.register_load_state_dict_post_hook(lambda o: seen.append(bool(o._state.active)))
    opt.load_state_dict(opt.state_dict())
    assert seen == [True, True, True]
    reordered = infhess.Preconditioned(BASES["momentum"](list(net().parameters())[::-1]), rank=3)

    def turn(o, state):
        turned = {3 - i: entry for i, entry in state["state"].items()}
        return {**state, "state": turned}

    reordered.register_load_state_dict_pre_hook(turn)
    reordered.load_state_dict(opt.state_dict())
    last, first = reordered.state_dict()["state"][3], opt.state_dict()["state"][0]
    assert torch.equal(last["curvature_basis"], first["curvature_basis"])


def test_groups_without_parameters_and_entries_of_no_parameter_are_kept():
    model = net()
    opt = infhess.Preconditioned(torch.optim.SGD([{"params": []}, {"params": model.parameters()}], lr=0.1), rank=2)
    opt.update(loss_of(model), batches())
    opt.state["note"] = 3
    state = opt.state_dict()
    opt.load_state_dict(state)
    assert opt.state["note"] == 3


def test_a_checkpoint_of_the_bare_base_is_taken_and_nothing_learnt():
    model, opt = active("adam")
    bare = torch.optim.Adam(model.parameters(), lr=0.01)
    steps(model, bare, 2)
    saved = through_a_file(bare.state_dict())
    opt.load_state_dict(copy.deepcopy(saved))
    assert torch.equal(opt.preconditioner.dense(), torch.eye(opt.preconditioner.shape[0]))
    other = copy.deepcopy(model)
    again = torch.optim.Adam(other.parameters(), lr=0.01)
    again.load_state_dict(saved)
    steps(model, opt, 3)
    steps(other, again, 3)
    assert same(weights(model), weights(other))


def test_a_checkpoint_of_another_rank_is_named_and_nothing_changes():
    _model, opt = active(rank=3)
    before = opt.preconditioner.dense()
    with pytest.raises(ValueError, match="rank"):
        opt.load_state_dict(active(rank=5)[1].state_dict())
    assert torch.equal(opt.preconditioner.dense(), before)


@each_base
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_their_own_way(base, how):
    model, opt = active(base)
    duplicate = copy.deepcopy if how == "deepcopy" else lambda pair: pickle.loads(pickle.dumps(pair))
    other, again = duplicate((model, opt))
    assert again.param_groups is again.base.param_groups
    assert again.state is again.base.state
    before = weights(model)
    steps(other, again, 2)
    assert same(before, weights(model))
    steps(model, opt, 2)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("base", ["sgd", "momentum", "adam"])
def test_distributed_checkpoints(base, flat):
    model, opt = active(base)
    steps(model, opt, 2)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    saved = through_a_file(get_optimizer_state_dict(model, opt, options=options))
    other = net()
    other.load_state_dict(model.state_dict())
    again = infhess.Preconditioned(BASES[base](other.parameters()), rank=3)
    if flat:  # names that are not there are not restored
        get_optimizer_state_dict(other, again, options=options)
        with pytest.raises(ValueError, match="allocate"):
            set_optimizer_state_dict(other, again, saved, options=options)
        again.allocate()
    get_optimizer_state_dict(other, again, options=options)
    set_optimizer_state_dict(other, again, saved, options=options)
    steps(model, opt, 2)
    steps(other, again, 2)
    assert same(weights(model), weights(other))


def test_names_of_parameters_are_kept():
    model = net()
    opt = infhess.Preconditioned(torch.optim.SGD(model.named_parameters(), lr=0.1), rank=2)
    opt.update(loss_of(model), batches())
    state = opt.state_dict()
    assert state["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]
    opt.load_state_dict(state)


@pytest.mark.parametrize(
    "make", [lambda p: infhess.Preconditioned(torch.optim.SGD(p), blocks="layer"), infhess.RateFree]
)
def test_a_checkpoint_of_another_version_is_refused_whole(make):
    w = nn.Parameter(randn(6, seed=3))
    opt = make([w])
    drive(opt, curved(w), [randn(6, seed=t) for t in range(5)])
    good, bad = opt.state_dict(), opt.state_dict()
    bad["state"] = {k: dict(v) for k, v in bad["state"].items()}
    (key,) = [k for k in bad["state"][0] if str(k).endswith("numbers")]
    bad["state"][0][key] = torch.cat([bad["state"][0][key], torch.ones(1, dtype=torch.float64)])
    with pytest.raises(ValueError, match="another version"):
        opt.load_state_dict(bad)
    after = opt.state_dict()["state"][0]
    for k, v in good["state"][0].items():
        torch.testing.assert_close(torch.as_tensor(after[k]), torch.as_tensor(v), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("known", [True, False])
def test_checkpoints_of_version_0_1_load(known):
    """They had 28 scalars, and null directions from the start."""
    model, opt = active() if known else (net(), None)
    opt = opt or infhess.Preconditioned(BASES["sgd"](model.parameters()), rank=3)
    saved = copy.deepcopy(opt.state_dict())
    for p, entry in zip(model.parameters(), saved["state"].values()):
        entry["curvature_numbers"] = entry["curvature_numbers"][:28]
        for name, shape in (("basis", (3, *p.shape)), ("gain", (3,)), ("values", (3,))):
            entry.setdefault(f"curvature_{name}", torch.zeros(shape))
        entry |= {f"curvature_{name}": torch.zeros_like(p) for name in ("recent", "lagging")}
    other = net()
    other.load_state_dict(model.state_dict())
    again = infhess.Preconditioned(BASES["sgd"](other.parameters()), rank=3)
    again.load_state_dict(saved)
    assert bool(again._preconditioner_state.blocks) == known
    steps(model, opt, 3)
    steps(other, again, 3)
    assert same(weights(model), weights(other))
