"""The documents do what they say: their code runs as pasted, their tables are the files that commands wrote."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import infhess

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def found(pattern):
    return [
        pytest.param(document, match, id=f"{document.relative_to(ROOT)}-{i}")
        for document in DOCUMENTS
        for i, match in enumerate(re.findall(pattern, document.read_text(encoding="utf-8"), flags=re.S))
    ]


def text_of(document):
    """All but whole scripts, which tests/test_examples.py runs one by one, and formulas."""
    text = document.read_text(encoding="utf-8")
    text = re.sub(r"``` \{\.python [^}]*\}\n--8<-- \"examples/\S+\.py\"\n```\n", "", text)
    return re.sub(r"```math\n.*?\n```\n", "", text, flags=re.S)


def code_of(document):
    return re.findall(r"```python\n(.*?)```", text_of(document), flags=re.S)


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if "```" in text_of(d)], ids=lambda d: str(d.relative_to(ROOT))
)
def test_code_runs_when_pasted_from_top_to_bottom(document, tmp_path):
    fences = text_of(document).count("\n```")
    assert fences == 2 * len(code_of(document)), "a block of code that is not ```python is not run"
    code = "\n".join(code_of(document))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= len(code_of(document))


def test_what_the_readme_names_is_there():
    """Every function and class in its table is public, and every `make` that it tells a newcomer is a target."""
    text, targets = DOCUMENTS[0].read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)\(", text, flags=re.M))
    assert {"infer", "Preconditioned", "RateFree"} <= named <= set(infhess.__all__)
    told = re.findall(r"^ {4}make ([\w-]+)", text, flags=re.M)
    assert {"demo", "test"} <= set(told)
    assert all(re.search(rf"^{target}:", targets, flags=re.M) for target in told)


@pytest.mark.parametrize(("document", "included"), found(r"<!-- (\S+\.md) -->\n(.*?)<!-- end -->"))
def test_tables_are_the_files_that_commands_wrote(document, included):
    path, text = included
    assert text.strip() == (ROOT / path).read_text(encoding="utf-8").strip(), "run: make readme"


@pytest.mark.parametrize(("document", "path"), found(r"--8<-- \"(\S+)\""))
def test_what_a_page_includes_is_there(document, path):
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(("document", "link"), found(r"\]\(([^)#]+)\)"))
def test_links_lead_somewhere(document, link):
    assert link.startswith("https://") or (document.parent / link).exists()
