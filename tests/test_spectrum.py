"""Eigenvalues with intervals: exact where the data are, covering where they are sampled, honest where they cannot say."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess
from infhess import GaussNewton, Hessian, Products, largest, spectrum, trace
from infhess.bench import coverage
from infhess.problems import CURVATURE
from infhess.problems.shuffled import Shuffled
from infhess.spectrum.student import hall, log_interval, skewed_mean, two_sided
from util import F64, close, randn
from util import spectrum as matrix_with

VALUES = torch.cat([torch.tensor([30.0, 18.0, 11.0, 7.0, 4.0]), torch.linspace(1, 0.1, 55)]).double()


def gaussian_source(batch=16, seed=0, values=VALUES, heavy=None):
    """Products with XᵀX/batch for fresh Gaussian rows of covariance diag(values), and the exact matrix."""
    g = torch.Generator().manual_seed(seed)

    def product(s):
        X = torch.randn(batch, len(values), generator=g, dtype=F64) * values.sqrt()
        return X.mT @ (X @ s) / batch

    return Products(product, None, len(values)), g


# ---- the pieces


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_student_quantiles_against_scipy(level):
    dof = torch.tensor([1.0, 2.0, 2.7, 7.0, 31.0, 200.0, 1e5], dtype=F64)
    close(two_sided(level, dof), scipy.stats.t.ppf((1 + level) / 2, dof.numpy()), 1e-4)


def test_interval_functions_at_their_limits():
    x = torch.tensor([1.7, -0.4], dtype=F64)
    close(hall(x, torch.zeros(2, dtype=F64)), x, 1e-12)
    close(hall(x, torch.full((2,), 1e-5, dtype=F64)), x, 1e-4)
    low, high = log_interval(
        torch.tensor([2.0, -2.0, 0.0, 1e-9], dtype=F64), torch.tensor([0.1, 0.1, 1.0, 1.0], dtype=F64)
    )
    close(low[:2], torch.tensor([2 * np.exp(-0.05), -2 * np.exp(0.05)]), 1e-12)
    close(high[:2], torch.tensor([2 * np.exp(0.05), -2 * np.exp(-0.05)]), 1e-12)
    assert bool((low[2:] < -0.4).all())
    assert bool((high[2:] > 1).all())
    assert bool((high[2:] < 4).all())


def test_the_interval_of_a_skewed_mean_covers():
    """Exponential samples of 32, 4,000 times: 95 % intervals cover 93 to 97.5 %; the plain t interval falls short."""
    x = torch.distributions.Exponential(torch.tensor(1.0, dtype=F64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sample = x.sample((32, 4000))
    low, high = skewed_mean(sample, 0.95)
    covered = float(((low <= 1) & (high >= 1)).double().mean())
    half = float(scipy.stats.t.ppf(0.975, 31)) * sample.std(0) / 32**0.5
    plain = float(((sample.mean(0) - half <= 1) & (sample.mean(0) + half >= 1)).double().mean())
    assert 0.93 <= covered <= 0.975
    assert plain < covered


# ---- exact matrices


def test_an_exact_matrix_has_its_eigenvalues():
    A = matrix_with(VALUES)
    found = spectrum(A, 5)
    close(found.values, VALUES[:5], 2e-3)
    low, high = found.interval()
    assert bool(((low <= VALUES[:5] * (1 + 1e-9)) & (VALUES[:5] <= high * (1 + 1e-9))).all())
    assert bool(found.resolved.all())
    close((found.vectors.mT @ found.vectors), torch.eye(5), 1e-10)


def test_all_the_data_at_once_is_exact():
    problem = CURVATURE["digits-logistic"]()
    truth = torch.linalg.eigvalsh(problem.dense()).flip(0)[:3]
    source = Hessian(
        lambda b: problem.loss(problem.model(w, b[0]), b[1]),
        [w := problem.w.clone().requires_grad_()],
        [(problem.x, problem.y)],
    )
    found = spectrum(source, 3, 1e-2)
    close(found.values, truth, 2e-3)
    assert float(found.std.max()) == 0.0
    assert found.stopped in ("tolerance", "all data")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_matrices(size):
    A = torch.diag(torch.arange(1.0, size + 1)).double()
    close(spectrum(A, size).values, torch.arange(size, 0, -1).double(), 1e-9)
    close(largest(A).value, float(size), 1e-9)


def test_low_rank_and_zero_matrices_end():
    A = torch.diag(torch.tensor([3.0, 1.0] + [0.0] * 20)).double()
    found = spectrum(A, 2)
    close(found.values, torch.tensor([3.0, 1.0]), 1e-6)
    assert bool((spectrum(torch.zeros(9, 9, dtype=F64), 1).values == 0).all())


def test_negative_curvature_is_reported():
    A = torch.diag(torch.tensor([2.0, 1.0, -7.0] + [0.1] * 30)).double()
    found = spectrum(A, 2)
    close(found.lowest[0], -7.0, 1e-3)
    close(found.values, torch.tensor([2.0, 1.0]), 1e-2)


# ---- coverage, in small: fails when intervals are half or twice as long


def covered(scale, trials=150):
    hits = []
    for seed in range(trials):
        source, g = gaussian_source(seed=1000 + seed)
        found = spectrum(source, 5, generator=g)
        errors = dataclasses.replace(found._ritz, se=scale * found._ritz.se)
        low, high = errors.interval(0.95)
        hits.append((low[:5] <= VALUES[:5]) & (VALUES[:5] <= high[:5]))
    return float(torch.stack(hits).double().mean())


@pytest.fixture(scope="module")
def shares():
    return {scale: covered(scale) for scale in (0.5, 1.0, 2.0)}


def test_95_percent_intervals_cover_95_percent(shares):
    assert 0.93 <= shares[1.0] <= 0.985


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_intervals_half_or_twice_as_long_would_not(shares, scale):
    assert not 0.93 <= shares[scale] <= 0.985


REAL = "mnist-3v5/start" if os.environ.get("INFHESS_DATA") else "digits-logistic"


def test_coverage_on_real_data():
    """MNIST where the data are, scikit-learn's digits where not: 40 trials of five, in double and in single precision."""
    for dtype in ("float64", "float32"):
        share = coverage.eigenvalues(REAL, 64, 7, 40, dtype)[0].metric
        assert 0.91 <= share <= 1.0, dtype


