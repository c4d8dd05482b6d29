"""Preconditioned against dense formulas: P, P², one step, the measured step, blocks, invariance, both of the paper's modes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dense
import infhess
from util import F64, close, randn, spectrum

N = 12


def quadratic(B, b, seed=0, noise=0.0):
    """w, a loss ½wᵀBw − bᵀw whose batches carry a linear term of mean zero, and endless batches of eight points."""
    w = nn.Parameter(randn(len(B), seed=seed, dtype=B.dtype))

    def loss(batch):
        return 0.5 * w @ B @ w - b @ w + noise * (batch @ w).mean()

    def batches():
        g = torch.Generator().manual_seed(seed)
        while True:
            yield torch.randn(8, len(B), generator=g, dtype=F64).to(B.dtype)

    return w, loss, batches


def stepped(opt, loss, batch):
    opt.zero_grad()
    loss(batch).backward()
    opt.step()


B = spectrum(torch.logspace(3, -1, N, dtype=F64))
b = randn(N, seed=5)


# ---- P and P² against dense


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


# ---- what it is for


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
    ends = []
    for lr in (1e-6, 1.0, 1e2):
        w, loss, batches = quadratic(B, b, noise=0.1)
        opt = infhess.Preconditioned(torch.optim.SGD([w], lr=lr), rank=6)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t))
        stream = batches()
        opt.update(loss, stream)
        for _ in range(10):
            stepped(opt, loss, next(stream))
            schedule.step()
        ends.append(w.detach())
    close(ends[0], ends[1], 1e-9)
    close(ends[2], ends[1], 1e-9)


# ---- layers


def two_layers(seed=0):
    """A loss that is a sum over layers, so that the Hessian is block-diagonal."""
    blocks = [spectrum([50.0, 20.0, 5.0, 1.0, 0.5, 0.1], seed=1), spectrum([30.0, 8.0, 2.0, 0.3], seed=2)]
    ps = [nn.Parameter(randn(6, seed=3).reshape(3, 2)), nn.Parameter(randn(4, seed=4).reshape(2, 2))]

    def loss(batch):
        return (
            sum(0.5 * p.reshape(-1) @ A @ p.reshape(-1) for p, A in zip(ps, blocks))
            + (batch @ torch.ones(1, dtype=F64)).mean() * ps[0].sum()
        )

    def batches():
        g = torch.Generator().manual_seed(seed)
        while True:
            yield 0.01 * torch.randn(4, 1, generator=g, dtype=F64)

    return ps, blocks, loss, batches


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
    assert named._blocks() == [[0, 1], [2, 3], [4, 5]]
    assert plain._blocks() == [[0, 1, 2, 3], [4, 5]]


# ---- the paper


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


def test_lambda0_of_the_layers_has_the_missing_one_over_n():
    from infhess.pilot import paper_layer_pilot

    w, loss, batches = quadratic(B, b, noise=1.0)
    pilot = paper_layer_pilot(infhess.Hessian(loss, [w], batches()), batches=10)
    stream = batches()
    g = torch.stack([torch.autograd.grad(loss(next(stream)), w)[0] for _ in range(10)])
    expected = ((g.square().sum() - g.sum(0).square().sum() / 10) / 10).sqrt()
    close(torch.tensor(pilot.prior.noise), expected, 1e-6)


# ---- around Adam


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
    close(torch.linalg.eigvalsh(inner)[-1], opt._numbers.factor, 1e-6)
    largest = torch.linalg.eigvals(P2 @ B).real.max()
    assert 0.9 < 1 / (report.step * float(largest)) <= 1 + 1e-9
    # One step: what Adam does, with its scaling as it is after this gradient, bent by P.
    before = w.detach().clone()
    stepped(opt, loss, torch.zeros(1, N, dtype=F64))
    v = state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))
    move = -report.step * opt._numbers.factor * (B @ before - b) / (v.sqrt() + 1e-8)
    close(w.detach(), before + root * ((inner / opt._numbers.factor) @ (move / root)), 1e-8)


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


# ---- due


@pytest.mark.parametrize(
    ("momentum", "factor", "expected"),
    [(0.0, 1.0, False), (0.0, 0.1, True), (0.0, 6.0, True), (0.9, 1.0, False), (0.9, 6.0, True)],
)
def test_due_when_curvature_has_left_what_was_predicted(momentum, factor, expected):
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
    scale[0], seen = factor, []
    for i in range(1500):
        stepped(opt, loss, next(stream))
        if i % 25 == 0:
            seen.append(opt.due)
    assert any(seen) is expected, sum(seen)
    opt.update(loss, stream)
    assert not opt.due


# ---- counting and reports


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


def test_dense_reference_of_the_scaling():
    from infhess.optim.scaling import Block, Scaling

    U = torch.linalg.qr(randn(6, 2)).Q
    gain, root = torch.tensor([0.9, 0.4], dtype=F64), randn(6, seed=1).abs() + 0.1
    scaling = Scaling([Block(U, gain, gain)], 3.0, root)
    expected = torch.from_numpy(dense.scaled_identity_less(U, gain, root, 3.0))
    close(scaling.operator().dense(), expected, 1e-12)
    close(3.0 * scaling(randn(6, seed=2)), expected @ randn(6, seed=2), 1e-12)


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
