"""`make test-machines` computes as other processors do, and says so where it cannot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parent.parent / "tools/machines.py"
spec = importlib.util.spec_from_file_location("machines", PATH)
machines = importlib.util.module_from_spec(spec)
sys.modules["machines"] = machines
spec.loader.exec_module(machines)

COMPUTE = """
import torch
x = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
print(float(x.sum()).hex(), float((x @ x).norm()).hex(), float(x.exp().sum()).hex())
"""


def computed(name, folder):
    environ = machines.environment(machines.MACHINES[name], str(folder))
    command = [sys.executable, "-c", COMPUTE]
    first, values = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.splitlines()
    return *first.split(), values


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512") and "INFHESS_TEST_CAPABILITY" not in os.environ,
    reason="instruction sets of x86",
)
def test_another_processor_is_another_rounding(tmp_path):
    old, new = computed("SSE", tmp_path), computed("AVX2", tmp_path)
    assert (old[:2], new[:2]) == (("DEFAULT", "1"), ("AVX2", "2"))
    assert old[2] != new[2]


def test_kernels_that_the_processor_does_not_have_are_an_error(tmp_path):
    environ = os.environ | {"INFHESS_TEST_CAPABILITY": "AVX4096"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_util.py"]
    done = subprocess.run(command, env=environ, cwd=PATH.parent.parent, check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert "expected kernels of AVX4096, got" in done.stdout + done.stderr


def test_what_is_run_is_there():
    assert all((PATH.parent.parent / "tests" / path).exists() for path in machines.NUMERICAL)
