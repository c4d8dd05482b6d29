"""Can the checks fail? Each gate of the project runs on a copy of the tree, in which one change breaks what it guards.

    python tools/gates.py               # all: a line a gate; status 1 if one stays green
    python tools/gates.py links demo    # those whose names have one of these words

A gate has to be green without the change, and red with it for the reason that the change gives.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from breakages import GATES, Gate

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
KEPT = "runs/gallery"  # what scripts of the gallery gave: it is computed again where they, or the package, have changed
PYTEST = f"{sys.executable} -m pytest -q -x -p no:cacheprovider"


def copied(tree: Path) -> None:
    """All files that git knows, or would take."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if (ROOT / KEPT).is_dir():
        shutil.copytree(ROOT / KEPT, tree / KEPT)


def recipe(target: str) -> list[str]:
    """The lines of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, flags=re.M)
    return [line.strip() for line in found.splitlines()]


def line_of(command: str) -> str:
    """The line to run: of the Makefile, as `make` runs it, or tests."""
    target, words = command.split(": ", 1)
    if target == "pytest":
        return f"{PYTEST} {words}"
    (line,) = [line for line in recipe(target) if words in line]
    return line.replace("$(BIN)/", f"{BIN}/")


def unbroken() -> list[str]:
    """Lines of `make check` and `make docs` that no gate here breaks."""
    used = {line_of(command) for gate in GATES for command in gate.commands}
    lines = [line.replace("$(BIN)/", f"{BIN}/") for target in ("check", "docs") for line in recipe(target)]
    return [line for line in lines if line not in used]


def ran(tree: Path, commands: tuple[str, ...]) -> tuple[bool, str]:
    """Whether all end with status 0, one after the other until one does not, and what the last one said."""
    environment = {
        **os.environ, "PYTHONPATH": f"{tree}/src", "OMP_NUM_THREADS": "1", "INFHESS_BROWSER_REQUIRED": "1",
        "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "200",
    }  # fmt: skip
    said = ""
    for command in commands:
        line = shlex.split(line_of(command))
        done = subprocess.run(
            line, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said = done.stdout
        if done.returncode:
            return False, said
    return True, said


@contextmanager
def changed(tree: Path, gate: Gate) -> Iterator[None]:
    """The change of a gate, taken back at the end; a pattern that fits nowhere is an error."""
    path = tree / gate.path
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if gate.text is None:
        path.unlink()
    else:
        text = gate.text
        after, times = re.subn(gate.pattern, lambda _: text, before or "", count=1)
        assert times == 1, f"{gate.name}: {gate.path} has no {gate.pattern}"
        path.write_text(after, encoding="utf-8")
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")


@cache
def whole(tree: Path, commands: tuple[str, ...]) -> tuple[bool, str]:
    """The same without a change, once for each of the commands."""
    return ran(tree, commands)


def verdict(tree: Path, gate: Gate) -> str:
    """Empty if the gate is green without the change and red with it; else what is wrong."""
    if gate.path.startswith("runs/site"):
        whole(tree, ("docs: mkdocs",))  # there is nothing to look at before
    is_test_itself = gate.path.startswith("tests/") and not (tree / gate.path).exists()
    green, said = (True, "") if is_test_itself else whole(tree, gate.commands)
    if not green:
        return f"red without the change\n{said[-1500:]}"
    with changed(tree, gate):
        green, said = ran(tree, gate.commands)
    if green:
        return f"GREEN, though {gate.path} is broken"
    return "" if gate.sees in said else f"red, but not for its reason ({gate.sees})\n{said[-1500:]}"


def main() -> None:
    """A line for each gate."""
    asked = sys.argv[1:]
    chosen = [gate for gate in GATES if not asked or any(word in gate.name for word in asked)]
    wrong = unbroken()
    for line in wrong:
        print(f"{line}: nothing here breaks it", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary).resolve()
        copied(tree)
        for gate in chosen:
            said = verdict(tree, gate)
            wrong += [gate.name] if said else []
            print(f"{gate.name}: {said or 'red, as it should be'}", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
