"""The README does what it says: its code runs as pasted, its table is the file that the benchmark wrote."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.S)
INCLUDED = re.findall(r"<!-- (\S+\.md) -->\n(.*?)<!-- end -->", README, flags=re.S)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs_when_pasted(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "products" in done.stdout


def test_there_is_code():
    assert BLOCKS


@pytest.mark.parametrize(("path", "text"), INCLUDED, ids=[p for p, _ in INCLUDED])
def test_tables_are_the_files_that_commands_wrote(path, text):
    assert text.strip() == (ROOT / path).read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_somewhere(link):
    assert link.startswith("https://") or (ROOT / link).exists()
