"""Mutants of a package, one change each, against the tests that mirror the changed module: what does no test see.

    python tools/mutants.py optim --number 60 --seed 0 --record optim.txt

Mutants are spread over files, functions and constants. A test that fails, or hangs, kills its mutant; one that lives is a
missing test, or a change that changes nothing. With the same record only those are run again that were not killed.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from changes import Change, listed, mutated, spread

ROOT = Path(__file__).resolve().parent.parent
# Beginning of a module's path → the test files for it; the longest that fits counts.
TESTS = {
    "optim/": "preconditioned_methods observe_nets observe_convex contract_groups contract_failures rate_free",
    "optim/averaging": "rate_free_checkpoints rate_free_batch_norm memory rate_free_contract",
    "optim/base": "base_optimizers observe_nets contract_bases preconditioned_methods any_schedule",
    "optim/checkpoint": "checkpoint rate_free_checkpoints contract_checkpoints",
    "optim/controllers/": "convex_rule step_length observe_convex contract_failures accumulation preconditioned_methods",
    "optim/controllers/context": "context convex_rule observe_nets accumulation",
    "optim/controllers/controller_state": "checkpoint observe_nets observe_convex contract_checkpoints accumulation",
    "optim/controllers/measured": "measured preconditioned_methods contract_failures preconditioned",
    "optim/controllers/nonconvex": "nonconvex observe_nets clipping observe_nets_hard",
    "optim/preconditioned": "accumulation preconditioned_methods observe_nets contract_failures preconditioned",
    "preconditioners/": "pool build scaling",
    "optim/preconditioning/": "preconditioned_methods contract_gradients observe_convex contract_checkpoints",
    "optim/preconditioning/apply": "preconditioned_methods contract_gradients contract_bases observe_nets clipping",
    "optim/preconditioning/drift": "drift preconditioned",
    "optim/rate/": "rate_state checkpoint probe nonconvex observe_nets rate_free clipping accumulation",
    "optim/rate_free": "rate_free rate_free_contract clipping accumulation rate_free_checkpoints",
    "optim/reports": "reports rate_free observe_nets preconditioned",
    "optim/scalings": "diagonal rate_free rate_free_contract",
    "optim/wrapper": "convex_rule contract_groups contract_gradients contract_failures preconditioned_methods",
    "posterior/": "base priors",
    "posterior/base": "base observations",
    "posterior/curvature_shaped": "curvature_shaped base",
    "posterior/factors": "factors kronecker base",
    "posterior/storage": "storage storage_format",
    "posterior/isotropic": "isotropic base",
    "posterior/kronecker": "factors kronecker base",
    "posterior/observations": "observations base tall_columns",
    "posterior/pencil": "factors kronecker base",
    "posterior/symmetric": "symmetric base",
    "spectra/": "ritz spectrum intervals small_data",
    "spectra/estimate": "estimate spectrum intervals",
    "spectra/student": "student intervals",
}
# Imported once, before any mutant is: none of it knows the package.
WARM = ("torch", "torch._dynamo", "torch.testing", "numpy", "scipy.stats", "safetensors.torch", "pytest")
# Tests that start processes or compile take seconds each.
PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=300", "-k", "not replicas and not compiled"]


def tests_of(path: str) -> list[str]:
    """The test files that mirror a module, and the module itself for its doctests."""
    inside = path.removeprefix("src/infhess/")
    best = max((key for key in TESTS if inside.startswith(key)), key=len)
    return [path, *(f"tests/{inside.split('/')[0]}/test_{name}.py" for name in TESTS[best].split())]


def start(change: Change, place: Path) -> int:
    """A process that runs the tests of a mutant in a copy of the package; its exit status is pytest's."""
    (place / change.path).write_text(mutated(change, ROOT), encoding="utf-8")
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(place)
        os.environ.update(PYTHONPATH=str(place / "src"), CI="1")  # hypothesis draws the same for all mutants
        sys.path.insert(0, str(place / "src"))
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        code = int(importlib.import_module("pytest").main([*PYTEST, *tests_of(change.path)]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # what the parent has open is not to be tidied up here


def results(picked: list[Change], places: list[Path]) -> Iterator[tuple[Change, bool, str]]:
    """(mutant, whether it lives, the test that failed), as they come; one process a copy of the package."""
    waiting, free, running = picked[::-1], list(places), {}
    while waiting or running:
        while waiting and free:
            change, place = waiting.pop(), free.pop()
            running[start(change, place)] = change, place
        pid, status = os.wait()
        change, place = running.pop(pid)
        log = (place / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        shutil.copy(ROOT / change.path, place / change.path)
        free.append(place)
        yield change, status == 0, next((line for line in log if line.startswith(("FAILED", "ERROR"))), "")


def copies(number: int, folder: Path) -> list[Path]:
    """Copies of the package and its tests, without bytecode: that of one mutant is not to stand for another."""
    sys.dont_write_bytecode = True
    places = [folder / str(i) for i in range(number)]
    for place in places:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "conftest.py"):
            shutil.copy(ROOT / name, place)
    return places


def main() -> None:
    """Pick mutants, run their tests, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="a folder or file below src/infhess, such as optim or optim/rate_free.py")
    for name, default in (("number", 60), ("seed", 0), ("jobs", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--record", type=Path, default=Path(os.devnull))
    args = parser.parse_args()
    here = ROOT / "src" / "infhess" / args.package
    paths = [here] if here.is_file() else sorted(here.rglob("*.py"))
    found = [change for path in paths for change in listed(str(path.relative_to(ROOT)), ROOT)]
    picked = spread(found, args.number, args.seed)
    before = args.record.read_text(encoding="utf-8") if args.record.exists() else ""
    left, lived = [change for change in picked if f"killed {change}\n" not in before], []
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, args.record.open("a", encoding="utf-8") as record:
        for change, lives, test in results(left, copies(args.jobs, Path(folder))):
            line = f"{'lived' if lives else 'killed'} {change}"
            lived += [line] if lives else []
            print(line, file=record, flush=True)
            print(line, f"[{test.split(' - ')[0]}]" if test else "", flush=True)
    print(
        f"{len(picked)} of {len(found)} tried, {len(picked) - len(lived)} killed, {len(lived)} lived", *lived, sep="\n"
    )


if __name__ == "__main__":
    main()
