"""What every test shares: matrices with a prescribed spectrum, tolerances by dtype, a generator of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(2)
settings.register_profile(
    "default",
    deadline=None,
    max_examples=40,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


@pytest.fixture
def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)
