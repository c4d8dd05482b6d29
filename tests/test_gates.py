"""`make gates` breaks what each check guards: its changes fit the files of today, and no check is left out."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def gates():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return runpy.run_path(str(ROOT / "tools" / "gates.py"))
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_every_line_of_the_checks_is_broken_by_something(gates):
    assert gates["recipe"]("check")
    assert gates["unbroken"]() == []


def test_every_change_fits_its_file(gates):
    new = {"docs/lost.md", "src/infhess/attic.py", "tests/test_added.py"}
    for gate in gates["GATES"]:
        if gate.path not in new and not gate.path.startswith("runs/"):
            assert re.search(gate.pattern, (ROOT / gate.path).read_text(encoding="utf-8")), gate.name
    assert not [path for path in new if (ROOT / path).exists()]


def test_a_check_that_cannot_fail_and_one_that_always_does_are_told(gates, tmp_path, monkeypatch):
    (tmp_path / "x").write_text("right\n")
    gate = gates["Gate"]("g", ("c",), "x", "right", "wrong", "wrong")
    answers = {
        "": lambda text: ("wrong" not in text, text),
        "GREEN": lambda text: (True, text),
        "red without": lambda text: (False, text),
        "not for its reason": lambda text: ("wrong" not in text, "something else"),
    }
    for told, answer in answers.items():
        gates["whole"].cache_clear()
        run = lambda tree, commands, answer=answer: answer((tree / "x").read_text())  # noqa: E731
        monkeypatch.setitem(gates["verdict"].__globals__, "ran", run)
        said = gates["verdict"](tmp_path, gate)
        assert said.startswith(told) or (told and told in said)
        assert bool(said) == bool(told)
        assert (tmp_path / "x").read_text() == "right\n"
