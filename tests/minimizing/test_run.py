"""What ends a run, and what is left after it: bad input, one pass, interruptions, losses that are not convex or not bounded."""

from __future__ import annotations

import math
import signal

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import infhess
from convex_cases import small
from infhess.problems.convex_problems import logistic, squares
from minimizing_cases import batches_of, minimized


def run(problem, size=50, **options):
    model = problem.model()
    return model, infhess.minimize(problem.loss(model), model.parameters(), batches_of(problem, size), **options)


# ---- bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gap": 0.0}, ValueError, "gap: expected a number above 0"),
        ({"gap": math.nan}, ValueError, "gap: expected a finite number"),
        ({"gap": "1e-6"}, TypeError, "gap: expected one number"),
        ({"passes": 0}, ValueError, "passes: expected 1 or more"),
        ({"passes": 2.5}, TypeError, "passes: expected a whole number"),
        ({"memory": -1}, ValueError, "memory"),
        ({"callback": 3}, TypeError, "callback: expected a callable"),
        ({"generator": 0}, TypeError, "generator: expected a torch.Generator"),
        ({"checkpoint": "nowhere/run"}, FileNotFoundError, "there is no such folder"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        run(small(squares), **options)


def test_bad_arguments():
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(TypeError, match="loss: expected a callable"):
        infhess.minimize(3, [w], [torch.eye(2)])
    with pytest.raises(TypeError, match="batches: expected an iterable of batches"):
        infhess.minimize(lambda x: (x @ w).sum(), [w], torch.eye(2))
    with pytest.raises(ValueError, match="batches: expected at least one batch"):
        infhess.minimize(lambda x: (x @ w).sum(), [w], [])
    with pytest.raises(ValueError, match="params: expected at least one parameter"):
        infhess.minimize(lambda x: x.sum(), [], [torch.eye(2)])
    with pytest.raises(TypeError, match="loss: expected a scalar tensor"):
        infhess.minimize(lambda x: x @ w, [w], [torch.eye(2)])
    with pytest.raises(ValueError, match="does not depend on any parameter"):
        infhess.minimize(lambda x: (x @ w.detach()).sum(), [w], [torch.eye(2)])
    assert not w.any()


def test_a_loss_that_is_not_finite_at_the_start():
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"at the start, .* the data of batch 1 is finite, but its loss is not"):
        infhess.minimize(lambda x: (x @ w).log().sum(), [w], [torch.eye(2)])
    assert not w.any()


def test_data_that_is_not_finite_leaves_the_parameters_as_they_were():
    x = torch.ones(8, 2)
    x[7, 0] = math.nan
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"batch 4 has NaN or infinity in its data, at 1 of its 2 points, .* index 1"):
        infhess.minimize(lambda x: (x @ w).square().mean(), [w], list(x.split(2)))
    assert torch.isfinite(w).all()


def test_data_that_is_not_finite_in_the_first_batch():
    x = torch.ones(8, 2)
    x[1, 0] = math.inf
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"batch 1 has NaN or infinity in its data, at 1 of its 4 points, .* index 1"):
        infhess.minimize(lambda x: (x @ w).square().mean(), [w], list(x.split(4)))
    assert torch.equal(w.detach(), torch.ones(2))


