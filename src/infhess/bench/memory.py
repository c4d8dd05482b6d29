"""Peak memory of the inference loop, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from infhess.bench.loop import Clocked, methods
from infhess.harness.timing import FLOAT


def peak_in_new_process(method: str, size: int, seed: int) -> float:
    """Numbers of N columns that the loop holds at its peak, above what the source holds."""
    call = [sys.executable, "-m", "infhess.bench.memory", method, str(size), str(seed)]
    return float(subprocess.run(call, check=True, capture_output=True, text=True).stdout)


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process in bytes; Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: peak memory is measured on Linux only")


def peak(method: str, size: int, seed: int) -> float:
    """(peak − before) / bytes of a column of float32."""
    for _ in methods()[method](Clocked(1000, seed).source()):
        pass  # libraries are loaded and their workspaces made
    source = Clocked(size, seed).source()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
    for _ in methods()[method](source):
        pass
    return (resident("VmHWM") - before) / (size * FLOAT)


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
