"""The peak memory of a piece of code: of its tensors, or of the whole process, which is best a new one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


def printed_by(module: str, *arguments: object) -> str:
    """What a module prints that runs in a new process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout


def resident_peak(call: Callable[[], T]) -> tuple[T, int]:
    """The result of a call, and how many bytes of resident memory it needed at its peak; Linux."""
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present
    found = call()
    return found, _resident("VmHWM") - before


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: peak memory is measured on Linux only")


class Peak(TorchDispatchMode):
    """The most bytes held at once by tensors made within the context, counted by storage; earlier tensors do not count."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before = {t.untyped_storage()._cdata for t in before}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged, and count."""
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                if storage.nbytes() and storage._cdata not in self._before:
                    self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        self._live = {k: v for k, v in self._live.items() if not v[0].expired()}  # type: ignore[no-untyped-call]
        self.most = max(self.most, sum(size for _, size in self._live.values()))
        return out
