"""Eigenvalues over time: warm updates are cheap and cover, jumps are seen, and the history shows and pickles."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import nn

import infhess
from infhess import Hessian, Tracker, spectrum
from infhess.spectra.tracker import IN_A_ROW, WARM
from moving import Moving
from util import F64, close, fast_and_long, randn
from util import spectrum as matrix_with


def width(found):
    low, high = found.interval()
    return float(((high - low) / found.values).mean())


def test_the_first_update_is_a_fresh_spectrum():
    first = Tracker(Moving().source(), 2, generator=torch.Generator().manual_seed(1)).update()
    fresh = spectrum(Moving().source(), 2, generator=torch.Generator().manual_seed(1))
    close(first.values, fresh.values, 1e-9)
    assert first.stopped == fresh.stopped == "one round"


@pytest.mark.parametrize("k", [1, 3])
def test_three_times_fewer_products_at_equal_width_while_the_net_moves_slowly(k):
    problem = Moving()
    tracker, fresh = Tracker(problem.source(), k), []
    for _ in range(10):
        tracker.update()
        fresh.append(spectrum(problem.source(), k, generator=problem.g))
        problem.drift(0.003)
    warm = [m for m in tracker.history if m.warm]
    assert len(warm) >= 8
    assert max(m.products for m in warm) * 3 <= min(f.products for f in fresh)
    widths = [sum((b - a) / v for v, a, b in zip(m.values, m.low, m.high)) / k for m in warm]
    anchor = tracker.history[0]
    first = sum((b - a) / v for v, a, b in zip(anchor.values, anchor.low, anchor.high)) / k
    assert max(widths) <= 1.15 * first
    # In all, with the fresh ones and with the products that are kept for comparison:
    assert sum(m.products for m in tracker.history) * 3 <= sum(f.products for f in fresh)
    assert sum(m.data_points for m in warm) == 0


def covered(seed, k, move, updates=6):
    """Which of the top k are in their intervals, at each update while the parameters move."""
    problem = Moving(seed=3 * seed)
    tracker, hits = Tracker(problem.source(), k, generator=problem.g), []
    for i in range(updates):
        low, high = tracker.update().interval()
        truth = problem.truth(k)
        hits.append((low <= truth) & (truth <= high))
        move(problem, i)
    return torch.stack(hits).double(), [m.warm for m in tracker.history]


MOVES = {
    "slowly": lambda p, i: p.drift(0.01),
    "fast": lambda p, i: p.drift(0.1),
    "a jump now and then": lambda p, i: p.jump() if i % 3 == 2 else p.drift(0.01),
    "to where nothing curves": lambda p, i: p.w.data.mul_(100.0) if i == 2 else p.drift(0.001),
}


@fast_and_long("trials", 8, 30)
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("k", [1, 3])
def test_intervals_cover_whatever_the_net_does(k, move, trials):
    found = [covered(seed, k, MOVES[move]) for seed in range(trials)]
    coverage = float(torch.cat([hits for hits, _ in found]).mean())
    assert coverage >= 0.93 - 0.6 / trials
    if move == "slowly":
        assert any(any(warm) for _, warm in found)


def test_a_jump_is_seen_and_the_estimate_is_fresh():
    problem = Moving()
    tracker = Tracker(problem.source())
    tracker.update()
    assert tracker.update().stopped == WARM
    problem.jump()
    assert tracker.update().stopped == "one round"
    assert tracker.history[-1].why


def test_an_eigenvalue_that_rises_outside_of_the_vectors_is_found():
    """λ₁ stays, with its vector; another one grows from nothing past it."""
    scale = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.1], dtype=F64)
    w, height = nn.Parameter(torch.zeros(8, dtype=F64)), torch.ones(8, dtype=F64)
    x = randn(400, 8) * scale.sqrt()
    source = Hessian(lambda b: 0.5 * (b * height @ w).square().mean(), [w], list(x.split(40)))
    tracker = Tracker(source)
    for grown in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0):
        height[-1] = grown
        found = tracker.update()
        truth = torch.linalg.eigvalsh((x * height).mT @ (x * height) / 400)[-1]
        low, high = found.interval(0.999)
        if grown in (8.0, 10.0):
            for _ in range(IN_A_ROW + 1):  # at the latest after so many
                low, high = tracker.update().interval(0.999)
            assert bool(low <= truth <= high)


def test_all_the_data_stays_exact():
    problem = Moving(n=100)
    source = Hessian(problem.loss, [problem.w], [(problem.x, problem.y)])
    tracker = Tracker(source, 2)
    for _ in range(4):
        found = tracker.update()
        close(found.values, problem.truth(2), 5e-3)
        assert float(found.std.max()) == 0.0
        problem.drift(1e-3)
    assert any(m.warm for m in tracker.history)


def test_many_warm_updates_are_followed_by_a_fresh_one():
    problem = Moving(n=200)
    tracker = Tracker(problem.source())
    for _ in range(IN_A_ROW + 2):
        tracker.update()
    assert [m.warm for m in tracker.history] == [False] + [True] * IN_A_ROW + [False]
    assert "in a row" in tracker.history[-1].why


def test_a_tolerance_holds_in_warm_updates_too():
    problem = Moving()
    tracker = Tracker(problem.source(), rtol=0.1)
    for _ in range(4):
        assert width(tracker.update()) / 2 <= 0.1
        problem.drift(0.02)


def test_sources_without_mini_batches_are_fresh_each_time():
    A = matrix_with(torch.linspace(5, 0.1, 30))
    tracker = Tracker(A)
    close(tracker.update().values, torch.tensor([5.0]), 5e-3)
    A.mul_(2)
    close(tracker.update().values, torch.tensor([10.0]), 5e-3)
    assert not tracker.history[-1].warm


def test_nothing_is_left_behind_by_an_update():
    problem = Moving()
    before = problem.w.detach().clone()
    tracker = Tracker(problem.source())
    tracker.update()
    tracker.update()
    assert torch.equal(problem.w, before)
    assert problem.w.grad is None


def test_dropout_and_batch_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)).double()
    data = Moving()
    batches = list(zip(data.x.split(50), data.y.split(50)))
    source = Hessian(lambda b: nn.functional.mse_loss(net(b[0])[:, 0], b[1]), net.parameters(), batches)
    tracker = Tracker(source)
    tracker.update()
    found = tracker.update()
    assert found.stopped == WARM  # the same masks on the same data: no change at all
    assert float(found.std) > 0


# ---- the history


def followed():
    problem = Moving()
    tracker = Tracker(problem.source(), 2)
    for i in range(3):
        tracker.update(rate=lambda: 0.1 / (i + 1), step=10 * i)  # noqa: B023
        problem.drift()
    return tracker


def test_the_history_has_the_rate_and_its_limit():
    tracker = followed()
    assert [m.step for m in tracker.history] == [0, 10, 20]
    assert [m.limit for m in tracker.history] == pytest.approx([20.0, 40.0, 60.0])
    columns = tracker.as_dict()
    assert columns["limit"] == pytest.approx([20.0, 40.0, 60.0])
    assert set(columns) >= {"value/1", "std/2", "low/1", "high/2", "products", "data_points", "warm", "rate", "step"}
    assert all(len(column) == 3 for column in columns.values())
    assert Tracker(torch.eye(3)).as_dict()["step"] == []


def test_it_is_shown_in_a_line_and_as_a_table():
    tracker = followed()
    assert "no update yet" in repr(Tracker(torch.eye(3)))
    assert "\n" not in repr(tracker)
    assert len(repr(tracker)) < 160
    assert tracker._repr_html_().count("<tr>") == 4


def test_it_is_drawn_with_the_limit():
    ax = followed().plot()
    assert [line.get_label() for line in ax.lines] == ["λ1, 95 % interval", "λ2, 95 % interval", "2/η"]
    again = Tracker(torch.eye(3)).plot(ax)
    assert again is ax


def test_it_pickles_without_its_loss():
    tracker = pickle.loads(pickle.dumps(followed()))
    assert len(tracker.history) == 3
    tracker.as_dict()
    with pytest.raises(ValueError, match="leaves its loss behind"):
        tracker.update()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Tracker("A"), TypeError, "source: expected a source"),
        (lambda: Tracker(torch.eye(3), 4), ValueError, "k: expected 1 to 3"),
        (lambda: Tracker(torch.eye(3), rtol=-1), ValueError, "rtol: expected"),
        (lambda: Tracker(torch.eye(3)).update(rate=0), ValueError, "rate: expected a number above 0"),
        (lambda: Tracker(torch.eye(3)).update(rate=math.nan), ValueError, "rate: expected a finite number"),
        (lambda: Tracker(torch.eye(3), generator=1), TypeError, "generator: expected"),
        (lambda: infhess.Tracker(torch.eye(3), memory=0), ValueError, "memory: expected 1 or more"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
