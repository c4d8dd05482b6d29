"""Self-driving: what observe finds, counts and survives; and the sources that estimates come from, against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.curvature import batch_source
from infhess.curvature.local import DifferenceLocal, HessianLocal
from infhess.optim.pool import Blockwise, Pool, Rooted
from infhess.problems.nets import paper_net
from util import F64, close, randn, spd, spectrum


def least_squares(n=4000, d=30, noise=0.1, seed=0, power=1.5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=F64) * torch.logspace(power, -power, d, dtype=F64)
    y = x @ torch.randn(d, generator=g, dtype=F64) + noise * torch.randn(n, generator=g, dtype=F64)
    return x, y


def drive(model_loss, opt, data, size, steps, seed=0):
    x, y = data
    g = torch.Generator().manual_seed(seed)
    reports = []
    for _ in range(steps):
        part = torch.randint(len(x), (size,), generator=g)
        batch = x[part], y[part]
        opt.zero_grad()
        model_loss(batch).backward()
        reports.append(opt.observe(model_loss, batch))
        opt.step()
    return [r for r in reports if r is not None]


# ---- sources


def linear_loss(x, y):
    w = nn.Parameter(randn(x.shape[1], seed=3))
    return w, lambda batch: (batch[0] @ w - batch[1]).square().mean() / 2


def test_a_pool_is_the_mean_curvature_of_its_batches():
    x, y = least_squares(60, 6)
    w, loss = linear_loss(x, y)
    source = infhess.Hessian(loss, [w], [(x, y)])
    pool = Pool(source, [(x[:20], y[:20]), (x[20:], y[20:])], slices=5)
    B = x.mT @ x / 60
    s = randn(6, seed=4)
    close(pool.matvec(s), B @ s, 1e-10)
    slices = torch.stack([pool.gradient() for _ in range(5)])
    close(slices.mean(0), x.mT @ (x @ w.detach() - y) / 60, 1e-10)
    assert source.products == 2


def test_error_bars_of_a_pool_are_the_spread_over_its_batches():
    x, y = least_squares(800, 4, power=0.3)
    w, loss = linear_loss(x, y)
    source = infhess.Hessian(loss, [w], [(x, y)])
    batches = [(a, b) for a, b in zip(x.split(100), y.split(100))]
    pool = Pool(source, batches, slices=4)
    S = torch.linalg.qr(randn(4, 4, seed=5)).Q
    for s in S.mT:
        pool.matvec(s)
    u = torch.linalg.qr(randn(4, 2, seed=6)).Q
    each = torch.stack([((a @ u) ** 2).mean(0) for a, _ in batches])
    close(pool.spread(S, u), each.std(0) / 8**0.5, 1e-8)


def test_blockwise_products_leave_the_other_blocks_out():
    A = spd(7)
    w = nn.Parameter(randn(7))
    source = infhess.Hessian(lambda batch: 0.5 * w @ A @ w * batch.mean(), [w], [torch.ones(2, dtype=F64)])
    blocks = Blockwise(source, [3, 4])
    s = randn(7, seed=2)
    close(blocks.matvec(s), torch.block_diag(A[:3, :3], A[3:, 3:]) @ s, 1e-10)
    assert source.products == 2
    root = randn(7, seed=1).abs()
    close(Rooted(blocks, root).matvec(s), root * (torch.block_diag(A[:3, :3], A[3:, 3:]) @ (root * s)), 1e-10)


@pytest.mark.parametrize("iterations", [1, 3, 6])
def test_lanczos_is_a_lower_bound_that_reaches_the_largest_eigenvalue(iterations):
    from infhess.optim.scaling import identity
    from infhess.optim.step_length import largest

    A = spectrum([9.0, 5.0, 2.0, 1.0, 0.5, -3.0])
    w = nn.Parameter(randn(6))
    source = infhess.Hessian(lambda batch: 0.5 * w @ A @ w * batch.mean(), [w], [torch.ones(2, dtype=F64)])
    found = largest(source, source.local(torch.ones(2, dtype=F64)), identity([6], source.like), iterations)
    g = A @ w.detach()
    first = torch.linalg.vector_norm(A @ g) / torch.linalg.vector_norm(g)
    assert float(first) - 1e-9 <= found.value <= 9.0 + 1e-9
    assert source.products <= iterations
    if iterations == 1:
        close(torch.tensor(found.value, dtype=F64), first, 1e-9)
    if iterations == 6:
        close(torch.tensor(found.value), torch.tensor(9.0), 1e-2)
        assert found.negative


# ---- convex problems


@pytest.mark.parametrize("size", [8, 64, 512])
@pytest.mark.parametrize("lr", [1e-6, 1e2])
def test_it_solves_an_ill_conditioned_regression_whatever_the_rate(size, lr):
    x, y = least_squares()
    w = nn.Parameter(torch.zeros(30, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=lr))

    def loss(batch):
        return (batch[0] @ w - batch[1]).square().mean()

    start = float(y.square().mean())
    drive(loss, opt, (x, y), size, 600)
    assert float((x @ w.detach() - y).square().mean()) < 1e-3 * start


def test_what_it_counts_is_what_it_takes(monkeypatch):
    taken, points, product, block = [], [], HessianLocal.product, HessianLocal.block

    def counted(self, s):
        taken.append(1)
        points.append(self.points)
        return product(self, s)

    def counted_block(self, S):
        taken.extend([1] * S.shape[1])
        points.extend([self.points] * S.shape[1])
        return block(self, S)

    def counted_gradient(self):
        taken.append(1)
        points.append(len(self.batch[0]))
        return gradient(self)

    def counted_slices(loss, batch, *rest):
        taken.append(1)
        points.append(len(batch[0]))
        return slices(loss, batch, *rest)

    gradient, slices = DifferenceLocal.gradient, batch_source.slice_gradients
    monkeypatch.setattr(HessianLocal, "product", counted)
    monkeypatch.setattr(HessianLocal, "block", counted_block)
    monkeypatch.setattr(DifferenceLocal, "gradient", counted_gradient)
    monkeypatch.setattr(batch_source, "slice_gradients", counted_slices)
    x, y = least_squares(500, 10)
    w = nn.Parameter(torch.zeros(10, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0))
    reports = drive(lambda batch: (batch[0] @ w - batch[1]).square().mean(), opt, (x, y), 32, 100)
    assert sum(r.products for r in reports) == len(taken) > 0
    assert sum(r.product_points for r in reports) == sum(points)
    assert {r.data_points for r in reports} == {0}
    assert any(len(r.values) for r in reports)


def test_observe_leaves_everything_but_itself_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(16, 3)

    def loss(batch):
        return model(batch).square().mean()

    for _ in range(12):
        opt.zero_grad()
        loss(x).backward()
        before = [p.detach().clone() for p in model.parameters()], [p.grad.clone() for p in model.parameters()]
        buffers, random = [b.clone() for b in model.buffers()], torch.get_rng_state()
        opt.observe(loss, x)
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))
        assert all(torch.equal(a, p) and torch.equal(g, p.grad) for a, g, p in zip(*before, model.parameters()))
        opt.step()


def test_observe_needs_a_step_of_its_own():
    w = [nn.Parameter(torch.ones(2))]
    for opt in (
        infhess.Preconditioned(torch.optim.SGD(w, lr=1.0), method="paper"),
        infhess.Preconditioned(torch.optim.SGD(w, lr=1.0), step_length="keep"),
        infhess.Preconditioned(torch.optim.Rprop(w, lr=1.0)),
    ):
        with pytest.raises(ValueError, match="observe"):
            opt.observe(lambda x: (x * w[0]).square().mean(), torch.ones(2))


# ---- nets


def digits_as_images():
    from infhess.data import digits

    images, labels = digits()
    x = nn.functional.interpolate(images[:, None].float() / 8 - 1, scale_factor=4)
    return x.expand(-1, 3, -1, -1)[:600].contiguous(), labels[:600]


@pytest.mark.parametrize("start", ["default", "xavier"])
@pytest.mark.parametrize("way", ["sgd", "momentum", "adam", "update"])
def test_a_small_net_survives_any_rate(start, way):
    x, y = digits_as_images()
    ends = []
    for lr in (1e-6, 1e2):
        torch.default_generator.manual_seed(1)
        model = paper_net(0.08, xavier=start == "xavier")
        base = {
            "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
            "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
        }.get(way, torch.optim.SGD)(model.parameters(), lr=lr)
        opt = infhess.Preconditioned(base, rank=2, blocks="layer")

        def loss(batch, model=model):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        if way == "update":
            g = torch.Generator().manual_seed(0)
            for step in range(60):
                part = torch.randint(len(x), (32,), generator=g)
                if step % 30 == 0:
                    opt.update(loss, [(x[i : i + 32], y[i : i + 32]) for i in range(0, 320, 32)])
                opt.zero_grad()
                loss((x[part], y[part])).backward()
                opt.step()
        else:
            drive(loss, opt, (x, y), 32, 60)
        with torch.no_grad():
            ends.append(float(loss((x, y))))
    assert all(end < 2.31 for end in ends), ends
    assert max(ends) - min(ends) < 0.05, ends


def test_steps_wear_where_noise_rules_and_not_while_iterates_travel():
    x, y = least_squares(4000, 10)
    w = nn.Parameter(torch.full((10,), 3.0, dtype=F64))

    def loss(batch):
        return (batch[0] @ w - batch[1]).square().mean()

    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0))
    noise = torch.randn(len(y), generator=torch.Generator().manual_seed(5), dtype=F64)
    drive(loss, opt, (x, y + 5 * noise), 32, 300)
    assert opt._numbers.worn > 100
    quiet = nn.Parameter(torch.full((10,), 3.0, dtype=F64))
    far = infhess.Preconditioned(torch.optim.SGD([quiet], lr=1.0))
    scale = torch.logspace(0, -3, 10, dtype=F64)  # slow directions, and no noise
    drive(lambda batch: (batch[0] * scale @ quiet).square().mean(), far, (x, y), 500, 60)
    assert far._numbers.worn < 20
