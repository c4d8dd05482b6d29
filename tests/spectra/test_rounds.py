"""Rounds: where a tolerance would read most of the data anyway, Lanczos on all of it takes over and is exact."""

from __future__ import annotations

import pytest
import torch

from infhess import Hessian, spectrum, spectrum_rounds
from infhess.spectra.rounds import grown_data
from small_data import loader, problem
from util import close


@pytest.mark.parametrize(
    ("width", "population", "data"),
    [
        (0.2, None, 5200),  # 1.3 · 2² as much
        (0.2, 100_000, 5200),
        (0.2, 10_401, 5200),
        (0.2, 10_400, 10_400),  # half of all: all of it
        (9.0, 10**7, 10**7),  # 10,530 times as much is asked for, more than there is
        (9.0, 10**9, 32_000),
        (0.2, 1000, 5200),  # all was read already
    ],
)
def test_more_data_or_all_of_it(width, population, data):
    assert grown_data(1000, width, 0.1, population) == pytest.approx(data)


def test_a_small_tolerance_goes_to_all_the_data_at_once_and_is_exact():
    loss, w, data, truth = problem(3000)
    rounds = list(spectrum_rounds(Hessian(loss, [w], loader(data, 50)), 3, 1e-3))
    assert len(rounds) == 2
    last = rounds[-1]
    assert float(last.std.max()) == 0.0
    assert last.stopped == "tolerance"
    close(last.values, truth, 1e-3)
    low, high = last.interval()
    assert bool(((low <= truth * (1 + 1e-12)) & (truth * (1 - 1e-12) <= high)).all())
    directions = len(last._ritz.values)
    assert last.data_points - rounds[0].data_points == 3000  # read once, and held
    assert last.products - rounds[0].products == 60 * directions


def test_the_directions_that_a_user_asks_for_are_not_exceeded():
    loss, w, data, _ = problem(300)
    found = spectrum(Hessian(loss, [w], [data]), 2, 1e-9, directions=4)
    assert len(found._ritz.values) == 4
    assert torch.isfinite(found.values).all()
