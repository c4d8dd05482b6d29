"""Docstrings on the API pages: examples are blocks of code, and brackets in formulas are no links."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", flags=re.M)  # up to an empty line
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", flags=re.S)


def marked_up(docstring: str) -> str:
    """The Markdown of a docstring: "Cov [i=k][j=l]" is no link, and an example stands in a fence."""
    fenced = EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", docstring)
    parts = CODE.split(fenced)  # what stands in code is at the odd places
    return "".join(part if i % 2 else part.replace("][", "]&#91;") for i, part in enumerate(parts))


class Docstrings(griffe.Extension):
    """Reads every docstring so."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of any module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = marked_up(obj.docstring.value)
