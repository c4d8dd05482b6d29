"""The commands that the benchmarks add to `infhess`."""

from __future__ import annotations

import pytest

from commands import run_here


@pytest.mark.parametrize("command", ["reproduce", "bench", "bench inference", "bench convex", "data", "data list"])
def test_help(command):
    text = run_here(*command.split(), "--help")
    assert "Usage" in text
    assert "Example" in text
    assert command.split()[0] in run_here("--help")


WRONG = {
    ("bench", "nonsense"): "see infhess bench --help",
    ("reproduce",): "regression, logistic, deep; see infhess reproduce --help",
}


@pytest.mark.parametrize(("arguments", "remedy"), WRONG.items(), ids=[" ".join(given) for given in WRONG])
def test_wrong_options_end_with_status_2_and_one_line(arguments, remedy):
    said = run_here(*arguments, status=2)
    assert remedy in said
    assert said.count("\n") == 1
