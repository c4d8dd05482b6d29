"""The paper's experiments: problems with their exact solutions, baselines, counting, resuming, and the commands."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from infhess.experiments import deep, logistic, regression
from infhess.experiments.baselines import average_inverse, conjugate_gradients
from infhess.experiments.curves import EXACT, START, Curves, shown
from infhess.experiments.rows import Row
from infhess.experiments.training import curve, printed, self_driving, sgd, updated
from infhess.problems.convex import ConvexProblem, breast_cancer, softmax, squares
from infhess.problems.convex import logistic as logistic_loss
from infhess.problems.shuffled import Reading, Shuffled

needs_data = pytest.mark.skipif(
    not os.environ.get("INFHESS_DATA"), reason="$INFHESS_DATA is not set: the real files are not here"
)


def small(loss=squares, outputs=1, n=300, d=12, l2=0.0):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) * torch.logspace(0.5, -0.5, d, dtype=torch.float64)
    f = x @ torch.randn(d, outputs, generator=g, dtype=torch.float64)
    noise = torch.randn(n, outputs, generator=g, dtype=torch.float64)
    y = {
        squares: (f + 0.1 * noise)[:, 0],
        logistic_loss: torch.sign(f + noise)[:, 0],
        softmax: (f + noise).argmax(1),
    }[loss]
    return ConvexProblem((x, y), loss, l2, outputs, test=(x[:50], y[:50]))


CASES = [small(), small(logistic_loss, l2=1e-3), small(softmax, 4, l2=1e-3), breast_cancer()]


@pytest.mark.parametrize("problem", CASES)
def test_the_hessian_is_that_of_the_loss(problem):
    W = 0.1 * torch.randn(problem.model().weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def objective(w):
        model = problem.model()
        return torch.func.functional_call(model, {"weight": w.view_as(W)}, problem.data[0])

    def loss(w):
        return problem.loss_of(objective(w), problem.data[1]) + problem.l2 / 2 * w.square().sum()

    dense = torch.autograd.functional.hessian(loss, W.reshape(-1))
    torch.testing.assert_close(problem.hessian(W), dense, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("problem", CASES)
def test_the_exact_solution_has_no_gradient(problem):
    model = problem.solved()
    (g,) = torch.autograd.grad(problem.loss(model)(problem.data), [model.weight])
    assert float(g.abs().max()) < 1e-9
    assert problem.value(model) < problem.value(problem.model())


@needs_data
def test_no_row_of_the_sarcos_test_file_is_trained_on():
    from infhess.data import sarcos
    from infhess.problems.convex import sarcos_natural

    problem = sarcos_natural(held_out=True)
    train, test = (data[0][:, 1:22] for data in (problem.data, problem.test))
    assert (len(train), len(test)) == (40035, 4449)
    everything, tested = sarcos()[0], sarcos("test")[0]
    mean, std = everything.mean(0), everything.std(0, correction=0)
    torch.testing.assert_close(test, (tested - mean) / std, rtol=1e-4, atol=1e-4)
    assert float(torch.cdist(train[:4000], test[:400]).min()) > 0


@needs_data
def test_the_mapped_features_have_the_spectrum_that_is_documented():
    from infhess.problems.convex import sarcos_mapped

    x, _ = sarcos_mapped().data
    values = torch.linalg.eigvalsh(x.mT @ x / len(x)).flip(0)
    assert x.shape == (44484, 253)
    torch.testing.assert_close(values[:12], torch.logspace(3, 0.5, 12, dtype=x.dtype), rtol=1e-6, atol=0)
    assert float(values[0] / values[-1]) == pytest.approx(1e5, rel=1e-4)


class Counting(Shuffled):
    """Batches that are counted by themselves as they leave."""

    read = 0

    def __iter__(self):
        for batch in super().__iter__():
            Counting.read += len(batch[0])
            yield batch


@pytest.mark.parametrize(
    "method",
    [
        sgd(1e-3),
        printed(1e-4),
        updated(8),
        self_driving(),
        logistic.induced(1e-4),
        average_inverse,
        conjugate_gradients,
    ],
    ids=["sgd", "printed", "update", "observe", "induced", "avg-inv", "cg"],
)
def test_rows_count_what_was_read_to_the_point(method, monkeypatch):
    monkeypatch.setattr("infhess.experiments.training.Shuffled", Counting)
    Counting.read = 0
    rows = curve(small(), method, Row("e", "p", "m", 3, 16), 3000)
    assert rows[-1].data_points == Counting.read
    assert rows[-1].data_points >= 3000
    assert all(a.data_points <= b.data_points for a, b in pairwise(rows))


def test_the_same_seed_gives_the_same_numbers():
    first, second, other = (
        [(r.data_points, r.loss) for r in curve(small(), self_driving(), Row("e", "p", "m", seed, 16), 2000)]
        for seed in (0, 0, 1)
    )
    assert first == second != other


def test_a_diverging_run_ends_and_says_so():
    rows = curve(small(), sgd(1e3), Row("e", "p", "m", 0, 16), 10**9)
    assert rows[-1].loss > 1e3 * small().value(small().model())
    assert rows[-1].data_points < 10**6


def test_averaged_inverses_of_the_whole_data_are_the_solution():
    problem = small()
    rows = curve(problem, average_inverse, Row("e", "p", "m", 0, 300), 300)
    assert rows[-1].loss == pytest.approx(problem.value(problem.solved()), rel=1e-10)


def test_cg_on_exact_products_ends_after_as_many_steps_as_weights():
    problem = small()
    rows = curve(problem, conjugate_gradients, Row("e", "p", "m", 0, 300), 300 * 20)
    assert rows[-1].loss == pytest.approx(problem.value(problem.solved()), rel=1e-8)


def test_reading_goes_on_from_epoch_to_epoch():
    x = torch.arange(10.0)[:, None]
    reading = Reading(Shuffled((x, x), 4, torch.Generator().manual_seed(0)))
    sizes = [len(next(reading)[0]) for _ in range(5)]
    assert sizes == [4] * 5
    assert reading.points == 20


def test_curves_know_gaps_and_medians():
    ends = [Row("e", "p", EXACT, loss=1.0), Row("e", "p", START, loss=11.0)]
    runs = [
        Row("e", "p", "m", seed, 8, points, loss=loss)
        for seed, losses in enumerate(((6.0, 2.0), (11.0, 1.5), (40.0, float("inf"))))
        for points, loss in zip((100, 200), losses)
    ]
    curves = Curves([*ends, *runs])
    assert curves.final("p", "m", 8) == pytest.approx(0.1)
    assert curves.points_to("p", "m", 8, 0.1) == 200
    assert curves.points_to("p", "m", 8, 0.01) == float("inf")
    assert (shown(float("inf")), shown(float("nan")), shown(12345.0), shown(2.34e5)) == (
        "never", "not run", "12,345", "2.3e5",
    )  # fmt: skip


def test_tuning_picks_the_rate_that_ended_lowest():
    tried = [
        Row("e", "p", f"{regression.SGD}: rate {rate}{suffix}", 1000, 8, 10, loss=loss)
        for rate, suffix, loss in (
            (0.1, "", 3.0), (0.1, ", averaged", 2.0), (1.0, "", float("inf")), (0.01, ", averaged", 2.5),
        )
    ]  # fmt: skip
    assert regression.chosen(tried, "p", regression.SGD, 8) == (0.1, True)


TINY = deep.Size("tiny", 0.05, 64, 32, 3, (1e-2,), 1, (1e-2,))


@pytest.fixture
def tiny_images(monkeypatch):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(96, 3, 32, 32, generator=g), torch.randint(10, (96,), generator=g)
    monkeypatch.setattr(deep, "images", lambda size, device: ((x[:64], y[:64]), (x[64:], y[64:])))


@pytest.mark.parametrize("method", [deep.SGD, deep.PRINTED, deep.STEP, deep.OURS])
def test_a_net_that_was_cut_off_goes_on_bit_for_bit(method, tiny_images, tmp_path, monkeypatch):
    template = Row("e", "xavier", f"{method}, rate 0.01: train", 0, 32)
    whole = deep.run(template, TINY, method, 0.01, tmp_path / "a")
    trained, epoch = [], deep.NetTraining.train_epoch

    def cut(self):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(self.epoch)
        epoch(self)

    monkeypatch.setattr(deep.NetTraining, "train_epoch", cut)
    with pytest.raises(KeyboardInterrupt):
        deep.run(template, TINY, method, 0.01, tmp_path / "b")
    monkeypatch.setattr(deep.NetTraining, "train_epoch", epoch)
    resumed = deep.run(template, TINY, method, 0.01, tmp_path / "b")
    assert trained == [0, 1]
    assert not any((tmp_path / "b").iterdir())

    def numbers(rows):  # but for times
        return [
            (r.method, r.data_points, r.products, r.loss, r.metric if "rate" not in r.method[-4:] else 0) for r in rows
        ]

    assert numbers(resumed) == numbers(whole)
    assert len(whole) == 9


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "infhess", "reproduce", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def cut_off(process, folder, how, pieces):
    """End the command once some pieces are finished; its workers have to end too."""
    finished = 0
    for line in process.stdout:
        finished += line.startswith("[")
        if finished == pieces:
            break
    process.send_signal(how)
    process.communicate(timeout=60)
    for _ in range(100):
        if subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).returncode:
            return read(folder / "rows.csv")
        time.sleep(0.1)
    raise AssertionError("a worker is left behind")


@needs_data
def test_logistic_survives_ctrl_c_and_kill_and_reports(tmp_path):
    arguments = ("logistic", "--quick", "--out", "r")
    seen = cut_off(start(tmp_path, *arguments), tmp_path / "r", signal.SIGKILL, 3)
    later = cut_off(start(tmp_path, *arguments), tmp_path / "r", signal.SIGINT, 3)
    assert later[: len(seen)] == seen
    done = start(tmp_path, *arguments)
    out, error = done.communicate(timeout=240)
    assert done.returncode == 0, error
    rows = read(tmp_path / "r/rows.csv")
    assert rows[: len(later)] == later
    assert len({(r["method"], r["seed"], r["data_points"]) for r in rows}) == len(rows)
    assert "holds" in out
    for name in ("report.html", "claims.md", "logistic.svg"):
        assert (tmp_path / "r" / name).stat().st_size > 1000


@needs_data
def test_deep_in_small_and_a_question_that_makes_no_sense(tmp_path):
    done = start(tmp_path, "deep", "--quick", "--out", "d")
    out, error = done.communicate(timeout=240)
    assert done.returncode == 0, error
    assert "one trajectory" in " ".join(out.split())
    assert {r["problem"] for r in read(tmp_path / "d/rows.csv")} == {"default", "xavier"}
    assert not (tmp_path / "d/unfinished").exists()
    both = start(tmp_path, "deep", "--quick", "--full")
    assert "one of --quick and --full" in both.communicate()[1]
    assert both.returncode == 2


def test_data_that_is_missing_is_named_with_the_remedy(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "INFHESS_DATA"} | {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    (tmp_path / "nowhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "infhess", "reproduce", "regression", "--quick", "--workers", "1", "--data-dir", "nowhere"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "infhess data get sarcos" in " ".join(done.stderr.split())
