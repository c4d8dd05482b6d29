"""The numbers of golden runs in files, to see how large a difference is that hashes have shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from golden_hashes import Leaf, Step
from torch import Tensor


def kept(folder: Path, name: str, steps: list[Step]) -> None:
    """Store all that a run has shown."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(
        [(step.label, {key: tuple(leaf) for key, leaf in step.leaves.items()}) for step in steps], folder / f"{name}.pt"
    )


def sizes(folder: Path, name: str, steps: list[Step]) -> Iterator[str]:
    """Of the first and the last step that differ from the stored ones, the names, and by how much relative to their length."""
    path = folder / f"{name}.pt"
    if not path.exists():
        yield f"{name}: {path} does not exist; store it with --values"
        return
    before = [
        Step(label, {key: Leaf(*leaf) for key, leaf in found.items()})
        for label, found in torch.load(path, weights_only=True)
    ]
    changed = [(a, b) for a, b in zip(before, steps) if a != b]
    if len(before) != len(steps):
        yield f"{name}: {len(before)} steps before, {len(steps)} now"
    for a, b in changed[:1] + changed[1:][-1:]:
        for key in sorted({*a.leaves, *b.leaves}, key=[*a.leaves, *b.leaves].index):
            if a.leaves.get(key) != b.leaves.get(key):
                yield f"{name}: step {b.label}, {key}: {_size(a.leaves.get(key), b.leaves.get(key))}"


def _size(before: Leaf | None, now: Leaf | None) -> str:
    if before is None or now is None:
        return "is new" if before is None else "is gone"
    if before.kind != now.kind:
        return f"{before.kind} before, {now.kind} now"
    if before.kind == "plain":
        return f"{before.data.decode()} before, {now.data.decode()} now"
    a, b = _numbers(before), _numbers(now)
    return f"{float((a - b).norm() / a.norm().clamp(min=1e-300)):.2g} of its length, {int((a != b).sum())} of {len(a)} numbers"


def _numbers(leaf: Leaf) -> Tensor:
    dtype = torch.float64 if leaf.kind == "float" else getattr(torch, leaf.kind.split(" ")[0])
    return torch.frombuffer(bytearray(leaf.data), dtype=dtype).double() if leaf.data else torch.zeros(0).double()
