"""The documents do what they say: their code runs as pasted, and what they include and link to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

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
    """All but formulas; tests/test_examples.py runs the scripts that stand indented under their titles."""
    return re.sub(r"```math\n.*?\n```\n", "", document.read_text(encoding="utf-8"), flags=re.S)


def code_of(document):
    return re.findall(r"```python\n(.*?)```", text_of(document), flags=re.S)


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if "```" in text_of(d)], ids=lambda d: str(d.relative_to(ROOT))
)
def test_code_runs_when_pasted_from_top_to_bottom(document, tmp_path, monkeypatch, capsys):
    fences = text_of(document).count("\n```")
    assert fences == 2 * len(code_of(document)), "a block of code that is not ```python is not run"
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        exec(compile("\n".join(code_of(document)), str(document), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.count("\n") >= len(code_of(document))


def test_the_readme_fits_two_screens():
    text = DOCUMENTS[0].read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    recipes = re.findall(r"\n\*\*[^*]+\*\*\n\n```python\n(.*?)```", text, flags=re.S)
    assert len(recipes) == 3
    assert all(recipe.count("\n") <= 10 for recipe in recipes)
    table, limits = (text.split(f"## {title}\n")[1].split("\n## ")[0] for title in ("Which one do I use?", "Limits"))
    assert table.count("\n|") == 2 + 6
    assert limits.count("\n- ") == 5


def test_what_the_readme_names_is_there():
    """Every name in its table is public, and every `make` that it tells a newcomer is a target."""
    text, targets = DOCUMENTS[0].read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    table = text.split("## Which one do I use?\n")[1].split("\n## ")[0]
    named = {name for cell in re.findall(r"`(\w+)[(`]", table) for name in [cell]}
    methods = {name for name in named if hasattr(infhess.Preconditioned, name)}
    assert {"infer", "Preconditioned", "RateFree"} <= named - methods <= set(infhess.__all__)
    told = re.findall(r"^ {4}make ([\w-]+)", text, flags=re.M)
    assert {"demo", "test"} <= set(told)
    assert all(re.search(rf"^{target}:", targets, flags=re.M) for target in told)


@pytest.mark.parametrize(("document", "path"), found(r"--8<-- \"(\S+)\""))
def test_what_a_page_includes_is_there(document, path):
    assert (ROOT / path.split(":")[0]).is_file()  # lines of it may follow


@pytest.mark.parametrize(("document", "link"), found(r"\]\(([^)#]+)\)"))
def test_links_lead_somewhere(document, link):
    path = document.parent / link
    made = path.parent.name == "gallery" and (path.stem == "index" or path.with_suffix(".py").exists())  # with the site
    assert link.startswith("https://") or path.exists() or made
