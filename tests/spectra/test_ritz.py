"""Ritz values of averaged products: loops over the definition, what is resolved and converged, and when rounds end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from infhess.spectra.krylov import Krylov, mean_variance
from infhess.spectra.ritz import Ritz, ritz
from infhess.spectra.rounds import grown_data, why, width_of
from infhess.spectra.student import log_interval, two_sided
from util import F64, close, randn

N, P, CHUNKS = 6, 4, 8


def explored(points=64):
    """A Krylov space of noisy products, and its chunks' matrices kept by the side."""
    x = randn(points * 40, N) * torch.tensor([3.0, 2.0, 1.5, 1.0, 0.5, 0.2], dtype=F64)
    w = nn.Parameter(torch.zeros(N, dtype=F64))
    source = infhess.Hessian(lambda b: 0.5 * (b @ w).square().mean(), [w], x.split(points))
    krylov, rows = Krylov(randn(N, seed=1), P), []
    for j in range(P):
        assert krylov.multiply(source, points, 1) is (j < P - 1)  # no room for a further one
        rows.append(x[j * points : (j + 1) * points].split(points // CHUNKS))
    return krylov, [[r.mT @ r / len(r) for r in chunk] for chunk in rows]


def test_T_holds_the_products_of_each_chunk_with_every_direction():
    krylov, chunks = explored()
    Q = krylov.Q[:P]
    close(Q @ Q.mT, torch.eye(P, dtype=F64), 1e-10)
    for c in range(CHUNKS):
        expected = torch.stack([Q @ chunks[j][c] @ Q[j] for j in range(P)], 1)
        close(krylov.T[c], expected, 1e-10)
    close(krylov.weights, torch.full((P, CHUNKS), 1 / CHUNKS), 1e-12)
    assert krylov.points == [64] * P


def test_each_direction_is_the_mean_product_of_the_one_before_made_orthogonal():
    krylov, chunks = explored()
    Q = krylov.Q[:P]
    for j in range(P - 1):
        mean = sum(chunks[j]) / CHUNKS @ Q[j]
        rest = mean - Q[: j + 1].mT @ (Q[: j + 1] @ mean)
        close(Q[j + 1], rest / rest.norm(), 1e-9)
    ys = torch.stack([B @ Q[-1] for B in chunks[-1]])
    off = torch.eye(N, dtype=F64) - Q.mT @ Q
    noise = ((ys - ys.mean(0)) @ off).square().sum() / CHUNKS / (CHUNKS - 1)
    assert krylov.beta == pytest.approx(float((off @ ys.mean(0)).norm()))
    assert krylov.residual == pytest.approx(krylov.beta**2 - float(noise))


def test_values_errors_and_freedom_are_those_of_the_definition():
    krylov, _ = explored()
    found, T = ritz(krylov), krylov.T
    mean = T.mean(0)
    values, w = torch.linalg.eigh((mean + mean.mT) / 2)
    values, w = values.flip(0), w.flip(1)
    close(found.values, values, 1e-12)
    for i in range(P):
        x = torch.stack([torch.stack([w[j, i] * (w[:, i] @ T[c, :, j]) for j in range(P)]) for c in range(CHUNKS)])
        variances = x.var(0) / CHUNKS * krylov.population_factor
        assert float(x.sum(1).mean()) == pytest.approx(float(values[i]))
        assert float(found.se[i]) == pytest.approx(float(variances.sum()) ** 0.5)
        assert float(found.dof[i]) == pytest.approx(float(variances.sum() ** 2 / (variances**2 / 7).sum()))
        before = torch.stack(
            [
                torch.stack([w[j, i] * (2 * w[:j, i] @ T[c, :j, j] + w[j, i] * T[c, j, j]) for j in range(P)])
                for c in range(CHUNKS)
            ]
        )
        assert float(found.causal[i]) == pytest.approx(float(before.sum(1).mean()))
        assert float(found.causal_se[i]) == pytest.approx(
            float((before.var(0) / CHUNKS * krylov.population_factor).sum()) ** 0.5
        )
    assert found.rounding == pytest.approx(4 * torch.finfo(F64).eps * float(values[0]))
    following = torch.cat([values[1:], values[-1:] - values[:1]])
    gap = torch.stack([values - following, 0.05 * values, 2 * found.se]).amax(0)
    close(found.truncation, w[-1].square() * max(krylov.residual, 0.0) / gap, 1e-9)


def made(**changes):
    """Values 10 and 4 with standard errors 1 and 0.5, of which the first is 3 above its causal part."""
    pair = {
        "values": [10.0, 4.0], "se": [1.0, 0.5], "dof": [7.0, 9.0], "truncation": [0.05, 0.2], "causal": [7.0, 3.5],
        "causal_se": [1.5, 0.6],
    }  # fmt: skip
    tensors = {name: torch.tensor(value, dtype=F64) for name, value in {**pair, **changes}.items()}
    return Ritz(**tensors, weights=torch.eye(2, dtype=F64), rounding=0.001)


def test_a_value_is_resolved_within_two_standard_errors_of_its_causal_part():
    assert made().resolved.tolist() == [False, True]
    assert made(causal=[8.0 - 0.009, 3.0 - 0.011]).resolved.tolist() == [True, False]  # ten times rounding beyond


@pytest.mark.parametrize(("truncation", "k", "converged"), [(0.1, 2, True), (0.1, 1, True), (0.102, 1, False)])
def test_values_have_converged_below_a_tenth_of_their_error(truncation, k, converged):
    assert made(truncation=[truncation, 0.05]).converged(k) is converged
    assert made(truncation=[0.1, 0.052]).converged(2) is False
    assert made(truncation=[0.1, 0.052]).converged(1) is True


@pytest.mark.parametrize(("truncation", "converged"), [(0.0209, True), (0.0211, False)])
def test_or_below_two_thousandths_of_the_value(truncation, converged):
    assert made(se=[math.nan, math.nan], truncation=[truncation, 0.0]).converged(1) is converged


def test_intervals_and_bounds():
    r = made()
    t = two_sided(0.9, r.dof)
    low, high = log_interval(r.values, t * r.se)
    found = r.interval(0.9)
    down = min(float(low[0]), 7.0 - float(t[0]) * 1.5)
    close(found[0], torch.tensor([down - 0.001, float(low[1]) - 0.001], dtype=F64), 1e-12)
    close(found[1], high + r.truncation + 0.001, 1e-12)
    close(r.upper(0.95), high + r.truncation + 0.001, 1e-12)
    close(r.upper(0.05), low + r.truncation + 0.001, 1e-12)


def test_the_width_is_that_of_the_widest_relative_to_its_value_or_a_thousandth_of_the_largest():
    r = made(values=[10.0, 1e-4], se=[0.1, 0.01], causal=[10.0, 1e-4], truncation=[0.0, 0.0])
    low, high = r.interval(0.95)
    half = (high - low) / 2
    assert width_of(r, 1) == pytest.approx(float(half[0]) / 10)
    assert width_of(r, 2) == pytest.approx(float(half[1]) / 0.01)


def test_the_variance_of_a_weighted_mean():
    d, w = torch.tensor([1.0, 4.0, 9.0], dtype=F64), torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    close(mean_variance(d, w), torch.tensor((0.25 * 1 + 0.09 * 4 + 0.04 * 9) / (1 - 0.38), dtype=F64), 1e-12)


@pytest.mark.parametrize(
    ("width", "rtol", "times"),
    [(0.2, 0.1, 5.2), (0.1, 0.1, 2.0), (0.4, 0.1, 20.8), (9.0, 0.1, 32.0), (0.2, None, 0), (math.nan, 0.1, 0)],
)
def test_data_grows_as_the_width_asks_for_between_2_and_32_times(width, rtol, times):
    assert grown_data(1000, width, rtol) == pytest.approx(1000 * times)


class Cost:
    products, data_points = 50, 900


def test_why_rounds_end():
    def reason(width=0.2, rtol=0.1, everything=False, budget=1000, coming=100):
        return why(width, rtol, everything, Cost, budget, coming)

    assert reason(rtol=None) == "one round"
    assert reason(width=math.nan) == "noise unknown"
    assert reason(width=0.1) == "tolerance"
    assert reason(everything=True) == "all data"
    assert reason() == "goes on"
    assert reason(coming=101) == "budget"