def test_a_wall_within_the_way():
    """−log of a barrier: Newton's step may leave where the loss is defined, and is cut."""
    x = torch.rand(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    w = torch.tensor([100.0], dtype=torch.float64, requires_grad=True)
    result = infhess.minimize(lambda b: (b[:, 0] * w - torch.log(w)).mean(), [w], list(x.split(20)), gap=1e-10)
    assert result.stopped == "gap"
    assert w.item() == pytest.approx(float(1 / x.mean()), rel=1e-4)  # a gap of 1e-10 of what there was


# ---- small and strange data


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_data(n, dtype):
    x = torch.arange(1.0, n + 1, dtype=dtype)
    w = torch.zeros(1, dtype=dtype, requires_grad=True)
    result = infhess.minimize(lambda b: (b - w).square().mean(), [w], [x[i : i + 1] for i in range(n)])
    assert w.item() == pytest.approx(float(x.mean()), rel=1e-3)
    assert result.stopped == "gap"


def test_started_at_the_optimum():
    w = torch.full((1,), 2.0, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    result = infhess.minimize(lambda b: (b - w).square().mean(), [w], [x], passes=20)
    assert result.stopped in ("gap", "precision")
    assert w.item() == pytest.approx(2.0, abs=1e-7)


def test_classes_that_can_be_told_apart_have_no_minimum():
    """Without l2 the loss falls for ever: the gap to its infimum, zero, is reached all the same."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=g, dtype=torch.float64)
    y = torch.sign(x[:, 0])
    x = x + 0.5 * y[:, None] * torch.tensor([1.0, 0, 0], dtype=torch.float64)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def loss(b):
        return torch.nn.functional.softplus(-b[1] * (b[0] @ w)).mean()

    result = infhess.minimize(loss, [w], list(zip(x.split(40), y.split(40))), gap=1e-6)
    assert result.stopped == "gap"
    assert loss((x, y)).item() <= 1e-6 * math.log(2)


def test_sorted_data_does_no_harm():
    problem = small(logistic, l2=1e-4, n=1000)
    x, y = problem.data
    order = y.argsort()
    model = problem.model()
    batches = list(zip(x[order].split(50), y[order].split(50)))
    result = infhess.minimize(problem.loss(model), model.parameters(), batches, gap=1e-8)
    assert result.stopped == "gap"
    assert problem.value(model) == pytest.approx(problem.value(problem.solved()), abs=1e-8)


def test_columns_that_occur_twice():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=g, dtype=torch.float64)
    x, y = torch.cat([x, x], 1), torch.randn(300, generator=g, dtype=torch.float64)
    w = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    result = infhess.minimize(lambda b: (b[0] @ w - b[1]).square().mean(), [w], [(x, y)], gap=1e-8)
    exact = x[:, :3] @ torch.linalg.lstsq(x[:, :3], y[:, None]).solution
    torch.testing.assert_close(x @ w.detach(), exact[:, 0], rtol=1e-3, atol=1e-4)
    assert result.stopped == "gap"


def test_a_loss_that_is_no_mean_over_points_keeps_its_batches():
    problem = small(squares, n=300)
    model = problem.model()
    batches = batches_of(problem, 50)
    with pytest.warns(UserWarning, match="not the mean over its points.*divide it by the number") as told:
        result = infhess.minimize(
            lambda b: (model(b[0])[:, 0] - b[1]).square().sum(), model.parameters(), batches, gap=1e-8
        )
    assert [w.filename for w in told] == [__file__]  # once, and where it is called
    assert any("not the mean over its points" in note for note in result.notes)
    torch.testing.assert_close(model.weight, problem.solved().weight, rtol=1e-3, atol=1e-4)


def absolute(x, y, w):
    return (x @ w - y).abs().mean()


def hinge(x, y, w):
    return (1 - y.sign() * (x @ w)).relu().mean() + 1e-3 * w.square().sum()


@pytest.mark.parametrize("loss_of", [absolute, hinge])
@pytest.mark.parametrize("start", [0.0, 1.5, 5.0])
def test_a_loss_with_kinks_is_named_as_the_reason(loss_of, start):
    """Curvature does not describe it: no gap is claimed and rounding is not blamed, but the loss has fallen all the same."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(201, 3, dtype=torch.float64, generator=g)
    y = x.sum(1) + torch.randn(201, dtype=torch.float64, generator=g)
    w = torch.full((3,), start, dtype=torch.float64, requires_grad=True)
    before = float(loss_of(x, y, w.detach()))
    batches = list(zip(x.split(20), y.split(20)))
    result = infhess.minimize(lambda b: loss_of(b[0], b[1], w), [w], batches, gap=1e-6)
    assert result.stopped in ("stalled", "passes")
    assert any("kinks" in note and "huber_loss" in note for note in result.notes)
    assert not result.gap_upper() < 1e-6
    assert result.loss < before


def test_a_kink_in_one_dimension_says_that_nothing_is_known_of_the_gap():
    x = torch.randn(100, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = torch.full((1,), 5.0, dtype=torch.float64, requires_grad=True)
    result = infhess.minimize(lambda b: (b[:, 0] - w).abs().mean(), [w], list(x.split(10)), passes=12)
    assert result.stopped in ("passes", "stalled")
    assert any("huber_loss" in note for note in result.notes)
    assert not result.gap_upper() < 0.5


def straight(x, w):
    return (x @ w).mean()


def straight_in_one_direction(x, w):
    return (x[:, :2] @ w[:2] - 1).square().mean() - w[2]


def curved_at_the_start(x, w):
    f = x[:, 0].abs() * w.sum()
    return ((-f).exp() - f).mean()


@pytest.mark.parametrize("loss_of", [straight, straight_in_one_direction, curved_at_the_start])
def test_a_loss_without_a_minimum_ends_early_and_says_so(loss_of):
    x = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    result = infhess.minimize(lambda b: loss_of(b, w), [w], list(x.split(20)))
    assert result.stopped == "unbounded"
    assert result.passes < 100
    assert math.isnan(result.gap)
    assert any("falls without bound" in note for note in result.notes)


def test_far_away_a_straight_loss_is_not_taken_for_one_without_a_minimum():
    """A loss of 1e9 that has its minimum where few steps of its gradient lead."""
    x = torch.randn(100, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = torch.full((1,), 1e9, dtype=torch.float64, requires_grad=True)
    result = infhess.minimize(
        lambda b: torch.nn.functional.huber_loss(b[:, 0] - w, torch.zeros(len(b)).double()), [w], list(x.split(10))
    )
    assert result.stopped == "gap"
    assert w.item() == pytest.approx(float(x.mean()), abs=0.2)


# ---- not convex


def test_a_loss_that_is_not_convex():
    x = torch.linspace(-1, 1, 64, dtype=torch.float64)
    w = torch.full((1,), 0.01, dtype=torch.float64, requires_grad=True)

    def loss(b):
        return ((w**2 - 1) ** 2 + 0 * b.mean()).sum()

    result = infhess.minimize(loss, [w], list(x.split(64)))
    assert result.stopped.startswith("not convex: ")
    assert math.isnan(result.gap)
    assert loss(x).item() <= (0.01**2 - 1) ** 2


def test_a_net_is_not_convex():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 4, generator=g)
    y = torch.sin(3 * x[:, :1])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def loss(b):
        return (net(b[0]) - b[1]).square().mean()

    before = loss((x, y)).item()
    result = infhess.minimize(loss, net.parameters(), list(zip(x.split(32), y.split(32))), gap=1e-8, passes=30)
    assert result.stopped.startswith("not convex: ")
    assert loss((x, y)).item() <= before


# ---- one pass, interruptions


def test_batches_that_can_be_read_once():
    problem = small(logistic, l2=1e-4, n=2000)
    model = problem.model()
    result = infhess.minimize(problem.loss(model), model.parameters(), iter(batches_of(problem, 20)))
    assert (result.method, result.passes, result.data_points) == ("sgd", 1, 2000)
    assert any("can be read only once" in note for note in result.notes)
    assert math.isnan(result.gap)
    assert problem.value(model) < 0.9 * problem.value(problem.model())
    assert result.loss == pytest.approx(problem.value(model))


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_so_many_passes(passes):
    _, result = run(small(logistic, l2=1e-4, n=600), gap=1e-12, passes=passes)
    assert (result.passes, result.stopped, len(result.history)) == (passes, "passes", passes)
    assert result.data_points == 600 * passes
    assert math.isnan(result.gap) == (passes == 1)


@pytest.fixture
def ctrl_c():
    """Python's own answer to Ctrl-C, which processes in the background do not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("after", [2, 4])
@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_leaves_the_best_point(after):
    def stop(row):
        if row["pass"] == after:
            signal.raise_signal(signal.SIGINT)

    problem = small(logistic, l2=1e-4, n=600)
    model, result = run(problem, callback=stop)
    assert (result.stopped, result.passes) == ("interrupted", after)
    assert problem.value(model) == pytest.approx(result.loss)
    assert problem.value(model) < problem.value(problem.model())


@pytest.mark.parametrize("once", [False, True])
def test_an_interruption_within_sgd(once, monkeypatch):
    monkeypatch.setattr("infhess.minimizing.choice.SAVED", 1e6)
    problem = small(logistic, l2=1e-4, n=2000)
    model, calls = problem.model(), [0]
    plain = problem.loss(model)

    def loss(batch):
        calls[0] += 1
        if calls[0] == 60:
            raise KeyboardInterrupt
        return plain(batch)

    batches = batches_of(problem, 20)
    result = infhess.minimize(loss, model.parameters(), iter(batches) if once else batches)
    assert (result.stopped, result.passes, result.history) == ("interrupted", 0, [])
    assert 0 < result.data_points < 2000 if once else result.data_points == 2000
    assert problem.value(model) < problem.value(problem.model())


def test_an_error_of_the_callback_is_the_callers():
    def fail(row):
        if row["pass"] == 2:
            raise RuntimeError("mine")

    problem = small(squares)
    model = problem.model()
    with pytest.raises(RuntimeError, match="mine"):
        infhess.minimize(problem.loss(model), model.parameters(), batches_of(problem, 50), gap=1e-14, callback=fail)
    assert problem.value(model) < 1e-1 * problem.value(problem.model())


@pytest.mark.parametrize("memory", [2e5, 1.0])
def test_little_memory(memory):
    problem = small(squares, n=3000)
    _, result, gap, _ = minimized(problem, gap=1e-8, memory=memory)
    assert (result.stopped, gap <= 1e-8) == ("gap", True)
    assert any(note.startswith("a sample of") for note in result.notes)


def test_fewer_points_in_memory_than_weights():
    """Newton's direction of so small a pool is noise where the data bends least, and had ended at a gap of a half."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 120, generator=g, dtype=torch.float64) * torch.logspace(0, -2, 120, dtype=torch.float64)
    y = x.sum(1) + torch.randn(1000, generator=g, dtype=torch.float64)
    best = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    w = torch.zeros(120, dtype=torch.float64, requires_grad=True)

    def loss(b):
        return (b[0] @ w - b[1]).square().mean()

    start = float(y.square().mean())
    memory = 4 * 60 * 121 * 8
    result = infhess.minimize(loss, [w], list(zip(x.split(50), y.split(50))), gap=1e-4, memory=memory)
    left = float((x @ w.detach() - y).square().mean() - (x @ best - y).square().mean())
    assert (result.method, result.stopped) == ("L-BFGS around P", "gap")
    assert left <= 1e-4 * start


def test_dropped_points_are_said():
    x = torch.randn(105, 2, dtype=torch.float64)
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    loader = DataLoader(TensorDataset(x), batch_size=10, drop_last=True)
    result = infhess.minimize(lambda b: (b[0] - w).square().mean(), [w], loader)
    assert any("drop_last" in note for note in result.notes)
    assert result.data_points == 100 * result.passes
