"""Nets of the paper: a run that was cut off goes on bit for bit."""

from __future__ import annotations

import pytest
import torch

from infhess.cli.rows import Row
from infhess_bench.experiments import deep_experiment

TINY = deep_experiment.NetSize("tiny", 0.05, 64, 32, 3, (1e-2,), 1, (1e-2,))


@pytest.fixture
def tiny_images(monkeypatch):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(96, 3, 32, 32, generator=g), torch.randint(10, (96,), generator=g)
    monkeypatch.setattr(deep_experiment, "images", lambda size, device: ((x[:64], y[:64]), (x[64:], y[64:])))


LONG = [pytest.param(method, marks=pytest.mark.long) for method in (deep_experiment.PAPER, deep_experiment.STEP)]


@pytest.mark.parametrize("method", [deep_experiment.SGD, deep_experiment.ONLINE, *LONG])
def test_a_net_that_was_cut_off_goes_on_bit_for_bit(method, tiny_images, tmp_path, monkeypatch):
    template = Row("e", "xavier", f"{method}, rate 0.01: train", 0, 32)
    whole = deep_experiment.run(template, TINY, method, 0.01, tmp_path / "a")
    trained, epoch = [], deep_experiment.NetTraining.train_epoch

    def cut(self):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(self.epoch)
        epoch(self)

    monkeypatch.setattr(deep_experiment.NetTraining, "train_epoch", cut)
    with pytest.raises(KeyboardInterrupt):
        deep_experiment.run(template, TINY, method, 0.01, tmp_path / "b")
    monkeypatch.setattr(deep_experiment.NetTraining, "train_epoch", epoch)
    resumed = deep_experiment.run(template, TINY, method, 0.01, tmp_path / "b")
    assert trained == [0, 1]
    assert not any((tmp_path / "b").iterdir())

    def numbers(rows):  # without times
        return [
            (r.method, r.data_points, r.products, r.loss, r.metric if "rate" not in r.method[-4:] else 0) for r in rows
        ]

    assert numbers(resumed) == numbers(whole)
    assert len(whole) == 9
