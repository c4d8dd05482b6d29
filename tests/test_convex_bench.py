"""The convex bench: counting to the point, SketchySGD as published, settings, ratios; and snapshots."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from infhess.bench import convex, convex_report
from infhess.bench.convex_peers import AVERAGED, METHODS, OURS
from infhess.bench.sketchy import Sketchy, inverse, nystrom
from infhess.experiments.curves import EXACT, START, thinned
from infhess.experiments.rows import Row
from infhess.experiments.training import curve
from infhess.problems.convex import logistic
from infhess.problems.shuffled import Reading, Shuffled
from test_reproduce import Counting, small

F64 = torch.float64


class CountingAll(Counting):
    """Also what is read at once."""

    def whole(self):
        data = super().whole()
        Counting.read += len(data[0])
        return data


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a peer's own
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", [small(), small(logistic, l2=1e-2)], ids=["squares", "logistic"])
def test_rows_count_what_was_read_to_the_point(method, problem, monkeypatch):
    peer = METHODS[method]
    if peer.missing:
        pytest.skip(f"{peer.package} is not installed")
    monkeypatch.setattr("infhess.experiments.training.Shuffled", CountingAll)
    Counting.read = 0
    setting = peer.default or (peer.grid[0] if peer.grid else 0.0)
    rows = curve(problem, peer.make(setting), Row("e", "p", "m", 3, 16), 1500)
    assert rows[-1].data_points == Counting.read
    assert {r.method for r in rows} >= {"m" + name for name in peer.models}


@pytest.mark.parametrize("method", [m for m in METHODS if not METHODS[m].grid])
def test_methods_without_a_setting_converge(method):
    problem = small(logistic, l2=1e-2)
    best, start = problem.value(problem.solved()), problem.value(problem.model())
    rows = curve(problem, METHODS[method].make(0.0), Row("e", "p", "m", 0, 16), 6000, METHODS[method].models[0])
    assert (rows[-1].loss - best) / (start - best) < 0.02


# ---- SketchySGD


def sketchy(rank, rho, problem=None):
    problem = problem or small()
    torch.manual_seed(0)
    reading = Reading(Shuffled(problem.data, 300, torch.Generator().manual_seed(0)))
    run = Sketchy(problem, reading, rank, rho)
    run.points = 300  # all of the data in each sketch
    return problem, run


def test_the_sketch_of_full_rank_is_the_matrix():
    g = torch.Generator().manual_seed(0)
    A = torch.randn(8, 8, generator=g, dtype=F64)
    H, Omega = A @ A.mT, torch.linalg.qr(torch.randn(8, 8, generator=g, dtype=F64)).Q
    values, U = nystrom(H @ Omega, Omega)
    torch.testing.assert_close(U * values @ U.mT, H, rtol=1e-8, atol=1e-8)
    low, V = nystrom(H @ Omega[:, :3], Omega[:, :3])
    Y = H @ Omega[:, :3]
    torch.testing.assert_close(V * low @ V.mT, Y @ torch.linalg.inv(Omega[:, :3].mT @ Y) @ Y.mT, rtol=1e-7, atol=1e-7)


def test_its_inverse_and_root_against_dense():
    g = torch.Generator().manual_seed(1)
    U, values = torch.linalg.qr(torch.randn(6, 2, generator=g, dtype=F64)).Q, torch.tensor([5.0, 2.0], dtype=F64)
    M, v = U * values @ U.mT + 0.3 * torch.eye(6, dtype=F64), torch.randn(6, generator=g, dtype=F64)
    torch.testing.assert_close(inverse(values, U, 0.3, v), torch.linalg.solve(M, v))
    root = inverse(values, U, 0.3, inverse(values, U, 0.3, v, -0.5), -0.5)
    torch.testing.assert_close(root, torch.linalg.solve(M, v))


def test_its_first_step_is_the_published_rule():
    problem, run = sketchy(12, 1e-2)
    H = problem.hessian(run.model.weight)
    (g,) = torch.autograd.grad(problem.loss(run.model)(problem.data), [run.model.weight])
    run.step()
    M = torch.linalg.inv(H + 1e-2 * torch.eye(12, dtype=F64))
    top = float(torch.linalg.eigvals(M @ H).real.max())
    assert run.rate == pytest.approx(0.5 / top, rel=0.02)  # ten power iterations
    torch.testing.assert_close(run.model.weight.detach()[0], -run.rate * (M @ g[0]), rtol=1e-5, atol=1e-8)
    assert run.products == (12 + 10)


def test_it_looks_again_each_epoch_unless_the_loss_is_quadratic():
    for problem, times in ((small(), 1), (small(logistic, l2=1e-2), 3)):
        reading = Reading(Shuffled(problem.data, 20, torch.Generator().manual_seed(0)))
        run, looks = Sketchy(problem, reading, 4, 0.1), []
        estimate = run.estimate
        run.estimate = lambda looks=looks, estimate=estimate: (looks.append(1), estimate())
        while reading.points < 950:
            run.step()
        assert len(looks) == times


# ---- settings, axes, report


def test_tuning_takes_the_lowest_score_whatever_the_outcome():
    rows = [
        Row(convex.TUNING, "p", name, 1000, 32, metric=score)
        for name, score in (
            ("sgd: 0.1", -1.0),
            ("sgd: 0.1, averaged", -2.0),
            ("sgd: 1", 3.0),
            ("Adam, cosine: 0.01", -1.5),
        )
    ]
    assert convex.best_settings(rows) == {
        "p/32/sgd": convex.Setting(0.1, AVERAGED),
        "p/32/Adam, cosine": convex.Setting(0.01, ""),
    }


def test_the_packaged_settings_are_readable():
    assert all(isinstance(s, convex.Setting) and s.value > 0 for s in convex.tuned().values())


def test_work_counts_products_at_their_cost_and_ratios_name_the_best_peer():
    ends = [Row(convex.EXPERIMENT, "p", EXACT, loss=0.0), Row(convex.EXPERIMENT, "p", START, loss=1.0)]
    cost = Row(convex.EXPERIMENT, "p", convex.COST, 0, 32, metric=2.0)
    runs = [
        Row(convex.EXPERIMENT, "p", method, seed, 32, points, products, seconds, loss=0.005)
        for method, points, products, seconds in (
            (OURS, 1000, 10, 2.0),
            ("a, tuned", 3000, 0, 1.0),
            ("b, tuned", 9000, 0, 9.0),
        )
        for seed in (100, 101)
    ]
    axes = convex.Axes([*ends, cost, *runs])
    assert axes.to("work", "p", OURS, 32, 1e-2) == 1000 + 2 * 10 * 32
    assert axes.to("data points", "p", OURS, 32, 1e-3) == math.inf
    line = next(x for x in convex_report.ahead(axes, (1e-2, 1e-3)).splitlines() if x.startswith("| p, 32 | 1e-02"))
    assert line == "| p, 32 | 1e-02 | 1,000 | 3.00 (a) | 1.83 (a) | 0.50 (a) |"
    assert "nobody" in convex_report.ahead(axes, (1e-3,))


def test_thinned_runs_keep_the_first_row_at_each_gap_and_the_last():
    rows = [Row("e", "p", "m", data_points=n, loss=1.0 / n) for n in range(1, 2001)]
    kept = thinned(rows, 0.0, 1.0)
    assert {10, 100, 1000, 2000} <= {r.data_points for r in kept}
    assert len(kept) < 60


# ---- snapshots


def finite_sum():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=g, dtype=F64), torch.randn(60, generator=g, dtype=F64)
    w = nn.Parameter(torch.zeros(5, dtype=F64))
    return w, (x, y), lambda b: (b[0] @ w - b[1]).square().mean() + w.pow(4).sum()


def test_corrected_gradients_are_right_on_average_and_exact_at_the_snapshot():
    w, data, loss = finite_sum()
    parts = list(zip(data[0].split(7), data[1].split(7)))
    snapshot = infhess.Snapshot(loss, [w])
    assert snapshot.take(parts) == 60
    full = torch.autograd.grad(loss(data), [w])[0]
    for batch in parts:
        w.grad = None
        loss(batch).backward()
        snapshot.correct(batch)
        torch.testing.assert_close(w.grad, full)
    w.data += 0.3
    there, total = w.detach().clone(), torch.zeros(5, dtype=F64)
    for batch in parts:
        w.grad = None
        loss(batch).backward()
        snapshot.correct(batch)
        total += len(batch[0]) / 60 * w.grad
    torch.testing.assert_close(total, torch.autograd.grad(loss(data), [w])[0])
    assert torch.equal(w, there)


def test_a_snapshot_without_data_or_with_nan_keeps_the_one_before():
    w, data, loss = finite_sum()
    snapshot = infhess.Snapshot(loss, [w])
    loss(data).backward()
    before = w.grad.clone()
    snapshot.correct(data)
    assert torch.equal(w.grad, before)
    with pytest.raises(ValueError, match="at least one batch"):
        snapshot.take([])
    snapshot.take([data])
    mean = snapshot.mean[0].clone()
    with pytest.raises(ValueError, match="not finite"):
        snapshot.take([(data[0] * float("nan"), data[1])])
    assert torch.equal(snapshot.mean[0], mean)


def test_a_snapshot_leaves_buffers_and_gradients_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.randn(12, 3)
    snapshot = infhess.Snapshot(lambda b: model(b).square().mean(), model.parameters())
    buffers = [b.clone() for b in model.buffers()]
    snapshot.take(x.split(4))
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_whole_bench_in_small(tmp_path):
    budgets = {"breast-cancer": 700}
    rows = []
    for piece in [*convex.pieces([7], budgets), *convex.stability([7], budgets)]:
        found = piece.run()
        assert all(r.seed in (0, 7) for r in found)
        rows += found
    text = convex_report.write(rows, [7], tmp_path)
    assert "| breast-cancer, 32 | 1e-01 |" in text
    assert "diverged, in 4 runs" in text
    methods = {r.method for r in rows}
    for name, peer in METHODS.items():
        wanted = [name] if not peer.grid else [f"{name}, tuned", *([f"{name}, default"] if peer.default else [])]
        assert peer.missing or set(wanted) <= methods
    for name in ("summary.md", "targets.md", "table.md", "report.html", "convex-32.svg", "convex-256.svg"):
        assert (tmp_path / name).stat().st_size > 100
    table = (tmp_path / "table.md").read_text()
    assert "scikit-learn lbfgs" in table
    assert OURS in table
