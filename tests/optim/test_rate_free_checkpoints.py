"""RateFree on disk and in copies: the averaged weights swapped in and out, and runs that go on bit for bit."""

import copy
import io
import pickle

import pytest
import torch

import infhess
from rate_free_cases import F64, data, flat, loss_of, small_net, train


def test_averaged_swaps_and_puts_back_bit_for_bit_and_nests():
    model = small_net(dtype=torch.float32)
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 40)
    trained = flat(model).clone()
    with opt.averaged():
        averaged = flat(model).clone()
        with opt.averaged():
            assert torch.equal(flat(model), averaged)
        assert torch.equal(flat(model), averaged)
        with pytest.raises(RuntimeError, match="leave averaged"):
            opt.step()
        with pytest.raises(RuntimeError, match="leave averaged"):
            opt.observe(loss_of(model), data())
    assert torch.equal(flat(model), trained)
    assert not torch.equal(averaged, trained)
    with pytest.raises(ZeroDivisionError), opt.averaged():
        1 / 0  # noqa: B018
    assert torch.equal(flat(model), trained)
    opt.finish()
    assert torch.equal(flat(model), averaged)
    train(model, opt, 1)
    assert torch.allclose(flat(model), averaged, atol=0.1)


def test_weights_loaded_before_the_first_step_are_where_it_starts():
    model, other = small_net(), small_net(seed=5)
    opt = infhess.RateFree(model.parameters())
    model.load_state_dict(other.state_dict())
    train(model, opt, 5)
    train(other, infhess.RateFree(other.parameters()), 5)
    assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_a_checkpoint_goes_on_bit_for_bit(inside, dtype):
    model = small_net(dtype=dtype)
    opt, stream = infhess.RateFree(model.parameters()), torch.Generator().manual_seed(7)
    train(model, opt, 50, stream=stream)
    file = io.BytesIO()
    if inside:
        with opt.averaged():
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
        weights = flat(model).clone()
    else:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    place = stream.get_state()
    train(model, opt, 60, stream=stream)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = small_net(seed=3, dtype=dtype)
    again = infhess.RateFree(other.parameters())
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    if inside:  # the model's file holds the averaged weights, and the optimizer's those that train
        assert not torch.equal(flat(other), weights)
        with again.averaged():
            assert torch.equal(
                flat(other), torch.cat([saved["model"][n].reshape(-1) for n, _ in other.named_parameters()])
            )
        again.resume()
        assert torch.equal(flat(other), weights)
    stream.set_state(place)
    train(other, again, 60, stream=stream)
    assert torch.equal(flat(model), flat(other))
    assert float(opt.rate) == float(again.rate)


def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_changes():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 5)
    before = copy.deepcopy(opt.state_dict())
    adam = torch.optim.Adam(small_net().parameters())
    with pytest.raises(ValueError, match="is it a checkpoint of RateFree"):
        opt.load_state_dict(adam.state_dict())
    wrong = copy.deepcopy(before)
    wrong["state"][0]["z"] = torch.zeros(3)
    with pytest.raises(ValueError, match="shape"):
        opt.load_state_dict(wrong)
    after = opt.state_dict()
    assert all(
        torch.equal(before["state"][i][k], after["state"][i][k]) for i in before["state"] for k in before["state"][i]
    )


def test_copies_and_pickles_go_on_alike():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    twin, pickled = copy.deepcopy((model, opt)), pickle.loads(pickle.dumps((model, opt)))
    for net, other in ((model, opt), twin, pickled):
        train(net, other, 60, seed=9)
    assert torch.equal(flat(model), flat(twin[0]))
    assert torch.equal(flat(model), flat(pickled[0]))


def test_two_from_one_checkpoint_are_independent():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 10)
    other = copy.deepcopy(model)
    again = infhess.RateFree(other.parameters())
    seen = []
    again.register_load_state_dict_post_hook(lambda o: seen.append(float(o.rate)))
    again.load_state_dict(opt.state_dict())
    assert seen == [float(opt.rate)]
    train(other, again, 5)
    assert float(opt.state[model[0].weight]["step"]) == 10


def test_moving_the_model_before_the_first_step_moves_the_state():
    model = small_net(dtype=torch.float32)
    opt = infhess.RateFree(model.parameters())
    model.double()
    train(model, opt, 5)
    assert opt.state[model[0].weight]["z"].dtype == F64


def test_distributed_checkpoints_with_a_frozen_parameter():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def made():
        model = small_net()
        model[0].weight.requires_grad_(False)
        return model, infhess.RateFree(model.parameters())

    (model, opt), (other, again) = made(), made()
    train(model, opt, 10)
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, again, get_optimizer_state_dict(model, opt))
    for net, optimizer in ((model, opt), (other, again)):
        train(net, optimizer, 10, seed=4)
    assert torch.equal(flat(model), flat(other))


def test_eval_and_train_swap_the_weights_as_schedulefree_does():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 30)
    trained = flat(model).clone()
    with opt.averaged():
        averaged = flat(model).clone()
    opt.train()  # nothing to do, and no harm
    assert torch.equal(flat(model), trained)
    opt.eval()
    opt.eval()
    assert torch.equal(flat(model), averaged)
    with opt.averaged():
        assert torch.equal(flat(model), averaged)
    assert torch.equal(flat(model), averaged)
    with pytest.raises(RuntimeError, match=r"call train\(\) first"):
        opt.step()
    opt.train()
    assert torch.equal(flat(model), trained)


def test_a_checkpoint_of_eval_trains_on_bit_for_bit():
    model = small_net()
    opt, stream = infhess.RateFree(model.parameters()), torch.Generator().manual_seed(7)
    train(model, opt, 40, stream=stream)
    opt.eval()
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    opt.train()
    place = stream.get_state()
    train(model, opt, 20, stream=stream)
    other = small_net(seed=3)
    again = infhess.RateFree(other.parameters())
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    again.train()
    stream.set_state(place)
    train(other, again, 20, stream=stream)
    assert torch.equal(flat(model), flat(other))
    weights = flat(other).clone()
    again.train()  # what is loaded once is not put back twice
    assert torch.equal(flat(other), weights)


@pytest.mark.parametrize("way", ["watch", "closure", "eval and train"])
def test_the_first_pass_after_such_a_checkpoint_is_at_the_weights_that_train(way):
    """Also where nobody calls train(), or an evaluation comes first."""
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 10)
    trained = flat(model).clone()
    opt.eval()
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    model.load_state_dict(saved[0])
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(saved[1])
    assert not torch.equal(flat(model), trained)
    seen = []
    if way == "watch":
        with again.watch():
            seen.append(flat(model).clone())
    elif way == "closure":
        again.step(lambda: seen.append(flat(model).clone()))
    else:
        again.eval()
        again.train()
        seen.append(flat(model))
    assert torch.equal(seen[0], trained)
