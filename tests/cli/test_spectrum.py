"""The command spectrum: on the example, on a file, and what it names as wrong."""

from __future__ import annotations

import json
import sys

import pytest

from commands import run, run_here
from infhess.harness.rows import Row, RowFile

NET = "infhess.problems.example:small_net"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own, from which modules are imported and forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in {"mine", "helper", "broken", "syntax"} - before:
        sys.modules.pop(name, None)


def test_the_command_on_the_example_and_on_a_file(tmp_path, here):
    out = run("spectrum", NET, "--k", "3", "--out", "s", cwd=tmp_path)
    assert "stands out" in out.stdout
    numbers = json.loads((tmp_path / "s/spectrum.json").read_text())
    assert len(numbers["values"]) == 3
    assert all(low <= v <= high for low, v, high in zip(numbers["low"], numbers["values"], numbers["high"]))
    assert (tmp_path / "s/spectrum.png").read_bytes().startswith(b"\x89PNG")
    assert "earlier result" in run_here("spectrum", NET, "--out", "s", status=2)
    run_here("spectrum", NET, "--k", "2", "--out", "s", "--fresh")
    kept = sorted(p.name for p in (tmp_path / "s").iterdir())
    assert kept == ["rows.1.csv", "rows.csv", "spectrum.1.json", "spectrum.1.png", "spectrum.json", "spectrum.png"]
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def quadratic():\n"
        "    w = torch.zeros(3, requires_grad=True)\n"
        "    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 2.0, 1.0])\n"
        "    return lambda b: (b @ w).square().mean() / 2, [w], list(x.split(50))\n"
    )
    run_here("spectrum", "mine:quadratic", "--k", "2", "--out", "a")
    run_here("spectrum", "mine.py:quadratic", "--k", "2", "--out", "b")
    a, b = (json.loads((tmp_path / f / "spectrum.json").read_text())["values"] for f in "ab")
    assert a == b
    assert 7 < a[0] < 12


def test_without_out_it_prints_the_same_each_time_and_writes_nothing(tmp_path, here):
    first, again = (run_here("spectrum", NET, "--k", "2", "--layers").split("Smallest")[0] for _ in range(2))
    assert "stands out" in first
    assert first == again
    assert list(tmp_path.iterdir()) == []
    assert "give --out as well" in run_here("spectrum", NET, "--fresh", status=2)


@pytest.mark.parametrize("wrong", [("absent.py:f",), (NET, "--matrix", "gauss-newton", "--products", "difference")])
def test_other_errors_come_before_that_of_an_earlier_result(wrong, tmp_path, here):
    (tmp_path / "s").mkdir()
    RowFile(tmp_path / "s").add([Row("spectrum", "p", "value")])
    said = run_here("spectrum", *wrong, "--out", "s", status=2)
    assert "earlier result" not in said
    assert "no such file" in said or "leave it out with --matrix" in " ".join(said.split())
    assert "earlier result" in run_here("spectrum", NET, "--out", "s", status=2)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "expected MODULE:FUNCTION"),
        ("no_such_module:f", "no module named no_such_module"),
        ("absent.py:f", "no such file"),
        ("infhess.problems.example:absent", "has no function absent"),
        ("math:pi", "has no function pi"),
        ("time:time", "must return"),
        ("broken.py:raises", "failed with KeyError"),
        ("broken.py:leaves", "failed with SystemExit"),
        ("broken.py:two", "it returned 2 things"),
        ("syntax.py:f", "cannot be imported: SyntaxError"),
    ],
)
def test_the_command_names_what_is_wrong(target, message, tmp_path, here):
    (tmp_path / "helper.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text(
        "from __future__ import annotations\nimport dataclasses, sys, helper\n"
        "@dataclasses.dataclass\nclass A:\n    x: int = 0\n"
        "def raises(): return {}['missing']\n"
        "def leaves(): sys.exit(0)\n"
        "def two(): return 1, 2\n"
    )
    (tmp_path / "syntax.py").write_text("def f(:\n")
    error = run_here("spectrum", target, status=2)
    assert message in error
    assert "Traceback" not in error


def test_density_and_layers_on_demand(tmp_path, here):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def net():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))\n"
        "    x = torch.randn(96, 3, generator=torch.Generator().manual_seed(0))\n"
        "    return model, torch.nn.MSELoss(), list(zip(x.split(32), x[:, :1].split(32)))\n"
    )
    out = run_here("spectrum", "mine:net", "--k", "2", "--density", "--layers", "--out", "s")
    assert "Layers, with 95 % intervals" in out
    assert "Shares of all eigenvalues" in out
    numbers = json.loads((tmp_path / "s/spectrum.json").read_text())
    assert list(numbers["layers"]) == ["0", "2"]
    assert numbers["layers"]["0"]["largest-low"] <= numbers["layers"]["0"]["largest"]
    assert numbers["density"]["stopped"] == "all data"
    assert numbers["density"]["cdf"]["share"][-1] == pytest.approx(1.0)
    assert (tmp_path / "s/density.png").read_bytes().startswith(b"\x89PNG")
    rows = (tmp_path / "s/rows.csv").read_text()
    assert "mine:net/layer-2,largest-high" in rows
    assert "mine:net/share near zero,low" in rows
