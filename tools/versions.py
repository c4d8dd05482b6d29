"""Run the core of the suite at both ends of what pyproject.toml admits, each in an environment of its own.

python tools/versions.py            # lowest and highest
python tools/versions.py lowest     # the oldest Python, every dependency at its lower bound
python tools/versions.py highest    # the newest Python of this machine, the newest dependencies

Interpreters are looked for on PATH and among those of pyenv. Packages come from where pip's settings say, such as
PIP_EXTRA_INDEX_URL: without a CPU build of torch, an environment takes six gigabytes. It is deleted afterwards.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    sys.exit("tools/versions.py reads pyproject.toml: expected Python 3.11 or newer, got 3.10; make PYTHON=python3.12")

ROOT = Path(__file__).parent.parent
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pandas")
CORE = [
    *("lowrank", "posterior", "curvature", "spectra", "preconditioners", "optim", "minimizing", "cli"),
    *("test_active.py", "test_autocast.py", "test_imports.py", "test_pilot.py", "test_precision.py"),
    "test_rounding.py",
]
# These need packages of other people, which have bounds of their own on Python and torch.
FOREIGN = ["--ignore=tests/curvature/test_foreign.py", "--ignore=tests/lowrank/test_exports.py"]
FOREIGN += ["--deselect=tests/test_imports.py::test_frameworks_are_imported_when_they_are_asked_for_and_not_before"]
# A shell that starts this in the background has its children ignore Ctrl-C.
FOREIGN += ["--ignore=tests/cli/test_interrupts.py"]
# What other packages will drop one day is an error in the suite of today's versions, not at the lower bounds.
WARNINGS = ["-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning"]
# Of torch on the very first release of Python 3.13.
WARNINGS += ["-W", "ignore:Guards may run slower:RuntimeWarning"]


def runs(path: Path) -> bool:
    """A shim of pyenv stands on PATH also for a version that is not chosen."""
    return subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0


def interpreters() -> dict[tuple[int, int], str]:
    """Python 3.x on this machine, by minor version."""
    folders = [*map(Path, os.get_exec_path()), *sorted(Path.home().glob(".pyenv/versions/*/bin"))]
    found: dict[tuple[int, int], str] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("python3.*"))):
        named = re.fullmatch(r"python3\.(\d+)", path.name)
        if named and (version := (3, int(named[1]))) not in found and runs(path):
            found[version] = str(path)
    return dict(sorted(found.items()))


def lower_bound(requirement: str) -> str | None:
    """`torch>=2.9,<2.14` gives `torch==2.9`."""
    read = Requirement(requirement)
    bounds = [s.version for s in read.specifier if s.operator in (">=", "==")]
    return f"{read.name}=={bounds[0]}" if bounds else None


def requirements(project: dict) -> tuple[list[str], list[str]]:
    """What the library, its command line and the demo need, and the tools of the tests."""
    extras = project["optional-dependencies"]
    own = [*project["dependencies"], *extras["cli"], *(r for r in extras["demo"] if Requirement(r).name != "infhess")]
    return own, [r for r in extras["dev"] if Requirement(r).name in TOOLS]


def chosen(end: str, project: dict) -> str | None:
    """The interpreter for one end, or none where this machine has not the one that is needed."""
    admitted = SpecifierSet(project["requires-python"])
    there = interpreters()
    fits = [v for v in there if admitted.contains(f"{v[0]}.{v[1]}.99")]
    if end == "highest":
        return there[fits[-1]] if fits else None
    oldest = tuple(int(n) for n in re.search(r">=\s*(\d+)\.(\d+)", project["requires-python"]).groups())
    return there.get(oldest)


def tried(end: str, project: dict, arguments: list[str]) -> bool:
    """Build the environment and run the tests in it; whether they pass."""
    python = chosen(end, project)
    if python is None:
        print(f"{end}: NOT TRIED, this machine has no Python for requires-python {project['requires-python']}")
        return False
    own, tools = requirements(project)
    folder = Path(tempfile.mkdtemp(prefix=f"infhess-{end}-"))
    try:
        pinned = [lower_bound(r) for r in own] if end == "lowest" else []
        (folder / "bounds.txt").write_text("\n".join(filter(None, pinned)) + "\n")
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        inside = folder / "venv/bin/python"
        pip = [inside, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
        subprocess.run([*pip, "install", "-c", folder / "bounds.txt", f"{ROOT}[demo]", *tools], check=True)
        show = "import sys, torch, infhess; print(sys.version.split()[0], 'torch', torch.__version__, infhess.__file__)"
        # The tests are of the installed library; the tree is not on the path.
        told = subprocess.run(
            [inside, "-c", show], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()
        print(f"{end}: Python {told}", flush=True)
        subprocess.run([*pip, "list"], check=True)
        paths = [f"tests/{name}" for name in CORE]
        command = [inside, "-m", "pytest", "-p", "no:cacheprovider", *FOREIGN, *WARNINGS, *arguments, *paths]
        passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        print(f"{end}: Python {told}: {'passed' if passed else 'FAILED'}", flush=True)
        return passed
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ends", nargs="*", help="lowest, highest; both if none is given")
    parser.add_argument("--workers", default="auto", help="processes of pytest")
    options = parser.parse_args()
    ends = options.ends or ["lowest", "highest"]
    if unknown := set(ends) - {"lowest", "highest"}:
        parser.error(f"expected lowest or highest, got {', '.join(sorted(unknown))}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    arguments = ["-n", options.workers, "--dist", "worksteal"]
    results = [tried(end, project, arguments) for end in ends]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
