"""The density of eigenvalues: exact where it can be, bounds that hold, and what it says of its data."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from torch import nn

import infhess
from infhess import Hessian, Products, density
from infhess.problems import CURVATURE
from small_data import gaussian_source
from util import F64, close, fast_and_long, randn, spectrum


def step(values, x):
    return (values[None] <= x[:, None]).double().mean(1)


def places(values):
    """Even points within the range, and points at which every share of the eigenvalues lies below."""
    even = torch.linspace(float(values.min()), float(values.max()), 22, dtype=F64)[1:-1]
    return torch.cat([even, torch.quantile(values, torch.linspace(0.025, 0.975, 20, dtype=F64))])


SPECTRA = {
    "even": torch.linspace(0, 1, 1000, dtype=F64),
    "orders of magnitude": torch.logspace(2, -4, 800, dtype=F64),
    "as nets have": torch.cat([
        torch.tensor([30.0, 18.0, 11.0, 7.0, 4.0], dtype=F64),
        0.02 + torch.distributions.Laplace(0.0, 0.05).icdf(torch.linspace(0.001, 0.999, 800, dtype=F64)),
        torch.zeros(200, dtype=F64),
    ]),
}  # fmt: skip


def coverage(values, trials, **options):
    """Mean share of places that the intervals cover, and share of trials in which the joint band covers all."""
    x, hits, joint = places(values), [], []
    for seed in range(trials):
        # Gaussian starts see no difference between a matrix and its eigenvalues on a diagonal.
        found = density(torch.diag(values), generator=torch.Generator().manual_seed(seed), **options)
        for seen, band in ((hits, found.interval(x)), (joint, found.interval(x, joint=True))):
            seen.append((band[0] <= step(values, x)) & (step(values, x) <= band[1]))
    return float(torch.stack(hits).double().mean()), float(torch.stack(joint).all(1).double().mean())


MANY = 50  # `infhess bench curvature --density` has 200, and its rows are in benchmarks/curvature-density


@fast_and_long("trials", 4, MANY)
@pytest.mark.parametrize("name", SPECTRA)
def test_intervals_cover_the_step_function(name, trials):
    each, joint = coverage(SPECTRA[name], trials)
    assert (0.93 if trials == MANY else 0.85) <= each <= (0.985 if trials == MANY else 1.0)
    assert joint >= 0.93 - 0.2 / trials


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "trials"), [("digits-mlp", MANY), ("mlp/trained", 200)]
)  # the bench has the first alone
def test_intervals_cover_the_spectra_of_nets(name, trials):
    """Of the exact matrix over all the data: what `density` works with where it reads all of it."""
    if name.startswith("mlp") and not os.environ.get("INFHESS_DATA"):
        pytest.skip("MNIST is not there")
    each, joint = coverage(torch.linalg.eigvalsh(CURVATURE[name]().dense()), trials)
    assert 0.93 <= each <= 0.985
    assert joint >= 0.93


@fast_and_long("trials", 2, 20)
def test_samples_of_a_net_cover_its_spectrum(trials):
    """What was not read is covered, and bounds are not much wider than those from all of the data."""
    problem = CURVATURE["digits-mlp"]()
    values, hits = torch.linalg.eigvalsh(problem.dense()), []
    for seed in range(trials):
        g = torch.Generator().manual_seed(seed)
        found = density(problem.source(128, g), points=512, starts=1, directions=48, generator=g)
        low, high = found.interval(places(values))
        hits.append((low <= step(values, places(values))) & (step(values, places(values)) <= high))
        assert float((high - low).mean()) / 2 < 0.09
    assert float(torch.stack(hits).double().mean()) >= 0.93


def test_data_without_end_is_bounded_in_the_worst_case():
    """Where nobody knows how much is unread, Weyl's inequality: wider bounds, that hold."""
    problem = CURVATURE["digits-mlp"]()
    values, g = torch.linalg.eigvalsh(problem.dense()), torch.Generator().manual_seed(0)
    sources = problem.source(128, g), problem.source(128, g)
    sources[1].stream.population = None
    widths = []
    for source in sources:
        low, high = density(source, points=512, starts=1, directions=48, generator=g).interval(places(values))
        widths.append(float((high - low).mean()))
    inside = (low <= step(values, places(values))) & (step(values, places(values)) <= high)
    assert float(inside.double().mean()) >= 0.93
    assert widths[1] > 1.5 * widths[0]


def test_all_eigenvalues_of_a_small_matrix_are_exact():
    values = torch.tensor([-2.0, 0.0, 0.0, 1.0, 1.0, 5.0], dtype=F64)
    found = density(spectrum(values))
    x = torch.tensor([-3.0, -1.0, 0.5, 3.0, 6.0], dtype=F64)
    for shares in (found.cdf(x), *found.interval(x)):
        close(shares, step(values, x), atol=1e-6)
    assert found.negative.interval() == pytest.approx((1 / 6, 1 / 6), abs=1e-6)
    assert found.near_zero.value == pytest.approx(1 / 3)
    assert (found.stopped, found.products) == ("all data", 6 + 2)
    assert float(torch.trapezoid(found.values, found.grid)) == pytest.approx(1.0, abs=0.02)  # every peak is on the grid