def test_curvature_along_the_vectors_needs_fresh_data_and_covers():
    row = coverage.along("digits-logistic", 64, 256, 7, 40)[0]
    assert 0.9 <= row.metric <= 1.0
    assert row.products == 5 * 32
    assert row.data_points == 256


def test_a_flat_spectrum_is_flagged():
    assert coverage.flat(64, 7, 20)[0].metric >= 0.95


def test_the_trace_and_the_upper_bound_cover():
    rows = coverage.scalars("digits-logistic", 64, 7, 40)
    assert rows[0].metric >= 0.88
    assert rows[1].metric >= 0.95


# ---- the stop rule


def test_it_goes_on_until_the_tolerance_is_met():
    problem = CURVATURE["digits-mlp"]()
    g = torch.Generator().manual_seed(1)
    rounds = list(infhess.spectrum_rounds(problem.source(32, g), 3, 0.03, generator=g))
    assert len(rounds) > 1
    assert [r.stopped for r in rounds[:-1]] == ["goes on"] * (len(rounds) - 1)
    last = rounds[-1]
    low, high = last.interval(0.95)
    assert last.stopped in ("tolerance", "all data")
    assert float(((high - low) / 2 / last.values.abs()).max()) <= 0.03 or last.stopped == "all data"
    assert last.rounds == len(rounds)


