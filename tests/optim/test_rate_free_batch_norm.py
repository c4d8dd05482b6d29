"""RateFree and BatchNorm: statistics for the averaged weights."""

import copy

import pytest
import torch
from torch import nn

import infhess
from infhess.optim.averaging.batch_norm import kept
from rate_free_cases import batch_norm, data, loss_of, train


def test_batch_norm_is_refreshed_for_the_averaged_weights():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 120)
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    model.eval()
    with opt.averaged():
        norm = model[1]
        inputs = [model[0](batch[0]) for _, batch in opt._kept.recent]
        mean = torch.stack([x.mean(0) for x in inputs]).mean(0)
        var = torch.stack([x.var(0) for x in inputs]).mean(0)
        torch.testing.assert_close(norm.running_mean, mean.detach())
        torch.testing.assert_close(norm.running_var, var.detach())
        assert not norm.training
    assert all(torch.equal(v, buffers[k]) for k, v in model.named_buffers())
    assert norm.momentum == 0.1
    opt.finish()
    torch.testing.assert_close(norm.running_mean, mean.detach())


def test_batch_norm_after_a_restart_takes_the_batches_it_is_given():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 30)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    x, y = data()
    with again.averaged(loss_of(model), [(x, y)]):
        torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())
    stats = copy.deepcopy(model.state_dict())
    train(model, again, 1)  # one forward pass to find the layers leaves no trace beside training's own
    assert int(model[1].num_batches_tracked) == int(stats["1.num_batches_tracked"]) + 1
    assert len(again._kept.recent) == 1


def test_layers_that_do_not_run_keep_their_statistics_and_other_buffers_stay():
    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.other = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)
            self.last = nn.Linear(8, 2)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x):
            h = self.norm(self.first(x))
            if self.training:
                self.calls += 1
                self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()  # another tensor takes the buffer's place
            return self.last(h)

    torch.manual_seed(0)
    model = Branched().double()
    model.other.running_mean.fill_(7.0)
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    assert int(model.calls) == 20
    before = model.mean.clone()
    with opt.averaged():
        pass
    opt.finish()
    assert int(model.calls) == 20
    assert torch.equal(model.mean, before)
    assert bool((model.other.running_mean == 7).all())


def test_statistics_are_gathered_in_eval_mode_too_after_a_restart():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 30)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    model.eval()
    x, y = data()
    with again.averaged(loss_of(model), iter([(x, y)])):
        torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())
    with pytest.raises(ValueError, match="a loss with them"), again.averaged(batches=[(x, y)]):
        pass
    with pytest.raises(ValueError, match="at least one batch"), again.averaged(loss_of(model), []):
        pass


def test_a_loss_that_differentiates_inside_is_fine_after_a_restart():
    model = batch_norm()

    def loss(batch):
        x = batch[0].detach().requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (u - batch[1]).square().mean() + 0.01 * slope.square().mean()

    opt = infhess.RateFree(model.parameters())
    train(model, opt, 5, loss=loss)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    train(model, again, 2, loss=loss)
    with again.averaged():
        pass


def test_finish_that_fails_changes_nothing():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ZeroDivisionError):
        opt.finish(loss_of(model), (1 / 0 for _ in range(1)))
    opt._kept.recent.append((lambda batch: 1 / 0, None))
    with pytest.raises(ZeroDivisionError):
        opt.finish()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batches_are_kept_without_their_graphs():
    x = torch.ones(3, 2, requires_grad=True) * 2
    found = kept({"x": x, "names": ["a", "b", "c"], "scale": 0.5})
    assert found["x"].grad_fn is None
    assert torch.equal(found["x"], x)
    assert (found["names"], found["scale"]) == (["a", "b", "c"], 0.5)
