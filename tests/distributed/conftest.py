"""Two processes and four, started once for all tests of this folder."""

from __future__ import annotations

from functools import partial

import pytest

import ddp_cases
import fsdp_cases
import pooled_cases
import replica_cases
from processes import in_processes, once


def _two(folder):
    cases = {
        "ddp": partial(ddp_cases.cases, list(ddp_cases.CASES)),
        "join": ddp_cases.uneven_ends,
        "replicas": replica_cases.cases,
        "fsdp": partial(fsdp_cases.cases, str(folder)),
        "pooled": pooled_cases.cases,
        "coverage": partial(pooled_cases.coverage, pooled_cases.FEW),
    }
    return str(folder), in_processes(2, folder, cases)


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """What each of two processes has found, and the folder of their checkpoints."""
    return once(tmp_path_factory, "two", _two)


@pytest.fixture(scope="session")
def four(tmp_path_factory, two):
    """What each of four has found."""
    cases = {
        "ddp": partial(ddp_cases.cases, ddp_cases.OF_FOUR),
        "resumed": partial(fsdp_cases.resumed_elsewhere, two[0]),
    }
    return once(tmp_path_factory, "four", lambda folder: in_processes(4, folder, cases))
