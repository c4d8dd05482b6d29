"""What every test shares: threads of a worker, its instruction set, settings of hypothesis, a generator of its own."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from hypothesis import HealthCheck, settings

from browser import CHROMIUM, Browser

# Left out where a framework does not install: Transformers asks for Python 3.11.
OF_TRANSFORMERS = ["tests/trainer_cases.py", "tests/integrations/test_transformers.py"]
OF_TRANSFORMERS += ["src/infhess/integrations/transformers.py"]
collect_ignore = [] if find_spec("transformers") else OF_TRANSFORMERS

# One thread, here and in the commands that tests start: workers side by side have a core each. tools/machines.py asks for two.
THREADS = os.environ.get("INFHESS_TEST_THREADS", "1")
torch.set_num_threads(int(THREADS))
os.environ["OMP_NUM_THREADS"] = THREADS
settings.register_profile(
    "default",
    deadline=None,
    max_examples=40,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


def pytest_configure() -> None:
    """Tests that are to run as on another processor do."""
    expected, got = os.environ.get("INFHESS_TEST_CAPABILITY"), torch.backends.cpu.get_cpu_capability()
    if expected not in (None, got):
        pytest.exit(f"expected kernels of {expected}, got {got}: this processor does not have them", returncode=3)


@pytest.fixture
def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Whatever order workers take tests in, each finds the same global random state."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        if os.environ.get("INFHESS_BROWSER_REQUIRED"):
            pytest.fail("Chromium is required here, and was not found")
        pytest.skip("there is no Chromium on this machine")
    found = Browser()
    yield found
    found.close()
