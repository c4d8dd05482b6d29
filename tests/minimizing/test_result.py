"""What comes back: bounds, rows, a picture, a progress bar."""

from __future__ import annotations

import math

import matplotlib as mpl
import pytest

from convex_cases import small
from infhess.minimizing.progress import Progress
from infhess.minimizing.stop_rule import Gap, extrapolated, idle, relative, slow, still_to_come
from infhess.problems.convex_problems import logistic
from minimizing_cases import minimized

mpl.use("Agg")


@pytest.fixture(scope="module", params=[300, 0], ids=["sgd", "newton alone"])
def result(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infhess.minimizing.choice.SGD_STEPS", (0, request.param))
        patch.setattr("infhess.minimizing.choice.SAVED", 1e6)
        return minimized(small(logistic, l2=1e-4, n=600), gap=1e-8)[1]


def test_bounds_grow_with_their_level(result):
    assert result.gap_upper(0.5) == pytest.approx(result.gap)
    assert result.gap_upper(0.5) < result.gap_upper(0.95) < result.gap_upper(0.999)
    for level in (0, 1, 2):
        with pytest.raises(ValueError, match="level"):
            result.gap_upper(level)


def test_rows_tell_of_every_pass(result):
    assert [row["pass"] for row in result.history] == list(range(1, result.passes + 1))
    first = "newton" if result.notes[1].startswith("0 steps of sgd") else "sgd"
    assert [row["phase"] for row in result.history] == [first] + ["newton"] * (result.passes - 1)
    assert result.data_points == 600 * result.passes
    for name in ("data_points", "products", "seconds"):
        values = [row[name] for row in result.history]
        assert values == sorted(values)
    assert result.history[-1]["gap"] == result.gap
    assert result.method in result.notes[0]


def test_the_picture_has_the_gap_and_its_bound(result):
    ax = result.plot()
    sgd = result.history[0]["phase"] == "sgd"
    assert len(ax.lines[0].get_xdata()) == result.passes - sgd
    assert [t.get_text() for t in ax.texts] == ["sgd"] * sgd
    assert ax.get_yscale() == "log"
    assert result.plot(ax) is ax


def test_the_progress_bar_fills(capsys):
    minimized(small(logistic, l2=1e-4), progress=True)
    assert "pass" in capsys.readouterr().out
    with Progress(1e-4) as bar:
        bar.show({"pass": 2, "gap": 1e-2, "gap_upper": 1e-2, "phase": "newton"})
        assert bar._bar.tasks[0].completed == pytest.approx(2)
        bar.show({"pass": 1, "gap": math.nan, "gap_upper": math.nan, "phase": "sgd"})


def test_relative_to_what_there_was_to_gain():
    assert relative(1.0, 2.0, 5.0) == 0.25
    assert relative(0.0, 2.0, 2.0) == 0.0
    assert relative(1e-9, 2.0, 2.0) == relative(math.inf, 2.0, 5.0) == relative(-1.0, 2.0, 5.0) == 1.0
    assert Gap(0.5, 10.0).upper(0.95) == 1.0


def test_a_geometric_series_is_extrapolated():
    """L = e^{−t}, whose Newton estimate is half of what is left."""
    now, before = math.exp(-3), math.exp(-2)
    assert extrapolated(before - now, before / 2, now / 2) == pytest.approx(now)
    assert extrapolated(1.0, 1.0, 1.0) == 0.0


def test_what_is_still_to_come_of_a_slow_descent():
    """L = c^t is what is left of it, to a constant that says nothing."""
    losses = [0.3 + 0.9**t for t in range(30)]
    assert still_to_come(losses) == pytest.approx(0.9**29)
    assert still_to_come(losses[:20]) == 0.0  # nothing to compare with yet
    assert still_to_come([1 - 0.01 * t for t in range(30)]) == pytest.approx(0.1 * 19)  # no contraction
    assert still_to_come([1.0] * 30) == 0.0


def rows(gaps, pool=100, cut=False, falls=0.0):
    """The loss falls by 1 in the first pass, by `falls` in each one after it."""
    losses = [2.0, *(1 - falls * i for i in range(len(gaps)))]
    return [{"phase": "newton", "gap": g, "pool": pool, "cut": cut, "loss": loss} for g, loss in zip(gaps, losses)]


def test_idle_near_rounding_and_far_from_it():
    assert idle(rows([1e-3, 1e-15, *[2e-15] * 4]), 1e-12)
    assert not idle(rows([1e-3, 1e-4, *[2e-4] * 4]), 1e-12)
    stuck = [1e-3, 1e-4, *[2e-4] * 20]
    assert idle(rows(stuck, falls=1e-14), 1e-12)
    assert not idle(rows(stuck, falls=1e-7), 1e-12)  # slow, but the loss falls
    assert not idle(rows([1e-3]) + rows([math.nan] * 30, cut=True), 1e-12)  # cuts come nearer to a step that holds


def test_slow_contraction_takes_two_passes_with_one_pool():
    assert slow(rows([1e-3, 5e-4, 3e-4]))
    assert not slow(rows([1e-3, 1e-4, 6e-5]))
    assert not slow(rows([1e-3]) + rows([5e-4, 3e-4], pool=400))
    assert not slow(rows([0.9, 0.5, 0.3]))  # far out a larger sample is no help
