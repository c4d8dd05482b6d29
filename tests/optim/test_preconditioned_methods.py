"""Preconditioned by layers, as the paper prints it, and around Adam: against dense formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dense
import infhess
from infhess.optim.preconditioning.directions import layout_of
from quadratics import B, N, b, quadratic, stepped, two_layers
from util import F64, close, randn


def test_for_a_block_diagonal_loss_layers_and_whole_find_the_same_eigenpairs():
    found = {}
    for how, rank in (("whole", 10), ("layer", 6)):
        ps, blocks, loss, batches = two_layers()
        opt = infhess.Preconditioned(torch.optim.SGD(ps, lr=1.0), rank=rank, blocks=how)
        found[how] = opt.update(loss, batches()), opt.preconditioner.dense()
    exact = torch.linalg.eigvalsh(torch.block_diag(*blocks)).flip(0)
    close(found["whole"][0].values[:6], exact[:6], 1e-3)
    close(found["layer"][0].values[:6], exact[:6], 1e-3)
    for how in ("whole", "layer"):
        P2, H = found[how][1], torch.block_diag(*blocks)
        close(P2 @ H, H @ P2, atol=2e-2 * float((P2 @ H).abs().max()))  # the same eigenvectors


def test_blocks_follow_names_where_there_are_names():
    net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 1))
    named = infhess.Preconditioned(torch.optim.SGD(net.named_parameters(), lr=1.0), rank=1, blocks="layer")
    plain = infhess.Preconditioned(torch.optim.SGD(net.parameters(), lr=1.0), rank=1, blocks="layer")
    assert layout_of(named.param_groups, "layer") == [[0, 1], [2, 3], [4, 5]]
    assert layout_of(plain.param_groups, "layer") == [[0, 1, 2, 3], [4, 5]]


def test_the_paper_is_applied_as_printed():
    w, loss, batches = quadratic(B, b, noise=0.1)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1e-4), rank=4, method="paper")
    source = infhess.Hessian(loss, [w], batches())
    posterior = infhess.infer(source, steps=16, method="paper")
    P = infhess.paper_preconditioner(posterior, 4).dense()
    report = opt.update(loss, batches())
    close(opt.preconditioner.dense(), P @ P, 1e-8)
    close(report.values, posterior.svd(4).values, 1e-10)
    before = w.detach().clone()
    stepped(opt, loss, torch.zeros(1, N, dtype=F64))
    close(w.detach(), before - 1e-4 * P @ P @ (B @ before - b), 1e-10)


def test_the_papers_layers_share_b0_and_set_the_step_to_its_inverse():
    ps, blocks, loss, batches = two_layers()
    opt = infhess.Preconditioned(torch.optim.SGD(ps, lr=123.0), rank=2, method="paper", blocks="layer")
    report = opt.update(loss, batches())
    H, s = torch.block_diag(*blocks), torch.cat([p.detach().reshape(-1) for p in ps])
    s = H @ s  # the gradient, but for the small noise of a batch
    close(torch.tensor(1 / report.step), (H @ s) @ (H @ s) / (s @ H @ s), 1e-3)
    assert report.products == 15
    values, _U = torch.linalg.eigh(opt.preconditioner.dense())
    sigma = report.values
    assert len(sigma) == 4
    close(torch.sort(1 / values[values < 1 - 1e-9]).values, torch.sort(sigma[sigma > 1 + 1e-9]).values, 1e-6)


@pytest.mark.parametrize("method", ["paper", "curvature"])
def test_a_layer_without_entries_is_left_alone(method):
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.empty(0, 3))
    opt = infhess.Preconditioned(torch.optim.SGD([p, q], lr=0.1), rank=2, method=method, blocks="layer")
    report = opt.update(lambda b: (p - 3).square().sum() * b.mean() + q.sum(), [torch.ones(4, 1)] * 8)
    close(report.values, torch.full_like(report.values, 2.0), 1e-5)


def test_lambda0_of_the_layers_has_the_missing_one_over_n():
    from infhess.pilot import paper_layer_pilot

    w, loss, batches = quadratic(B, b, noise=1.0)
    pilot = paper_layer_pilot(infhess.Hessian(loss, [w], batches()), batches=10)
    stream = batches()
    g = torch.stack([torch.autograd.grad(loss(next(stream)), w)[0] for _ in range(10)])
    expected = ((g.square().sum() - g.sum(0).square().sum() / 10) / 10).sqrt()
    close(torch.tensor(pilot.prior.noise), expected, 1e-6)


def test_around_adam_the_step_is_measured_in_its_own_scaling():
    w, loss, batches = quadratic(B, b, noise=0.1)
    opt = infhess.Preconditioned(torch.optim.Adam([w], lr=0.01, betas=(0.0, 0.999)), rank=5)
    stream = batches()
    for _ in range(20):
        stepped(opt, loss, next(stream))
    state = opt.state[w]
    D = 1 / ((state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8)
    report = opt.update(loss, stream)
    P2 = opt.preconditioner.dense()
    root = D.sqrt()
    inner = P2 / root[:, None] / root
    close(torch.linalg.eigvalsh(inner)[-1], opt._state.factor, 1e-6)
    largest = torch.linalg.eigvals(P2 @ B).real.max()
    assert 0.9 < 1 / (report.step * float(largest)) <= 1 + 1e-9
    # One step: what Adam does, with its scaling as it is after this gradient, bent by P.
    before = w.detach().clone()
    stepped(opt, loss, torch.zeros(1, N, dtype=F64))
    v = state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))
    move = -report.step * opt._state.factor * (B @ before - b) / (v.sqrt() + 1e-8)
    close(w.detach(), before + root * ((inner / opt._state.factor) @ (move / root)), 1e-8)


def test_around_adamw_the_decay_stays_outside():
    ends = []
    for decay in (0.0, 0.3):
        w, loss, batches = quadratic(B, b)
        opt = infhess.Preconditioned(torch.optim.AdamW([w], lr=0.01, weight_decay=decay), rank=5, step_length="keep")
        opt.update(loss, batches())
        before = w.detach().clone()
        stepped(opt, loss, torch.zeros(1, N, dtype=F64))
        ends.append(w.detach())
    close(ends[1], ends[0] - 0.01 * 0.3 * before, 1e-10)


@pytest.mark.parametrize(("weight_decay", "noted"), [(0.0, False), (1e-9, False), (1e-3, True)])
def test_weight_decay_that_takes_much_of_the_weights_is_noted(weight_decay, noted):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(512, 6, generator=g, dtype=F64) * torch.logspace(0, -2, 6, dtype=F64)
    w = torch.nn.Parameter(torch.ones(6, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.01, weight_decay=weight_decay))
    report = opt.update(lambda b: (b @ w - b.sum(1)).square().mean(), x.split(64))
    assert any("weight decay takes" in note for note in report.notes) is noted
    if noted:
        share, before = float(report.notes[-1].split("%")[0].split()[-1]) / 100, w.detach().clone()
        w.grad = torch.zeros_like(w)
        opt.step()
        close((before - w.detach()) / before, torch.full((6,), share, dtype=F64), 0.01)


def test_dense_reference_of_the_scaling():
    from infhess.preconditioners.scaling import Block, Scaling

    U = torch.linalg.qr(randn(6, 2)).Q
    gain, root = torch.tensor([0.9, 0.4], dtype=F64), randn(6, seed=1).abs() + 0.1
    scaling = Scaling([Block(U, gain, gain)], 3.0, root)
    expected = torch.from_numpy(dense.scaled_identity_less(U, gain, root, 3.0))
    close(scaling.operator().dense(), expected, 1e-12)
    close(3.0 * scaling(randn(6, seed=2)), expected @ randn(6, seed=2), 1e-12)
