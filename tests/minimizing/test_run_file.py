"""Checkpoints: a run that was stopped goes on, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import infhess
from convex_cases import logistic, small
from minimizing_cases import batches_of

PROBLEM = small(logistic, l2=1e-4, n=600)


def run(path, problem=PROBLEM, **options):
    model = problem.model()
    batches = batches_of(problem, 50)
    return model, infhess.minimize(problem.loss(model), model.parameters(), batches, checkpoint=path, **options)


def test_a_stopped_run_goes_on(tmp_path):
    path = tmp_path / "run.safetensors"
    _, first = run(path, gap=1e-10, passes=4)
    model, second = run(path, gap=1e-10)
    assert second.stopped == "gap"
    assert str(second.history[:4]) == str(first.history)
    assert [row["phase"] for row in second.history[4:]] == ["newton"] * (second.passes - 4)
    assert second.data_points == 600 * second.passes
    assert second.products > first.products
    assert second.seconds > first.seconds
    best = PROBLEM.value(PROBLEM.solved())
    assert (PROBLEM.value(model) - best) / (PROBLEM.value(PROBLEM.model()) - best) < 1e-10
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_run_that_is_done_stays_done(tmp_path):
    path = tmp_path / "run.safetensors"
    done, first = run(path)
    model, second = run(path)
    assert (second.stopped, second.passes, second.data_points) == ("gap", first.passes, first.data_points)
    assert torch.equal(model.weight, done.weight)
    assert second.gap_upper() == first.gap_upper()


def test_an_interrupted_run_goes_on(tmp_path):
    def stop(row):
        if row["pass"] == 2:
            raise KeyboardInterrupt

    path = tmp_path / "run.safetensors"
    _, first = run(path, callback=stop)
    _, second = run(path)
    assert (first.stopped, second.stopped) == ("interrupted", "gap")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, passes=2)
    with pytest.raises(ValueError, match="expected a checkpoint of 6 weights, got one of 12"):
        run(path, small(logistic, d=6))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="expected a checkpoint that minimize wrote"):
        run(path)
    save_file({"best": torch.zeros(12)}, path)
    with pytest.raises(ValueError, match="expected a checkpoint that minimize wrote"):
        run(path)
