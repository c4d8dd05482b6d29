"""Every text that the package can say to a user, read off its source: errors, warnings, and notes of reports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "infhess"
GAP = "…"  # what is filled in at run time
ROOMS_OF_COMMANDS = ("bench", "cli", "data", "experiments", "harness", "problems")
# Parts of reprs, labels of figures, and what a text is compared with.
LABELS = (
    r".*products, … data points.*", r"(Report|Tracker|Estimate|Minimum)\(.*", r"…\(…×… matrix.*", r"…?,? and … more",
    r".*95 %.*", r"passes over the data", r"gap .*", r"share of eigenvalues at or below", r"… \(… … …\)", r"a … of …",
    r"Spectrum \| .*", r"(s|y) and the (directions|products) before it",
    r"Using backward.*", r"\(int number, .*", r"from … to …", r"… negative, … within ± …",
    r"curvature along the vector",
)  # fmt: skip


@dataclass(frozen=True)
class Message:
    """A text with gaps, and where it is said."""

    text: str
    where: str


def constants(path: Path) -> dict[str, str]:
    """Texts that have a name in a module."""
    found: dict[str, str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = literal(node.value, {})
            if text and len(text.split()) > 2:
                found[node.targets[0].id] = text
    return found


def literal(node: ast.AST | None, named: dict[str, str]) -> str | None:
    """A text with a gap for each value; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [literal(p, named) if isinstance(p, ast.Constant) else _field(p, named) for p in node.values]
        return "".join(p or GAP for p in parts)
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left, named), literal(node.right, named)
        return None if left is None and right is None else (left or GAP) + (right or GAP)
    return None


def _field(node: ast.AST, named: dict[str, str]) -> str:
    value = node.value if isinstance(node, ast.FormattedValue) else None
    return named.get(value.id, GAP) if isinstance(value, ast.Name) else GAP


def sentences(node: ast.AST, named: dict[str, str], words: int) -> Iterator[str]:
    """The outermost texts of so many words or more below a node; docstrings and annotations are left out."""
    text = literal(node, named)
    if text is not None:
        if len(text.split()) >= words:
            yield text
        return
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not docstring and name not in ("annotation", "returns"):
                yield from sentences(child, named, words)


def messages() -> list[Message]:
    """Of the whole package; a text that is said at several places once."""
    paths = sorted(SOURCE.rglob("*.py"))
    shared = {name: text for path in paths for name, text in constants(path).items()}
    found: dict[str, Message] = {}
    for path in paths:
        for text, line in (told if _speaks(path) else raised)(path, shared | constants(path)):
            found.setdefault(text, Message(text, f"{path.relative_to(SOURCE)}:{line}"))
    return list(found.values())


def _speaks(path: Path) -> bool:
    """Whether any sentence in a module is one for the user; in rooms of commands, tables and figures have many others."""
    return path.relative_to(SOURCE).parts[0] not in ROOMS_OF_COMMANDS


def raised(path: Path, named: dict[str, str]) -> Iterator[tuple[str, int]]:
    """What is raised or warned of."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Raise) and node.exc is not None:
            calls = [n for n in ast.walk(node.exc) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith("Error")]
            parts = [a for call in calls for a in call.args]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
            parts = node.args[:1]
        for part in parts:
            yield from ((text, part.lineno) for text in sentences(part, named, words=3))


def told(path: Path, named: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Any sentence of four words or more: errors, warnings, notes, reasons. Labels of figures and reprs are left out."""
    yield from raised(path, named)
    for text in sentences(ast.parse(path.read_text(encoding="utf-8")), named, words=4):
        if not any(re.fullmatch(label, text) for label in LABELS):
            yield text, 0
