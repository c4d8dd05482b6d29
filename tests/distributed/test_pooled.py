"""Sources in several processes are one source of all their data."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import pooled_cases
from processes import in_processes


@pytest.fixture(scope="module")
def joint():
    return pooled_cases.measure(pooled_cases.batches_of([0, 1]))


@pytest.fixture
def processes(two):
    return [process["pooled"] for process in two[1]]


@pytest.mark.parametrize("name", ["spectrum", "trace", "largest", "infer", "update"])
def test_all_processes_have_what_one_has_with_all_the_data(processes, joint, name):
    assert processes[0][name] == processes[1][name]  # bit for bit
    # Few batches are cut into chunks, by each process its own: there, values agree up to noise.
    rtol = {"spectrum": 0.15, "largest": 0.2}.get(name, 1e-6)
    torch.testing.assert_close(torch.tensor(processes[0][name]), torch.tensor(joint[name]), rtol=rtol, atol=1e-9)


def test_a_source_can_be_kept_to_its_process(processes):
    assert max(process["alone"][0] for process in processes) > 0


def test_data_that_ends_in_one_process_ends_in_all(processes):
    said = sorted(process["uneven"] for process in processes)
    assert said[0].startswith("another process that takes part has failed: batches: the iterator has run dry")
    assert said[1].startswith("batches: the iterator has run dry")


def test_a_distributed_sampler_is_known(processes):
    population, value = processes[0]["sampler"]
    assert population == 8 * pooled_cases.POINTS
    model = pooled_cases.model_of()
    all_data = [tuple(torch.cat(values) for values in zip(*pooled_cases.batches_of([0])[:8]))]
    source = pooled_cases.infhess.Hessian(pooled_cases.loss_of(model), model.parameters(), all_data)
    assert value == pytest.approx(float(pooled_cases.infhess.spectrum(source, k=1, rtol=1e-6).values[0]), rel=1e-4)


def test_intervals_hold_in_a_few_trials(two):
    hits = [process["coverage"] for process in two[1]]
    assert hits[0] == hits[1] >= pooled_cases.FEW - 2


@pytest.mark.long
def test_intervals_hold(tmp_path):
    (first,), (second,) = (p.values() for p in in_processes(2, tmp_path, {"": partial(pooled_cases.coverage, 100)}))
    assert first == second >= 90
