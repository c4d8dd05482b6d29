"""A problem that is run in a moment."""

from __future__ import annotations

import pytest

from deep_cases import small
from infhess_bench.problems.net_problems import DEEP
from infhess_bench.problems.net_sets import net_problem


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(DEEP, "tiny", small())
    net_problem.cache_clear()
    yield "tiny"
    net_problem.cache_clear()
