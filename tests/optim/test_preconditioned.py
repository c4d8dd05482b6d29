"""Preconditioned against dense formulas: P², one step, the measured step, invariance, counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import infhess
from quadratics import B, N, b, quadratic, stepped
from util import F64, close, fast_and_long, randn, spectrum


@pytest.mark.parametrize("rank", [3, 8, N])
def test_P2_is_the_ridge_inverse_of_the_eigenpairs_found(rank):
    w, loss, batches = quadratic(B, b, noise=0.1)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0), rank=rank)
    report = opt.update(loss, batches())
    P2 = opt.preconditioner
    values, _U = torch.linalg.eigh(P2.dense())
    rho = 1 / values[-1] if rank < N else report.values[-1]
    close((1 / values[: len(report.values)] - rho), report.values, 1e-6)
    assert len(report.values) <= rank
    close(P2.power(-0.5).dense() @ P2.power(-0.5).dense(), P2.inverse().dense(), 1e-8)
    close(torch.as_tensor(P2.to_scipy() @ b.numpy()), P2 @ b)


def test_with_as_many_directions_as_parameters_the_eigenvalues_are_exact():
    w, loss, batches = quadratic(B, b, noise=1.0)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0), rank=N)
    report = opt.update(loss, batches())
    close(report.values, torch.linalg.eigvalsh(B).flip(0), 1e-6)
    assert bool((report.std >= 0).all())
    assert float((report.std / report.values).max()) < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_step_is_the_formula(momentum):
    w, loss, batches = quadratic(B, b)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=7.0, momentum=momentum), rank=6)
    report = opt.update(loss, batches())
    before, P2 = w.detach().clone(), opt.preconditioner.dense()
    opt.param_groups[0]["lr"] = 3.5  # as a scheduler would
    stepped(opt, loss, torch.zeros(1, N, dtype=F64))
    gradient = B @ before - b
    close(w.detach(), before - report.step * 0.5 * (1 - momentum) * P2 @ gradient, 1e-10)
    close(w.grad, gradient, 1e-12)


def test_the_step_is_one_over_the_largest_eigenvalue_of_P2_B():
    w, loss, batches = quadratic(B, b)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0), rank=5)
    report = opt.update(loss, batches())
    largest = torch.linalg.eigvals(opt.preconditioner.dense() @ B).real.max()
    assert 0.85 < 1 / (report.step * float(largest)) <= 1.0 + 1e-9


def test_weight_decay_stays_outside_of_P():
    w, loss, batches = quadratic(B, b)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=2.0, weight_decay=0.1), rank=6)
    report = opt.update(loss, batches())
    before, P2 = w.detach().clone(), opt.preconditioner
    rate = report.step * float(P2.d)  # of the gradient outside of the directions
    stepped(opt, loss, torch.zeros(1, N, dtype=F64))
    close(w.detach(), before - report.step * (P2 @ (B @ before - b)) - rate * 0.1 * before, 1e-10)


def test_keep_leaves_the_rate_to_the_base():
    w, loss, batches = quadratic(B, b)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.2), rank=6, step_length="keep")
    report = opt.update(loss, batches())
    before = w.detach().clone()
    stepped(opt, loss, torch.zeros(1, N, dtype=F64))
    close(w.detach(), before - 0.2 * (opt.preconditioner @ (B @ before - b)), 1e-10)
    assert report.step != report.step


@pytest.mark.parametrize("base", [torch.optim.SGD, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.5)])
def test_fifty_steps_reach_what_the_base_does_not_in_a_thousand(base):
    values = torch.cat([torch.logspace(5, 3, 10, dtype=F64), torch.linspace(1.0, 2.0, 30, dtype=F64)])
    A = spectrum(values)
    target = torch.linalg.solve(A, randn(40, seed=2))
    gaps = {}
    for name, steps in (("base", 1000), ("ours", 50)):
        w, loss, batches = quadratic(A, A @ target)
        opt = base([w], lr=1.0 / 1e5)
        if name == "ours":
            opt = infhess.Preconditioned(opt, rank=20)
            opt.update(loss, batches())
        for _ in range(steps):
            stepped(opt, loss, torch.zeros(1, 40, dtype=F64))
        gaps[name] = float((w.detach() - target) @ A @ (w.detach() - target))
    assert gaps["ours"] < 1e-2 * gaps["base"]


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("how", ["update", "observe"])
def test_scaling_the_loss_changes_nothing(scale, how):
    paths = []
    for c in (1.0, scale):
        w, loss, batches = quadratic(B, b, noise=0.3)
        opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.3), rank=6)
        stream = batches()

        def scaled(batch, loss=loss, c=c):
            return c * loss(batch)

        if how == "update":
            opt.update(scaled, stream)
        for _ in range(30):
            batch = next(stream)
            opt.zero_grad()
            scaled(batch).backward()
            if how == "observe":
                opt.observe(scaled, batch)
            opt.step()
        paths.append(w.detach())
    close(paths[1], paths[0], 1e-6)


def test_the_rate_given_does_not_matter_and_schedules_do():
    def end(lr, schedule):
        w, loss, batches = quadratic(B, b, noise=0.1)
        opt = infhess.Preconditioned(torch.optim.SGD([w], lr=lr), rank=6)
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, schedule)
        stream = batches()
        report, P2, start = opt.update(loss, stream), opt.preconditioner.dense(), w.detach().clone()
        expected = start.clone()
        for t in range(10):
            batch = next(stream)
            expected -= schedule(t) * report.step * P2 @ (B @ expected - b + 0.1 * batch.mean(0))
            stepped(opt, loss, batch)
            scheduler.step()
        close(w.detach(), expected, 1e-9)
        return w.detach()

    falling, constant = (lambda t: 1 / (1 + t)), (lambda t: 1.0)
    for lr in (1e-6, 1e2):
        close(end(lr, falling), end(1.0, falling), 1e-9)
    assert float((end(1.0, falling) - end(1.0, constant)).norm()) > 0.1


@pytest.mark.parametrize("factor", [4.0, 10.0, 30.0])
def test_due_when_curvature_has_grown_so_much_that_steps_are_bounded(factor):
    """Gradients change sign at each step then: data in units of its own, and 64 points per batch."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 6, generator=g) * torch.logspace(1, -1, 6)
    y = x.sum(1) + 0.5 * torch.randn(4096, generator=g)
    batches, scale = list(zip(x.split(64), y.split(64))), [1.0]
    w = torch.nn.Parameter(torch.zeros(6))

    def loss(batch):
        return scale[0] * (batch[0] @ w - batch[1]).square().mean()

    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1))
    opt.update(loss, batches)
    for t in range(250):
        assert t < 150 or scale[0] > 1 or not opt.due
        scale[0] = factor if t >= 150 else 1.0
        stepped(opt, loss, batches[t % 64])
    assert opt.due
    opt.update(loss, batches)
    for t in range(100):
        stepped(opt, loss, batches[t % 64])
    assert not opt.due


