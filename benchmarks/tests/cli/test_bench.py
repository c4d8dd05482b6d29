"""The bench commands: they measure, and resume."""

from __future__ import annotations

import inspect
import math
from importlib import import_module

import pytest

from commands import read, run, run_here
from infhess_bench.cli.bench_curvature import COMPARISONS


def test_bench_deep_measures_the_cost_or_something_else(tmp_path):
    out = run("bench", "deep", "--cost", "--quick", "--out", "c", cwd=tmp_path)
    assert "step at rank 2 / gradient" in out.stdout
    rows = read(tmp_path / "c/rows.csv")
    assert all(float(r["metric"]) > 0 for r in rows)
    assert {r["products"] for r in rows if r["method"].startswith("update")} == {"15"}
    assert "got --tune and --cost" in run_here("bench", "deep", "--cost", "--tune", status=2)
    assert "name each by --method" in run_here("bench", "deep", "--again", status=2)
    assert "--defaults: not with --large" in run_here("bench", "deep", "--large", "--defaults", status=2)


@pytest.mark.long
def test_bench_inference_measures_and_resumes(tmp_path):
    out = run("bench", "inference", "--quick", "--out", "b", cwd=tmp_path)
    assert "times faster" in out.stdout
    rows = read(tmp_path / "b/rows.csv")
    assert all(math.isfinite(float(r["metric"])) and float(r["metric"]) > 0 for r in rows)
    assert (tmp_path / "b/summary.md").read_text().startswith("| what | measured |")
    run("bench", "inference", "--quick", "--out", "b", cwd=tmp_path)
    assert read(tmp_path / "b/rows.csv") == rows


def test_bench_curvature_runs_one_comparison_on_chosen_problems(tmp_path):
    asked = "bench", "curvature", "--density", "--quick", "--trials", "4"
    out = run_here(*asked, "--problem", "five values", "--workers", "1", "--out", str(tmp_path / "d"))
    assert "| five values, N = 600 | all data |" in out
    assert {r["problem"] for r in read(tmp_path / "d/rows.csv")} == {"five values"}
    assert "got --coverage and --density" in run_here("bench", "curvature", "--density", "--coverage", status=2)
    assert "--method: expected one of" in run_here(*asked, "--method", "mine", "--out", str(tmp_path / "e"), status=2)


@pytest.mark.parametrize("comparison", COMPARISONS.values(), ids=[kind or "eigenvalues" for kind in COMPARISONS])
def test_every_comparison_of_curvature_gets_what_its_jobs_ask_for(comparison):
    module = import_module(f"infhess_bench.bench.{comparison.module}")
    asked = inspect.signature(module.jobs).bind("seed", *comparison.asks, quick=True).arguments
    assert list(asked) == ["seed", *comparison.asks, "quick"]
    assert hasattr(module, "figure") or not comparison.figure