def test_it_ends_with_the_budget_and_says_so():
    problem = CURVATURE["digits-mlp"]()
    g = torch.Generator().manual_seed(1)
    found = spectrum(problem.source(32, g), 3, 1e-3, budget=5000, generator=g)
    assert found.stopped == "budget"
    assert spectrum(gaussian_source()[0], 3).stopped == "one round"
    assert spectrum(gaussian_source()[0], 3, 1e-2, budget=3000).stopped == "budget"


# ---- counts, determinism, forms


class CountedBatches:
    """Counts by itself what is read."""

    def __init__(self, data, size):
        self.loader, self.read = Shuffled(data, size, torch.Generator().manual_seed(0)), 0

    def __iter__(self):
        for batch in self.loader:
            self.read += len(batch[0])
            yield batch


@pytest.mark.parametrize("call", [lambda s: spectrum(s, 4), lambda s: largest(s), lambda s: trace(s, probes=9)])
def test_the_counts_are_those_of_a_source_that_counts_by_itself(call):
    problem = CURVATURE["digits-logistic"]()
    w, batches, calls = problem.w.clone().requires_grad_(), CountedBatches((problem.x, problem.y), 48), []

    def loss(b):
        calls.append(len(b[0]))
        return problem.loss(problem.model(w, b[0]), b[1])

    source = Hessian(loss, [w], batches)
    found = call(source)
    assert found.data_points == source.data_points == batches.read
    assert found.products == source.products == len(calls)  # one product a graph here
    assert sum(calls) == batches.read


def test_the_same_seed_gives_the_same_numbers():
    def once():
        problem, g = CURVATURE["digits-mlp"](), torch.Generator().manual_seed(3)
        return spectrum(problem.source(32, g), 3, generator=g)

    first, again = once(), once()
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.vectors, again.vectors)


def test_float32_agrees_with_float64():
    problem = CURVATURE["digits-logistic"]()
    single, double = (
        spectrum(problem.source(32, g := torch.Generator().manual_seed(3), dtype), 3, generator=g)
        for dtype in (torch.float32, F64)
    )
    assert single.values.dtype == torch.float32
    assert single.interval()[0].dtype == torch.float32
    close(single.values, double.values, 0.2)


def test_a_loss_that_is_not_a_mean_over_points_is_not_sliced():
    sizes, w = [], torch.zeros(6, dtype=F64, requires_grad=True)

    def loss(x):
        sizes.append(len(x))
        return (x @ w).square().sum()

    source = Hessian(loss, [w], DataLoader(randn(64, 6), batch_size=16), split=False)
    found = spectrum(source, 2)
    assert set(sizes) == {16}
    assert found.products == len(sizes)


def test_gauss_newton_and_named_parameters():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    data = TensorDataset(randn(256, 4), torch.randint(3, (256,), generator=torch.Generator().manual_seed(0)))
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0))
    g = GaussNewton(model, nn.functional.cross_entropy, list(model[2].parameters()), loader)
    found = spectrum(g, 3)
    assert found.vectors.shape == (18, 3)
    assert float(found.lowest[0]) > -0.02 * float(found.values[0])
    assert infhess.infer(g, 6).eigh(2).values.shape == (2,)


