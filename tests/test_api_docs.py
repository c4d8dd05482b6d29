"""The API pages: every public name stands on one of them, with an example that runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import infhess

API = Path(__file__).parent.parent / "docs" / "api"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(API.glob("*.md"))}
NAMES = [name for name in infhess.__all__ if name != "__version__"]


def shown(page):
    return re.findall(r"^::: infhess\.(\w+)$", PAGES[page], flags=re.M)


def section(name):
    """What stands below a name on its page; blocks of code on pages run in tests/test_readme.py."""
    (text,) = [text for text in PAGES.values() if f"::: infhess.{name}\n" in text]
    return text.split(f"::: infhess.{name}\n")[1].split("\n::: ")[0]


def test_every_public_name_stands_on_one_page():
    assert sorted(name for page in PAGES for name in shown(page)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example_that_runs(name):
    docstring = inspect.getdoc(getattr(infhess, name)) or ""
    assert "\n>>> " in docstring or "```python" in section(name)