def test_numbers_and_shapes_in_as_they_come_out():
    found = density(torch.diag(torch.arange(1.0, 9.0)))
    assert found.cdf(4.5).shape == ()
    assert float(found.cdf(4)) == pytest.approx(float(found.cdf(4.0)))
    assert found.cdf(torch.ones(2, 3)).shape == (2, 3)
    assert [b.shape for b in found.interval(torch.ones(2, 3))] == [(2, 3)] * 2
    with pytest.raises(ValueError, match="level"):
        found.interval(1.0, 2.0)


def net(n=2400, seed=0):
    """A small net on n points in batches of 128: its source, and the exact eigenvalues over all the data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, x, y = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double(), randn(n, 6), randn(n, 3)
    params = list(model.parameters())

    def loss(b):
        return nn.functional.mse_loss(model(b[0]), b[1])

    def source():
        return Hessian(loss, params, list(zip(x.split(128), y.split(128))))

    whole = source().at((x, y), 0)
    H = whole.block(torch.eye(source().size, dtype=F64))
    return source, torch.linalg.eigvalsh((H + H.mT) / 2)


def test_a_sample_covers_all_the_data_and_all_of_it_is_exact():
    source, values = net()
    x = places(values)
    part, whole = density(source(), points=512, starts=1, directions=32), density(source(), starts=1, directions=32)
    assert part.points == part.data_points == 512
    assert part.data_error > 0
    assert part.stopped == "points"
    assert (whole.stopped, whole.points, whole.data_error) == ("all data", 2400, 0.0)
    for found in (part, whole):
        low, high = found.interval(x, joint=True)
        assert bool(((low <= step(values, x)) & (step(values, x) <= high)).all())
    assert whole.products < 2 * 19 * 33 + 32


def test_a_sample_of_few_parameters_says_something():
    X = randn(4000, 12) * torch.linspace(3, 0.1, 12, dtype=F64)
    w = torch.zeros(12, dtype=F64, requires_grad=True)
    source = Hessian(lambda b: (b @ w).square().mean() / 2, [w], list(X.split(100)))
    found, values = density(source, points=2000), torch.linalg.eigvalsh(X.mT @ X / 4000)
    x = (values[1:] + values[:-1]) / 2
    low, high = found.interval(x)
    assert bool(((low <= step(values, x)) & (step(values, x) <= high)).all())
    assert float((high - low).mean()) < 0.4
    assert float((high - low)[-1]) < 1e-6  # between the two largest, far beyond the error


def test_the_tolerance_ends_the_reading_and_so_does_the_budget():
    source, _ = net()
    assert density(source(), atol=0.99, directions=16, starts=1).stopped == "tolerance"
    found = density(source(), budget=20000, directions=16, starts=1)
    assert (found.stopped, found.points) == ("budget", 1024)


def test_noise_that_does_not_repeat_is_named():
    with pytest.raises(ValueError, match="expected products that repeat"):
        density(gaussian_source()[0])
    A = spectrum([3.0, 1.0, 0.5])
    assert density(Products(lambda s: A @ s, None, 3)).stopped == "all data"


def test_one_batch_that_is_not_all_says_nothing_of_its_noise():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    source = Hessian(lambda b: model(b).square().mean(), model.parameters(), [randn(64, 3)])
    with pytest.warns(UserWarning, match="nothing is known of the noise"):
        found = density(source)
    assert bool(torch.isnan(found.interval(0.0)[0]))


def test_the_density_is_one_and_smooths_no_more_than_it_must():
    values = SPECTRA["as nets have"]
    found = density(torch.diag(values))
    assert float(torch.trapezoid(found.values, found.grid)) == pytest.approx(1.0, abs=0.02)
    height = found.values[(found.grid - 30.0).abs().argmin()]  # a Gaussian of an eigenvalue's weight, ± 3 at the finest
    assert float(height) > 1e-2 / len(values)


def test_it_is_seeded_pickles_and_plots():
    found, again = (density(torch.diag(SPECTRA["even"]), directions=16) for _ in range(2))
    assert torch.equal(found.values, again.values)
    kept = pickle.loads(pickle.dumps(found))
    assert torch.equal(kept.cdf(found.grid[:3]), found.cdf(found.grid[:3]))
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    assert found.plot().get_ylabel() == "density of eigenvalues"
    ax = pyplot.subplots()[1]
    assert found.plot(ax, cdf=True) is ax
    pyplot.close("all")


def test_bad_input():
    for options, message in (({"atol": 0}, "atol"), ({"starts": 0}, "starts"), ({"zero": -1.0}, "zero")):
        with pytest.raises(ValueError, match=message):
            density(torch.eye(3), **options)
    for ask in (density(torch.eye(3)).cdf, density(torch.eye(3)).interval):
        with pytest.raises(ValueError, match="x: expected numbers, got NaN"):
            ask(torch.tensor([1.0, torch.nan]))


def test_batch_norm_is_never_cut():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    sizes, x = set(), randn(80, 3)

    def loss(b):
        sizes.add(len(b))
        return model(b).square().mean()

    infhess.density(Hessian(loss, model.parameters(), list(x.split(16))), points=20)
    assert sizes == {16}