def test_joint_intervals_are_wider_and_levels_order():
    found = spectrum(gaussian_source()[0], 5)
    (a, b), (c, d), (e, f) = found.interval(0.8), found.interval(0.95), found.interval(0.95, joint=True)
    assert bool(((e <= c) & (c <= a) & (b <= d) & (d <= f)).all())
    top = largest(gaussian_source()[0])
    assert top.upper(0.5) < top.upper(0.9) < top.upper(0.99)
    total = trace(gaussian_source()[0])
    assert total.upper(0.6) < total.upper(0.99)
    assert total.interval(0.5)[0] > total.interval(0.99)[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda A: spectrum(A, 0), ValueError, "k: expected 1 to 4"),
        (lambda A: spectrum(A, 5), ValueError, "k: expected 1 to 4"),
        (lambda A: spectrum(A, 1, -0.1), ValueError, "rtol: expected a number above 0"),
        (lambda A: spectrum(A, 1, budget=0), ValueError, "budget: expected 1 or more"),
        (lambda A: spectrum("A"), TypeError, "source: expected a source"),
        (lambda A: spectrum(A, 1).interval(1.5), ValueError, "level: expected a number between 0 and 1"),
        (lambda A: spectrum(A, 1).interval(0), ValueError, "level: expected a number above 0"),
        (lambda A: spectrum(A, 1).along([A]), TypeError, "along: expected fresh batches, or a source"),
        (lambda A: trace(A, probes=2), ValueError, "probes: expected 4 or more"),
        (lambda A: spectrum(A * float("nan"), 1), ValueError, "product 0 holds NaN or infinity"),
        (lambda A: trace(A * float("inf")), ValueError, "NaN or infinity"),
        (lambda A: spectrum(A, 1, generator=1), TypeError, "generator: expected a torch.Generator"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.eye(4, dtype=F64))


# ---- the command


def command(*arguments, cwd, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "infhess", *arguments], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_command_on_the_example_and_on_a_file(tmp_path):
    out = command("spectrum", "infhess.problems.example:small_net", "--k", "3", cwd=tmp_path)
    assert "stands out" in out.stdout
    numbers = json.loads((tmp_path / "runs/spectrum/spectrum.json").read_text())
    assert len(numbers["values"]) == 3
    assert all(low <= v <= high for low, v, high in zip(numbers["low"], numbers["values"], numbers["high"]))
    assert (tmp_path / "runs/spectrum/spectrum.png").read_bytes().startswith(b"\x89PNG")
    assert "earlier result" in command("spectrum", "infhess.problems.example:small_net", cwd=tmp_path, status=2).stderr
    command("spectrum", "infhess.problems.example:small_net", "--k", "2", "--fresh", cwd=tmp_path)
    kept = sorted(p.name for p in (tmp_path / "runs/spectrum").iterdir())
    assert kept == ["rows.1.csv", "rows.csv", "spectrum.1.json", "spectrum.1.png", "spectrum.json", "spectrum.png"]
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def quadratic():\n"
        "    w = torch.zeros(3, requires_grad=True)\n"
        "    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 2.0, 1.0])\n"
        "    return lambda b: (b @ w).square().mean() / 2, [w], list(x.split(50))\n"
    )
    command("spectrum", "mine:quadratic", "--k", "2", "--out", "a", cwd=tmp_path)
    command("spectrum", "mine.py:quadratic", "--k", "2", "--out", "b", cwd=tmp_path)
    a, b = (json.loads((tmp_path / f / "spectrum.json").read_text())["values"] for f in "ab")
    assert a == b
    assert 7 < a[0] < 12


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "expected MODULE:FUNCTION"),
        ("no_such_module:f", "no module named no_such_module"),
        ("absent.py:f", "no such file"),
        ("infhess.problems.example:absent", "has no function absent"),
        ("math:pi", "has no function pi"),
        ("time:time", "must return"),
        ("broken.py:raises", "failed with KeyError"),
        ("broken.py:leaves", "failed with SystemExit"),
        ("broken.py:two", "it returned 2 things"),
        ("syntax.py:f", "cannot be imported: SyntaxError"),
    ],
)
def test_the_command_names_what_is_wrong(target, message, tmp_path):
    (tmp_path / "helper.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text(
        "from __future__ import annotations\nimport dataclasses, sys, helper\n"
        "@dataclasses.dataclass\nclass A:\n    x: int = 0\n"
        "def raises(): return {}['missing']\n"
        "def leaves(): sys.exit(0)\n"
        "def two(): return 1, 2\n"
    )
    (tmp_path / "syntax.py").write_text("def f(:\n")
    error = command("spectrum", target, cwd=tmp_path, status=2).stderr
    assert message in error
    assert "Traceback" not in error
