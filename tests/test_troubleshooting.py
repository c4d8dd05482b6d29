"""Every text that the package can say has its entry in docs/troubleshooting.md, and every entry a text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from messages import GAP, messages

PAGE = (Path(__file__).parent.parent / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ENTRIES = [text for line in re.findall(r"^#### (.*)$", PAGE, flags=re.M) for text in re.findall(r"`([^`]+)`", line)]
MESSAGES = messages()


def fits(entry, text):
    """Whether a text begins as the entry does, with its gaps at the same places."""
    whole = re.sub(f"{GAP}+", GAP, text.replace("`", ""))
    return whole.startswith(re.sub(f"{GAP}+", GAP, entry).rstrip(GAP))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.where)
def test_a_message_has_its_entry(message):
    assert any(fits(entry, message.text) for entry in ENTRIES), f"no entry for: {message.text} ({message.where})"


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_has_its_message(entry):
    assert any(fits(entry, message.text) for message in MESSAGES), "nothing says so any more"


def test_an_entry_says_what_to_do():
    for head, _, rest in (part.partition("\n") for part in PAGE.split("\n#### ")[1:]):
        remedy = rest.split("\n## ")[0].strip()
        assert len(remedy.split()) >= 4, head
