"""The commands as a person runs them: real processes, real files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import read, run, run_here
from infhess import __version__
from infhess.cli.app import add_commands, app
from infhess.cli.demo import CONVEX, INFHESS
from infhess.cli.rows import COLUMNS, RowFile


def test_demo_writes_rows_and_a_figure_and_does_not_compute_twice(tmp_path, monkeypatch):
    first = run("demo", "--out", "runs/demo", cwd=tmp_path)
    assert "What to run next" in first.stdout
    rows = read(tmp_path / "runs/demo/rows.csv")
    assert list(rows[0]) == COLUMNS
    assert (tmp_path / "runs/demo/demo.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs/demo/demo.svg").stat().st_size < 150_000
    whole, rows = rows, [r for r in rows if r["problem"] == CONVEX]
    gaps = {method: float(loss) for method, loss in ((r["method"], r["loss"]) for r in rows)}  # the last of each
    assert gaps[INFHESS] < 1e-3
    to_a_thousandth = {
        method: min(
            (int(r["data_points"]) for r in rows if r["method"] == method and float(r["loss"]) < 1e-3), default=10**9
        )
        for method in gaps
    }
    assert min(to_a_thousandth, key=to_a_thousandth.get) == INFHESS
    monkeypatch.chdir(tmp_path)
    run_here("demo", "--out", "runs/demo")
    assert read(tmp_path / "runs/demo/rows.csv") == whole


def test_without_out_the_demo_shows_its_tables_and_a_figure_and_keeps_no_rows(tmp_path, monkeypatch):
    rows = RowFile(Path(__file__).parents[2] / "docs/demo").rows
    monkeypatch.setattr("infhess.cli.demo.rows", lambda seed: iter(rows))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        assert "What to run next" in run_here("demo")
    assert list((tmp_path / "here").iterdir()) == []
    assert [path.name for path in (tmp_path / "elsewhere").rglob("*.*")] == ["demo.png"] * 2
    assert "give --out as well" in run_here("demo", "--fresh", status=2)


@pytest.mark.long
def test_a_fresh_demo_keeps_earlier_rows_and_finds_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_here("demo", "--out", "runs/demo")
    rows = read(tmp_path / "runs/demo/rows.csv")
    run_here("demo", "--out", "runs/demo", "--fresh")
    assert read(tmp_path / "runs/demo/rows.1.csv") == rows
    again = read(tmp_path / "runs/demo/rows.csv")
    assert [r["metric"] for r in again] == [r["metric"] for r in rows]


@pytest.mark.parametrize("command", ["", "demo", "spectrum"])
def test_help(command):
    text = run_here(*command.split(), "--help")
    assert "Usage" in text
    assert "Example" in text


def test_version():
    assert run_here("--version").strip() == __version__


def test_bad_input_ends_with_status_2_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    error = run("demo", "--out", "file", cwd=tmp_path, status=2).stderr
    assert error.startswith("infhess: ")
    assert "Traceback" not in error
    (tmp_path / "other").mkdir()
    (tmp_path / "other/rows.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert "choose another --out" in run_here("demo", "--out", "other", status=2)
    assert "choose another --out" in run_here("demo", "--out", "file/demo", status=2)
    assert (tmp_path / "other/rows.csv").read_text() == "a,b\n1,2\n"
    run_here("demo", "--seed", "-1", status=2)
    run_here("paint", status=2)


WRONG = {
    ("nonsense",): "No such command 'nonsense'; see infhess --help",
    ("demo", "--seed", "a"): "see infhess demo --help",
    ("spectrum",): "see infhess spectrum --help",
}


@pytest.mark.parametrize(("arguments", "remedy"), WRONG.items(), ids=[" ".join(given) for given in WRONG])
def test_wrong_options_end_with_status_2_and_one_line(arguments, remedy):
    said = run_here(*arguments, status=2)
    assert remedy in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", ["bench", "bench convex --quick", "reproduce deep", "data list", "data --help"])
def test_without_the_benchmarks_their_commands_say_how_to_get_them(command):
    said = told("sys.modules['infhess_bench'] = None; metadata.entry_points = lambda group: []", command)
    assert said == f"infhess: {command.split()[0]}: comes with the benchmarks; in a clone: pip install -e benchmarks\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_packages_the_command_line_says_what_to_install(missing):
    said = told(f"sys.modules['{missing}'] = None", "demo")
    assert said == "infhess: the command line needs typer and rich; install them with: pip install 'infhess[cli]'\n"


def told(before, command):
    """What the command says on standard error, in a process of its own, after some code; it ends with status 2."""
    code = f"import sys\nfrom importlib import metadata\n{before}\nsys.argv = ['infhess', *sys.argv[1:]]\n"
    code += "from infhess.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_packages_add_commands(monkeypatch):
    """By a function that gets the app; infhess itself knows none of them."""
    added = []
    point = SimpleNamespace(load=lambda: added.append)
    monkeypatch.setattr("infhess.cli.app.entry_points", lambda group: [point] if group == "infhess.commands" else [])
    add_commands()
    assert added == [app]
