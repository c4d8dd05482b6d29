"""Every script in examples/ runs, and the table of docs/guides/frameworks.md names tests and scripts that are there."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}
# Epochs or steps, and what the last lines have to say.
SIZES = {
    "accelerate_loop.py": ("6", r"accuracy 0\.[5-9]"),
    "closure.py": ("6", r"lr = 100: accuracy 0\.[5-9]"),
    "ddp.py": ("6", r"accuracy 0\.[5-9]"),
    "fsdp2.py": ("3", r"accuracy 0\.[5-9]"),
    "lightning_module.py": ("6", r"accuracy 0\.[5-9]"),
    "plain_torch.py": ("6", r"accuracy 0\.[5-9]"),
    "sharpness.py": ("1", r"epoch 0: sharpness \d"),
    "skorch_digits.py": ("8", r"accuracy 0\.[5-9]"),
    "transformers_trainer.py": ("20", r"loss [0-3]\."),
}
TABLE = (ROOT / "docs" / "guides" / "frameworks.md").read_text(encoding="utf-8").split("\n## What works where\n")[1]
SHOWN = sorted(set(re.findall(r"\]\(\.\./\.\./([^)#]+)#([^)]*)\)", TABLE)))


def test_every_example_has_a_size():
    assert set(SIZES) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_is_short(name, tmp_path):
    size, said = SIZES[name]
    if name.startswith("transformers"):
        pytest.importorskip("transformers")
    assert EXAMPLES[name].read_text(encoding="utf-8").count("\n") < 60
    # A warning of ours would be an error here; those of frameworks about themselves are theirs.
    command = [
        sys.executable,
        "-W",
        "error:RateFree",
        "-W",
        "error:the learning-rate schedule",
        str(EXAMPLES[name]),
        size,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout), done.stdout


# ---- what works where


def test_the_table_makes_claims_for_every_framework():
    rows = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {8}
    named = {path for path, _ in SHOWN}
    assert {f"examples/{name}" for name in EXAMPLES} <= named
    for word in re.findall(r"(?<!\[)\byes\b(?!\])", "\n".join(map("|".join, rows[2:]))):
        pytest.fail(f"{word} without a test")


@pytest.mark.parametrize(("path", "test"), SHOWN, ids=lambda text: text or "script")
def test_what_shows_a_claim_is_there_and_not_skipped(path, test):
    if path.startswith("examples/"):
        assert Path(path).name in SIZES
        return
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == test]
    assert len(found) == 1, f"{path} has no {test}"
    told = ast.unparse(module)
    assert not re.search(r"importorskip|mark\.skip|mark\.xfail|pytest\.skip|mark\.long", told), f"{path} may skip it"
