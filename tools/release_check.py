"""The release checklist: build, check, install each file into a fresh environment, and run the README there.

    python tools/release_check.py             # everything comes from the package index: gigabytes
    python tools/release_check.py --borrow    # torch and the packages of the extras come from this environment

To borrow, a path file in the fresh environment leads to this environment's packages, which are searched after its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
MOST = 2_000_000  # bytes of a wheel


def called(*command: str | Path, cwd: Path = ROOT, status: int = 0) -> str:
    """What a command printed; another status than expected ends the check."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "INFHESS_DATA")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def built() -> list[Path]:
    """A source distribution and a wheel, both checked by twine."""
    shutil.rmtree(DIST, ignore_errors=True)
    called(sys.executable, "-m", "build", "--outdir", DIST)
    files = sorted(DIST.iterdir())
    called(sys.executable, "-m", "twine", "check", "--strict", *files)
    return files


def checked(path: Path) -> None:
    """Small, and without results of benchmarks."""
    if path.suffix == ".whl":
        names = zipfile.ZipFile(path).namelist()
        assert path.stat().st_size < MOST, f"{path.name}: {path.stat().st_size:,} bytes"
        assert not [n for n in names if "benchmarks/" in n or n.startswith("results/")], "a wheel holds no results"
    version = (ROOT / "src/infhess/_version.py").read_text(encoding="utf-8").split('"')[-2]
    for text in (path.name, *(read(ROOT / name) for name in ("CHANGELOG.md", "CITATION.cff"))):
        assert version in text, f"{version} is missing"


def read(path: Path) -> str:
    """A text file."""
    return path.read_text(encoding="utf-8")


def fresh(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def installed(python: Path, file: Path, folder: Path) -> None:
    """The file first without its extra, which `infhess demo` has to name, and then with it."""
    called(python, "-m", "pip", "install", "--quiet", file)
    names_the_extra(called(python.with_name("infhess"), "demo", cwd=folder, status=2))
    called(python, "-m", "pip", "install", "--quiet", f"{file}[experiments]")


def borrowed(python: Path, file: Path, folder: Path) -> None:
    """The file alone, and all that it needs from here; the packages of the extra are hidden from `infhess demo` for once."""
    called(python, "-m", "pip", "install", "--quiet", "--no-deps", file)
    packages = Path(called(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    (packages / "after_its_own.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
    code = """
import importlib.util, sys
find, hidden = importlib.util.find_spec, ("matplotlib", "sklearn")
sys.modules.update(dict.fromkeys(hidden))
importlib.util.find_spec = lambda name: None if name in hidden else find(name)
import infhess.cli
infhess.cli.app(["demo"])
"""
    names_the_extra(called(python, "-c", code, cwd=folder, status=2))


def names_the_extra(told: str) -> None:
    """What `infhess demo` says without it."""
    assert "pip install 'infhess[experiments]'" in " ".join(told.split()), told


def runs(python: Path, folder: Path) -> None:
    """The installed package is the one from the file, and the README does what it says."""
    where = called(python, "-c", "import infhess; print(infhess.__file__)", cwd=folder)
    assert str(folder.resolve()) in str(Path(where.strip()).resolve()), where
    code = "\n".join(re.findall(r"```python\n(.*?)```", read(ROOT / "README.md"), flags=re.S))
    called(python, "-c", code, cwd=folder)
    called(python.with_name("infhess"), "--version", cwd=folder)
    called(python.with_name("infhess"), "demo", "--out", "runs/demo", cwd=folder)
    assert (folder / "runs/demo/demo.svg").exists()


def main() -> None:
    """One line for each step."""
    install = borrowed if "--borrow" in sys.argv else installed
    for file in built():
        checked(file)
        print(f"built and checked: {file.name}, {file.stat().st_size:,} bytes", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            python = fresh(folder / "env")
            install(python, file, folder)
            runs(python, folder)
            print(f"in a fresh environment: the README runs, `infhess demo` too ({file.name})", flush=True)


if __name__ == "__main__":
    main()
