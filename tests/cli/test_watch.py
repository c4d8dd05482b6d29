"""The command spectrum over a folder of checkpoints."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import save_file

from commands import read, run_here
from infhess.cli import watch
from infhess.problems.example import small_net

NET = "infhess.problems.example:small_net"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three checkpoints of the example: one format each, in an order that the alphabet does not know."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    model, _, _ = small_net()
    made = tmp_path / "made"
    made.mkdir()
    save_file(model.state_dict(), made / "net-2.safetensors")
    _moved(model)
    torch.save(model.state_dict(), made / "net-9.pt")
    _moved(model)
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, made / "net-10.ckpt")
    (made / "notes.txt").write_text("no checkpoint")
    return made


def _moved(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.001)


def test_each_checkpoint_has_a_line_and_a_second_run_goes_on(folder):
    said = run_here("spectrum", NET, "--k", "2", "--watch", "made", "--out", "w")
    places = [said.index(name) for name in ("net-2.safetensors", "net-9.pt", "net-10.ckpt")]
    assert places == sorted(places)
    assert "3 new checkpoints" in said
    rows = read("w/rows.csv")
    assert len(rows) == 3 * 2 * 4
    products = {r["problem"]: int(r["products"]) for r in rows}
    assert products["net-9.pt"] * 3 <= products["net-2.safetensors"]  # a warm start
    model, _, _ = small_net()
    save_file(model.state_dict(), folder / "net-11.safetensors")
    assert "1 new checkpoint." in run_here("spectrum", NET, "--k", "2", "--watch", "made", "--out", "w")
    assert "0 new checkpoints." in run_here("spectrum", NET, "--k", "2", "--watch", "made", "--out", "w")
    first = [r for r in read("w/rows.csv") if r["method"] == "eigenvalue 1: value"]
    by_checkpoint = {r["problem"]: float(r["metric"]) for r in first}
    assert by_checkpoint["net-11.safetensors"] == pytest.approx(by_checkpoint["net-2.safetensors"], rel=0.5)


def test_without_out_all_checkpoints_are_computed_each_time_and_nothing_is_written(folder):
    before = sorted(folder.parent.rglob("*"))
    first, again = (run_here("spectrum", NET, "--k", "1", "--watch", "made") for _ in range(2))
    assert "net-10.ckpt" in first
    assert first == again
    assert sorted(folder.parent.rglob("*")) == before


def test_it_prints_without_matplotlib(folder, monkeypatch):
    monkeypatch.setattr("infhess.experiments.plots.available", lambda: False)
    assert "no figure: it needs matplotlib" in run_here("spectrum", NET, "--k", "1", "--out", "a")
    assert "net-10.ckpt" in run_here("spectrum", NET, "--k", "1", "--watch", "made", "--out", "b")


def test_a_second_run_may_ask_for_more_eigenvalues(folder):
    run_here("spectrum", NET, "--k", "1", "--watch", "made", "--out", "w")
    save_file(small_net()[0].state_dict(), folder / "net-11.safetensors")
    *_, before, new = (
        line
        for line in run_here("spectrum", NET, "--k", "2", "--watch", "made", "--out", "w").splitlines()
        if "net-1" in line
    )
    assert before.count("–") == 1  # net-10 has one eigenvalue
    assert "–" not in new


@pytest.mark.parametrize("option", ["--density", "--layers"])
def test_checkpoints_have_eigenvalues_alone(folder, option):
    assert "leave them out with --watch" in run_here("spectrum", NET, "--watch", "made", option, status=2)


def test_rows_of_another_kind_are_not_mixed(folder):
    run_here("spectrum", NET, "--k", "1", "--out", "w")
    assert "holds other rows" in run_here("spectrum", NET, "--k", "1", "--watch", "made", "--out", "w", status=2)


class Code:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.pt", lambda path: torch.save({"w": Code()}, path), "expected weights alone"),
        ("a.pt", lambda path: torch.save([1, 2], path), "expected a state dict of tensors"),
        ("a.pt", lambda path: torch.save({"w": torch.ones(3)}, path), "not those of the model"),
        ("a.safetensors", lambda path: path.write_bytes(b"nothing"), "damaged"),
        ("a.txt", lambda path: path.write_bytes(b"nothing"), "expected checkpoints that end in"),
    ],
)
def test_bad_checkpoints_are_named(name, make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    make(tmp_path / "bad" / name)
    assert message in " ".join(run_here("spectrum", NET, "--watch", "bad", status=2).split())


def test_errors_of_the_users_code_are_one_line(folder, tmp_path):
    (tmp_path / "mine.py").write_text("def net(): return {}['missing']\n")
    assert "failed with KeyError" in run_here("spectrum", "mine.py:net", "--watch", "made", status=2)
    sys.modules.pop("mine", None)


def test_the_model_has_to_be_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "expected a folder of checkpoints" in run_here("spectrum", NET, "--watch", "absent", status=2)
    with pytest.raises(ValueError, match=r"needs a function that returns \(model, loss, batches\)"):
        watch.model_of((lambda b: b, [], []))


def test_steps_are_the_last_number_of_a_name(tmp_path):
    assert watch.step_of(tmp_path / "v2-step-1200.pt", 5) == 1200
    assert watch.step_of(tmp_path / "last.pt", 5) == 5
