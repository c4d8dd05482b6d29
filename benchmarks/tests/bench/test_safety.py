"""Many short runs in unusual conditions: what is varied, and when a run counts as lost."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch

from infhess.cli.rows import Row
from infhess_bench.bench import safety
from infhess_bench.bench.safety import CHANCE, GRID, InUnits, Trial, labelled, lost, trials


def test_there_are_five_hundred_trials_all_different_and_every_value_among_them():
    found = trials(0)
    assert len(set(found)) == len(found) == 500
    jobs = list(safety.jobs(0))
    assert len({job.key for job in jobs}) == len(jobs)
    assert {sum(job.template.method == name for job in jobs) for name in (safety.ROTATED, safety.ADAM)} == {500}
    for field in fields(Trial):
        assert {getattr(t, field.name) for t in found} == set(GRID[field.name])


@pytest.mark.parametrize("net", GRID["net"])
def test_other_units_are_the_same_function(net):
    torch.manual_seed(0)
    model, x = safety.NETS[net](), torch.rand(3, 1, 8, 8)
    before = model(x)
    torch.testing.assert_close(InUnits(model, 1e3)(x), before, rtol=1e-4, atol=1e-5)
    assert InUnits(model, 1.0, "bfloat16 autocast")(x).dtype == torch.float32


def test_a_share_of_the_labels_is_wrong_in_training_alone():
    (_, y), (_, ty) = labelled(0.0)
    (_, noisy), (_, test) = labelled(0.5)
    assert 0.4 < float((y != noisy).float().mean()) < 0.5  # a tenth of what is drawn is right by chance
    assert torch.equal(ty, test)


def test_a_run_is_lost_without_progress():
    assert lost(Row("e", "p", "m", loss=math.nan, metric=2.4))
    assert lost(Row("e", "p", "m", loss=math.inf, metric=2.4))
    assert lost(Row("e", "p", "m", loss=CHANCE, metric=2.4))
    assert lost(Row("e", "p", "m", loss=CHANCE, metric=50.0))
    assert lost(Row("e", "p", "m", loss=2.4, metric=2.6))
    assert lost(Row("e", "p", "m", loss=30.0, metric=50.0))
    assert not lost(Row("e", "p", "m", loss=3.4, metric=9.4))
    assert lost(Row("e", "p", "m", loss=1.0, metric=0.9))
    assert not lost(Row("e", "p", "m", loss=1.0, metric=2.4))


def test_lost_runs_are_counted_and_named(monkeypatch):
    monkeypatch.setattr(safety, "MOST", 30)
    monkeypatch.setattr(safety, "FEWEST", 10)
    job = next(job for job in safety.jobs(0) if job.template.batch_size == 64)
    (row,) = job.run()
    assert row.data_points <= 30 * 64
    dead = Row(row.experiment, safety.trials(0)[0].name, row.method, 0, safety.trials(0)[0].batch, loss=9.0, metric=2.4)
    text = safety.summary([row, dead])
    assert "of 2 runs" in text
    assert f"- {dead.problem}, batch {dead.batch_size}: 9, 2.4 at the start" in text


def test_the_same_runs_of_peers_are_beside():
    (a, b), runs = trials(0)[:2], []
    for trial, infhess, adam in ((a, 1.0, math.inf), (b, CHANCE, 1.0)):
        row = Row(safety.EXPERIMENT, trial.name, safety.ROTATED, 0, trial.batch, loss=infhess, metric=2.4)
        runs += [row, replace(row, method=safety.ADAM, loss=adam)]
    text = safety.summary(runs)
    assert "Lost: 1 of 2 runs" in text
    assert "| Adam | 2 | 1 | 1 | 1 |" in text
    assert f"| {safety.ROTATED} | 2 | 1 | 0 | 0 |" in text


def test_a_peer_runs_at_its_default():
    job = next(job for job in safety.jobs(0) if job.template.method == safety.ADAM and job.template.batch_size == 1024)
    (row,) = job.run()
    assert math.isfinite(row.loss)
    assert row.metric > 0
