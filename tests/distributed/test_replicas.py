"""Processes that average gradients by hand: they agree, also where one of them fails or has no data."""

from __future__ import annotations

import math

import pytest

import replica_cases


@pytest.fixture
def found(two):
    return [process["replicas"] for process in two[1]]


@pytest.mark.parametrize("name", ["rate-free", *replica_cases.WRAPPED], ids=str)
def test_replicas_agree_upon_the_rate(found, name):
    assert found[0][name] == found[1][name]
    assert all(map(math.isfinite, found[0][name]))
    if name == "rate-free":
        assert found[0][name][2] == 16


SAID = {
    "empty": "an empty batch",
    "empty, wrapped": "an empty batch",
    "value": "too much",
    "absent, watch": "in all processes",
    "absent, observe": "in all processes",
}


@pytest.mark.parametrize("name", SAID)
def test_where_one_process_fails_all_skip_the_probe_and_say_why(found, name):
    (w, first), (v, second) = (process[name] for process in found)
    assert w == v
    for notes in (first, second):
        assert any("a curvature probe was skipped" in note and SAID[name] in note for note in notes), notes
    assert any("another process that takes part has failed" in note for note in first + second)


def test_what_is_no_matter_of_a_batch_ends_all_of_them(found):
    (w, (here,)), (v, (there,)) = (process["fatal"] for process in found)
    assert w == v
    assert here == "too much"
    assert there == "another process that takes part has failed: too much"


def test_numbers_of_micro_batches_may_differ(found):
    assert found[0]["uneven"] == found[1]["uneven"]
    (rate,) = [said for said in found[0]["uneven"][1] if not isinstance(said, str)]
    assert math.isfinite(rate)
