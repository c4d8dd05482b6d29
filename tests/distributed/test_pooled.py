"""Sources in several processes are one source of all their data."""

from __future__ import annotations

import pytest
import torch

import pooled_cases
from util import fast_and_long, in_processes


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "pooled"
    return in_processes(2, pooled_cases.worker, 2, store), pooled_cases.measure(pooled_cases.batches_of([0, 1]))


@pytest.mark.parametrize("name", ["spectrum", "trace", "largest", "infer", "update"])
def test_all_processes_have_what_one_has_with_all_the_data(found, name):
    processes, joint = found
    assert processes[0][name] == processes[1][name]  # bit for bit
    # Few batches are cut into chunks, by each process its own: there, values agree up to noise.
    rtol = {"spectrum": 0.15, "largest": 0.2}.get(name, 1e-6)
    torch.testing.assert_close(torch.tensor(processes[0][name]), torch.tensor(joint[name]), rtol=rtol, atol=1e-9)


def test_a_source_can_be_kept_to_its_process(found):
    assert max(process["alone"][0] for process in found[0]) > 0


def test_data_that_ends_in_one_process_ends_in_all(found):
    said = sorted(process["uneven"] for process in found[0])
    assert "another process" in said[0]
    assert "run dry" in said[1]


def test_a_distributed_sampler_is_known(found):
    population, value = found[0][0]["sampler"]
    assert population == 8 * pooled_cases.POINTS
    model = pooled_cases.model_of()
    all_data = [tuple(torch.cat(values) for values in zip(*pooled_cases.batches_of([0])[:8]))]
    source = pooled_cases.infhess.Hessian(pooled_cases.loss_of(model), model.parameters(), all_data)
    assert value == pytest.approx(float(pooled_cases.infhess.spectrum(source, k=1, rtol=1e-6).values[0]), rel=1e-4)


@fast_and_long("trials", 10, 100)
def test_intervals_hold(trials, tmp_path):
    hits = in_processes(2, pooled_cases.coverage, 2, tmp_path / "store", trials)
    assert hits[0] == hits[1]
    assert hits[0] >= (0.7 if trials < 50 else 0.9) * trials
