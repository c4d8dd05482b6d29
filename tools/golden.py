"""Golden runs: short ones of everything, whose every number is compared, by hash, with those that are committed.

    make golden             # compare; exit status 1 if anything differs, with the first step and name that do
    make golden-update      # write; what a rule computes may only change with its version, in src/infhess/_rules.py
    python tools/golden.py 'rate-free-*' --values runs/before       # some runs, and all their numbers to a folder
    python tools/golden.py 'rate-free-*' --against runs/before      # by how much they differ from those numbers

Code may move and change its shape; nothing may change in what is computed. A run shows only what is public. Hashes hold for
one version of torch on x86-64, with one thread and with kernels that all such machines have.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden"
# Kernels without vector instructions that some machines lack, results of MKL that do not depend on the processor, and no fused
# multiply-add in the C library's functions. Paths for processes that runs start.
KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
    "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tools", "tests")),
}

if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in KERNELS.items()):
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KERNELS)  # read when torch is loaded

import torch  # noqa: E402
from golden_hashes import Leaf, Record, Step, difference, parsed, record, same_numbers, shown, text  # noqa: E402
from golden_results import RESULTS  # noqa: E402
from golden_training import ALONE, IN_TWO_PROCESSES  # noqa: E402
from golden_values import kept, sizes  # noqa: E402

from infhess._rules import RULES  # noqa: E402

RUNS = {**ALONE, **IN_TWO_PROCESSES, **RESULTS}  # name: (rule, run)
ABOUT = "about.txt"


def about() -> str:
    """What the hashes hold for."""
    return f"torch {torch.__version__}, {platform.machine()}\n"


@contextmanager
def settled() -> Iterator[None]:
    """One thread, PyTorch's own kernels, warnings aside: a run starts the same wherever it stands among others."""
    threads, enabled = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        torch.backends.mkldnn.set_flags(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.set_flags(enabled)


def run(name: str) -> list[Step]:
    """The steps of a run in this process."""
    with settled():
        return [shown(label, things) for label, things in RUNS[name][1]()]


def run_of(name: str, rank: int, number: int) -> list[Step]:
    """The steps of a run in one of several processes."""
    with settled():
        return [shown(label, things) for label, things in IN_TWO_PROCESSES[name][1](rank)]


def in_two_processes(names: list[str]) -> dict[str, list[Step]]:
    """The steps of these runs, what both processes show side by side."""
    from processes import in_processes

    with tempfile.TemporaryDirectory() as folder:
        found = in_processes(2, folder, {name: partial(run_of, name) for name in names})
    return {name: [_joined(*steps) for steps in zip(*(each[name] for each in found))] for name in names}


def _joined(*steps: Step) -> Step:
    leaves: dict[str, Leaf] = {
        f"{rank}.{name}": leaf for rank, step in enumerate(steps) for name, leaf in step.leaves.items()
    }
    return Step(steps[0].label, leaves)


def computed(names: Iterable[str]) -> Iterator[tuple[str, list[Step]]]:
    """The steps of each run."""
    together = [name for name in names if name in IN_TWO_PROCESSES]
    yield from ((name, run(name)) for name in names if name not in IN_TWO_PROCESSES)
    if together:
        yield from in_two_processes(together).items()


def recorded(name: str, steps: list[Step]) -> Record:
    """The record of a run by the present version of its rule."""
    rule = RUNS[name][0]
    return record(rule, RULES[rule], steps)


def stored(folder: Path) -> dict[str, Record]:
    """The committed records, by run."""
    return {path.stem: parsed(path.read_text()) for path in sorted(folder.glob("*.txt")) if path.name != ABOUT}


def compared(old: dict[str, Record], name: str, new: Record) -> str | None:
    """What differs in a run, in a sentence; None if nothing does."""
    if name not in old:
        return f"{name}: no hashes of it are committed; add them with make golden-update"
    if found := difference(old[name], new):
        step, where = found
        return f"{name}: step {step}, {where}"
    if old[name][:2] != new[:2]:
        was = f"{old[name].rule} {old[name].version}"
        return f"{name}: is of {new.rule} {new.version} now, and the same as of {was}; make golden-update"
    return None


def refused(old: dict[str, Record], name: str, new: Record) -> str | None:
    """Why new hashes of a run may not replace the committed ones."""
    was = old.get(name)
    if was is None or same_numbers(was, new):
        return None
    if was.rule != new.rule:
        both = f"its hashes have changed, and its rule from {was.rule} to {new.rule}"
        return f"{name}: {both}; change the rule first, then what it computes"
    if new.version <= was.version:
        step, where = difference(was, new) or ("", "")
        return f"{name}: step {step}, {where}: raise the version of {new.rule!r} above {was.version} in src/infhess/_rules.py"
    return None


def compare(folder: Path, found: dict[str, Record], *, whole: bool) -> list[str]:
    """All that differs; if the runs are not all, files of others are left alone."""
    old = stored(folder)
    gone = [
        f"{name}: hashes are committed, but there is no such run; make golden-update"
        for name in old
        if name not in RUNS
    ]
    return [line for name, new in found.items() if (line := compared(old, name, new))] + (gone if whole else [])


def update(folder: Path, found: dict[str, Record], *, whole: bool, new_torch: bool = False) -> list[str]:
    """Write the records, or none of them: why not."""
    old = {} if new_torch else stored(folder)
    if reasons := [line for name, new in found.items() if (line := refused(old, name, new))]:
        return reasons
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_text(about())
    for name, new in found.items():
        (folder / f"{name}.txt").write_text(text(new))
    for name in stored(folder).keys() - RUNS.keys() if whole else ():
        (folder / f"{name}.txt").unlink()
    return []


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["*"], help="names of runs, or patterns; all by default")
    parser.add_argument("--update", action="store_true", help="write the hashes")
    parser.add_argument(
        "--new-torch",
        action="store_true",
        help="write them with another version of torch; compare with the old one first",
    )
    parser.add_argument("--values", type=Path, help="a folder for all numbers of the runs")
    parser.add_argument("--against", type=Path, help="such a folder: show how large differences from it are")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the hashes are")
    given = parser.parse_args(arguments)
    held = given.folder / ABOUT
    other = held.exists() and held.read_text() != about()
    if other and not (given.new_torch or given.values or given.against):
        print(
            f"golden: hashes are of {held.read_text().strip()}; here it is {about().strip()}, so nothing is compared."
        )
        return 0
    names = [name for name in RUNS if any(fnmatch(name, pattern) for pattern in given.runs)]
    if not names:
        print(f"golden: expected names of runs, got {' '.join(given.runs)}; they are {', '.join(RUNS)}")
        return 2
    found = {}
    for name, steps in computed(names):
        found[name] = recorded(name, steps)
        for line in sizes(given.against, name, steps) if given.against else ():
            print(line, flush=True)
        if given.values:
            kept(given.values, name, steps)
    if other and not given.update:
        return 0
    whole = len(names) == len(RUNS)
    act = partial(update, new_torch=given.new_torch) if given.update else compare
    lines = act(given.folder, found, whole=whole)
    print("\n".join([*lines, f"golden: {len(found)} runs, {len(lines)} {'refused' if given.update else 'differ'}"]))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