@fast_and_long("length", 500, 1500)
@pytest.mark.parametrize(
    ("momentum", "factor", "expected"),
    [(0.0, 1.0, False), (0.0, 0.1, True), (0.0, 6.0, True), (0.9, 1.0, False), (0.9, 6.0, True)],
)
def test_due_when_curvature_has_left_what_was_predicted(momentum, factor, expected, length):
    B, b = spectrum(torch.logspace(3, -1, 40, dtype=F64)), randn(40, seed=5)
    w, _, batches = quadratic(B, b)
    scale, root = [1.0], torch.linalg.cholesky(B)  # noise of the shape of the curvature, as mini-batches have it

    def loss(batch):
        return scale[0] * (0.5 * w @ B @ w - b @ w) + (batch @ root.mT @ w).mean()

    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0, momentum=momentum), rank=32)
    stream = batches()
    opt.update(loss, stream)
    assert not opt.due
    opt.param_groups[0]["lr"] = min(1.0, 1.5 / factor)
    scale[0], due = factor, False
    for i in range(length):
        stepped(opt, loss, next(stream))
        if i % 25 == 0 and (due := opt.due):
            break
    assert due is expected, i
    opt.update(loss, stream)
    assert not opt.due


def test_the_report_counts_what_was_read_and_taken():
    w, loss, batches = quadratic(B, b)
    drawn = []

    def counted():
        for batch in batches():
            drawn.append(len(batch))
            yield batch

    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0), rank=4)
    report = opt.update(loss, counted())
    assert report.data_points == sum(drawn)
    pool = 4 * 32 // 8
    assert 4 * pool + 4 <= report.products <= 4 * pool + 4 * 6
    assert report.seconds > 0
    assert report.as_dict()["products"] == report.products
    assert set(report.as_dict()) >= {"step", "value/1", "std/1"}


@settings(max_examples=25)
@given(
    n=st.integers(1, 9),
    rank=st.integers(1, 12),
    condition=st.floats(0, 8),
    scale=st.floats(-8, 8),
    blocks=st.sampled_from(["whole", "layer"]),
    dtype=st.sampled_from([torch.float32, F64]),
    seed=st.integers(0, 99),
)
def test_whatever_the_quadratic_P2_is_positive_and_a_step_is_the_formula(
    n, rank, condition, scale, blocks, dtype, seed
):
    A = (10**scale * spectrum(torch.logspace(0, -condition, n, dtype=F64), seed)).to(dtype)
    w, loss, batches = quadratic(A, A @ randn(n, seed=seed + 1, dtype=dtype), seed)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=3.0), rank=rank, blocks=blocks)
    report = opt.update(loss, batches())
    P2 = opt.preconditioner.dense().double()
    assert report.step > 0
    assert float(torch.linalg.eigvalsh(P2)[0]) > 0
    before = w.detach().clone()
    stepped(opt, loss, torch.zeros(1, n, dtype=dtype))
    move = -report.step * P2 @ w.grad.double()
    longest = max(float(move.norm()), 1e-30)
    rounding = max(1e-3, 10**condition * torch.finfo(dtype).eps)  # P² is as ill-conditioned as the quadratic
    off = float((w.detach().double() - before.double() - move).norm())
    assert off < rounding * longest + 1e-6 * float(before.norm())
