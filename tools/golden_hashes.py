"""Hashes of all that a run shows of itself, step by step, and their text format: one file a run, no numbers in it."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Not a part of what is computed: how long it took.
LEFT_OUT = {"seconds"}
# Sentences for people. They are compared, but may change without a new version of the rule.
WORDS = {"notes", "why", "stopped"}
# Hex digits of the hash of a step, which decides, and of each name in it, which says where to look.
STEP, NAME = 32, 3


class Leaf(NamedTuple):
    """One number, text or tensor: its kind, and its bytes."""

    kind: str
    data: bytes


class Step(NamedTuple):
    """A step and what it showed, by name, in the order in which it was shown."""

    label: str
    leaves: dict[str, Leaf]


class Line(NamedTuple):
    """The hashes of a step: of its numbers, of its words, and a short one of each name."""

    label: str
    numbers: str
    words: str
    names: tuple[str, ...]
    short: tuple[str, ...]


class Record(NamedTuple):
    """The rule of a run with its version, and its steps."""

    rule: str
    version: int
    lines: tuple[Line, ...]


def leaves(value: Any, name: str) -> Iterator[tuple[str, Leaf]]:
    """All that a value holds, by name: public fields of results, items of lists and dicts in their order, bytes of tensors.

    >>> [(name, leaf.kind) for name, leaf in leaves({"a": torch.ones(2), "seconds": 3.0, "b": [1, None]}, "x")]
    [('x.a', 'float32 (2,)'), ('x.b', 'plain')]
    """
    if isinstance(value, Tensor):
        yield name, tensor(value)
    elif dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if not f.name.startswith("_")]
        yield from leaves({field: getattr(value, field) for field in fields}, name)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key not in LEFT_OUT:
                yield from leaves(part, f"{name}.{key}".replace(" ", "_"))
    elif hasattr(value, "_asdict"):
        yield from leaves(value._asdict(), name)
    elif isinstance(value, float):
        yield name, Leaf("float", struct.pack("<d", value if value == value else math.nan))
    elif plain(value):
        yield name, Leaf("plain", written(value).encode())
    elif isinstance(value, list | tuple):
        yield from leaves(dict(enumerate(value)), name)
    else:
        raise TypeError(
            f"{name}: expected tensors, numbers, texts, results, or lists and dicts of them, got {type(value).__name__}"
        )


def plain(value: Any) -> bool:
    """Whether this is a number, a text, None, or a list of nothing else."""
    if isinstance(value, list | tuple) and not hasattr(value, "_asdict"):
        return all(map(plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def written(value: Any) -> str:
    """A plain value as text, floats by their bits; every NaN is the same."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(written, value))})"
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value).hex()
    return repr(value)


def tensor(value: Tensor) -> Leaf:
    """The bytes of a tensor, row by row; every NaN is the same."""
    whole = value.detach().contiguous().reshape(-1)
    if whole.is_floating_point():
        whole = torch.where(whole == whole, whole, torch.full_like(whole, torch.nan))
    return Leaf(
        f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}", whole.view(torch.uint8).numpy().tobytes()
    )


def shown(label: Any, things: dict[str, Any]) -> Step:
    """A step of a run."""
    return Step(str(label), {name: leaf for key, value in things.items() for name, leaf in leaves(value, key)})


def hashed(step: Step) -> Line:
    """The hashes of a step."""
    every = {
        name: hashlib.sha256(f"{name}\n{leaf.kind}\n".encode() + leaf.data).hexdigest()
        for name, leaf in step.leaves.items()
    }

    def joint(names: list[str]) -> str:
        return hashlib.sha256("".join(every[name] for name in names).encode()).hexdigest()[:STEP] if names else "-"

    words = [name for name in every if name.rpartition(".")[2] in WORDS]
    numbers = [name for name in every if name not in words]
    return Line(step.label, joint(numbers), joint(words), tuple(every), tuple(h[:NAME] for h in every.values()))


def record(rule: str, version: int, steps: Iterable[Step]) -> Record:
    """The record of a run."""
    return Record(rule, version, tuple(map(hashed, steps)))


def text(found: Record) -> str:
    """A record as a file: all names once, which of them steps show where that changes, and a line a step."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(name for line in found.lines for name in line.names))}
    lines, names = [f"rule {found.rule} {found.version}", " ".join(["names", *numbers])], tuple[str, ...]()
    for line in found.lines:
        if line.names != names:
            names = line.names
            lines.append(f"shows {ranges([numbers[name] for name in names])}")
        lines.append(f"{line.label} {line.numbers} {line.words} {''.join(line.short)}")
    return "\n".join(lines) + "\n"


def ranges(numbers: list[int]) -> str:
    """Numbers in their order, those in a row as one range.

    >>> ranges([0, 1, 2, 7, 4, 5])
    '0-2 7-7 4-5'
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return " ".join(f"{first}-{last}" for first, last in runs)


def parsed(written: str) -> Record:
    """The record in a file."""
    (_, rule, version), (_, *known), *rest = (line.split(" ") for line in written.splitlines())
    lines, names = [], tuple[str, ...]()
    for label, *others in rest:
        if label == "shows":
            pairs = (part.split("-") for part in others)
            names = tuple(name for first, last in pairs for name in known[int(first) : int(last) + 1])
        else:
            short = tuple(others[2][i : i + NAME] for i in range(0, len(others[2]), NAME))
            lines.append(Line(label, others[0], others[1], names, short))
    return Record(rule, int(version), tuple(lines))


def difference(old: Record, new: Record) -> tuple[str, str] | None:
    """The first step, and the first name in it, in which two records differ; None if they are equal."""
    for a, b in zip(old.lines, new.lines):
        if a == b:
            continue
        if a.label != b.label:
            return a.label, f"expected here, got step {b.label}"
        for name, other, was, now in zip(a.names, b.names, a.short, b.short):
            if name != other:
                return a.label, f"{name} expected, got {other}"
            if was != now:
                return a.label, name
        longer, what = (a.names, "is missing") if len(a.names) > len(b.names) else (b.names, "is new")
        rest = longer[min(len(a.names), len(b.names)) :]
        return a.label, f"{rest[0]} {what}" if rest else "some name"
    if len(old.lines) != len(new.lines):
        return "last", f"expected {len(old.lines)} steps, got {len(new.lines)}"
    return None


def same_numbers(old: Record, new: Record) -> bool:
    """Whether two records differ in words at most. Names are part of the hash of a step."""
    return [(line.label, line.numbers) for line in old.lines] == [(line.label, line.numbers) for line in new.lines]
