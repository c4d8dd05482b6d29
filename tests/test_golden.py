"""The tool behind `make golden`: what it sees, what it refuses, and that every run is committed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from golden_hashes import Step, difference, parsed, record, same_numbers, shown, text  # noqa: E402

import golden  # noqa: E402

FEW = ["rate-free-kronecker-watch-resumed", "convex-SGD-observe", "minimize-poisson", "spectrum-layers"]


@pytest.fixture
def committed(tmp_path, capsys):
    """A folder with the hashes of a few runs."""
    assert golden.main([*FEW, "--update", "--folder", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


@pytest.fixture
def other_constant():
    """RateFree's σ in rotated coordinates, another by one part in ten million, wherever the rule stands in the package."""
    loaded = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("infhess")]
    rule = next(names["KRONECKER"] for names in loaded if "KRONECKER" in names)
    before = rule.sigma
    object.__setattr__(rule, "sigma", before * (1 + 1e-7))
    yield
    object.__setattr__(rule, "sigma", before)


def test_runs_are_the_same_twice_in_another_order(committed, capsys):
    assert golden.main([*reversed(FEW), "--folder", str(committed)]) == 0
    assert "4 runs, 0 differ" in capsys.readouterr().out


def test_one_changed_constant_is_seen_in_its_runs_alone(committed, capsys, other_constant):
    assert golden.main([*FEW, "--folder", str(committed)]) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("rate-free-kronecker-watch-resumed: step ")
    assert last == "golden: 4 runs, 1 differ"


def test_hashes_change_only_with_the_version_of_their_rule(committed, capsys, monkeypatch, other_constant):
    before = {path.name: path.read_text() for path in committed.iterdir()}
    assert golden.main([*FEW, "--update", "--folder", str(committed)]) == 1
    assert "raise the version of 'rate-free'" in capsys.readouterr().out
    assert {path.name: path.read_text() for path in committed.iterdir()} == before
    monkeypatch.setitem(golden.RULES, "rate-free", golden.RULES["rate-free"] + 1)
    assert golden.main([*FEW, "--update", "--folder", str(committed)]) == 0
    assert golden.main([*FEW, "--folder", str(committed)]) == 0


def test_a_version_that_was_raised_is_written_too(committed, capsys, monkeypatch):
    monkeypatch.setitem(golden.RULES, "minimize", golden.RULES["minimize"] + 1)
    assert golden.main([*FEW, "--folder", str(committed)]) == 1
    assert "minimize-poisson: is of minimize" in capsys.readouterr().out
    assert golden.main([*FEW, "--update", "--folder", str(committed)]) == 0
    assert golden.main([*FEW, "--folder", str(committed)]) == 0


def test_with_another_torch_it_says_so_and_compares_nothing(committed, capsys, other_constant):
    (committed / golden.ABOUT).write_text("torch 1.0, x86_64\n")
    for update in [], ["--update"]:
        assert golden.main([*FEW, *update, "--folder", str(committed)]) == 0
        assert "hashes are of torch 1.0, x86_64; here it is torch" in capsys.readouterr().out
    assert golden.main([*FEW, "--update", "--new-torch", "--folder", str(committed)]) == 0
    assert golden.main([*FEW, "--folder", str(committed)]) == 0


def test_the_size_of_a_difference_is_shown(committed, capsys, tmp_path, request):
    values = str(tmp_path / "values")
    golden.main([FEW[0], "--folder", str(committed), "--values", values])
    request.getfixturevalue("other_constant")
    capsys.readouterr()
    assert golden.main([FEW[0], "--folder", str(committed), "--against", values]) == 1
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "opt.state.0.numbers" in line and "of its length" in line
    ]
    shares = [float(line.rpartition(": ")[2].split()[0]) for line in lines]
    assert shares
    assert all(0 < share < 1e-2 for share in shares)


def steps(notes="none", value=1.0, more=False):
    things = {"report": {"notes": notes, "value": value}} | ({"extra": 1} if more else {})
    return [shown(1, {"report": None}), shown(2, things)]


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        (steps(value=1.0 + 2**-52), ("2", "report.value")),
        (steps(notes="other"), ("2", "report.notes")),
        (steps(more=True), ("2", "extra is new")),
        (steps()[:1], ("last", "expected 2 steps, got 1")),
        ([steps()[0], Step("3", steps()[1].leaves)], ("2", "expected here, got step 3")),
    ],
)
def test_the_first_difference_is_named(changed, where):
    old, new = record("r", 1, steps()), record("r", 1, changed)
    assert difference(old, new) == where
    assert same_numbers(old, new) == (where == ("2", "report.notes"))
    assert parsed(text(new)) == new


def test_order_dtype_shape_and_signs_of_zero_are_part_of_a_hash():
    def of(value):
        return record("r", 1, [shown(1, {"x": value})])

    x = torch.tensor([[0.0, 1.0]])
    others = [x.double(), x.mT, -x * torch.tensor([1.0, -1.0]), x.flip(1)]
    assert all(difference(of(x), of(y)) for y in others)
    assert difference(of({"a": x, "b": x}), of({"b": x, "a": x})) == ("1", "x.a expected, got x.b")
    assert difference(of(x), of(x.mT.contiguous().mT)) is None
    assert difference(of(torch.tensor([torch.nan])), of(-torch.tensor([torch.nan]))) is None
    with pytest.raises(TypeError, match="expected tensors, numbers"):
        of({"a": object()})
    assert of(torch.zeros(0)).lines[0].names == ("x",)


def test_every_run_is_committed_and_of_the_present_version_of_its_rule():
    held = golden.stored(golden.FOLDER)
    assert {name: found[:2] for name, found in held.items()} == {
        name: (rule, golden.RULES[rule]) for name, (rule, _) in golden.RUNS.items()
    }
