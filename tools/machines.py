"""The numerical part of the suite as other machines compute it: older instruction sets, and two threads.

python tools/machines.py           # all
python tools/machines.py AVX2      # one

Kernels of SSE, AVX2 and AVX512 sum in different orders, and so do threads. `make test` is this machine's own with one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
# What computes; not what reads options and files, shows results or says what is wrong.
NUMERICAL = [
    *("lowrank", "posterior", "curvature", "spectra", "preconditioners", "optim", "minimizing", "distributed"),
    *("integrations/test_transformers.py", "integrations/test_accelerate.py"),
    *("test_active.py", "test_autocast.py", "test_pilot.py", "test_precision.py", "test_rounding.py"),
]
ASK = "import torch; print(torch.backends.cpu.get_cpu_capability())"


class Machine(NamedTuple):
    """The instruction sets of PyTorch's kernels, oneDNN and MKL, and the threads of each."""

    capability: str | None  # what PyTorch says that it uses; None: what the processor has
    settings: dict[str, str]
    threads: int


def instructions(aten: str, onednn: str, mkl: str) -> dict[str, str]:
    """The newest that each library may use."""
    return {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}


MACHINES = {
    "SSE": Machine("DEFAULT", instructions("default", "SSE41", "SSE4_2"), threads=1),
    "AVX2": Machine("AVX2", instructions("avx2", "AVX2", "AVX2"), threads=2),
    "own": Machine(None, {}, threads=2),
}


def environment(machine: Machine, compiled: str) -> dict[str, str]:
    """Of the tests: tests/conftest.py takes the number of threads, and refuses another instruction set."""
    threads = {"OMP_NUM_THREADS": str(machine.threads), "INFHESS_TEST_THREADS": str(machine.threads)}
    # Threads that wait give their core to the worker beside.
    environ = os.environ | threads | {"OMP_WAIT_POLICY": "PASSIVE"} | machine.settings
    # torch.compile's cache does not know for which instruction set an entry was made.
    environ["TORCHINDUCTOR_CACHE_DIR"] = compiled
    if machine.capability:
        environ["INFHESS_TEST_CAPABILITY"] = machine.capability
    return environ


def passed(name: str, arguments: list[str]) -> bool:
    """Run the tests as on this machine."""
    machine, start = MACHINES[name], time.monotonic()
    with tempfile.TemporaryDirectory() as compiled:
        environ = environment(machine, compiled)
        told = subprocess.run([sys.executable, "-c", ASK], env=environ, check=True, capture_output=True, text=True)
        says = f"{name}: {told.stdout.strip()}, threads: {machine.threads}"
        print(says, flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        command += [f"tests/{path}" for path in NUMERICAL]
        done = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode == 0
    print(f"{says}: {'passed' if done else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
    return done


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machines", nargs="*", help=f"{', '.join(MACHINES)}; all if none is given")
    parser.add_argument("--workers", default="auto", help="processes of pytest")
    options = parser.parse_args()
    if unknown := set(options.machines) - set(MACHINES):
        parser.error(f"expected {', '.join(MACHINES)}; got {', '.join(sorted(unknown))}")
    arguments = ["-n", options.workers, "--dist", "worksteal"]
    results = [passed(name, arguments) for name in options.machines or MACHINES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
