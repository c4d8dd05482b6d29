"""Deviations between chunks of data, kept for later directions: in full, in bfloat16, or on disk, within a memory limit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

# Chunks of fresh data per direction: their spread is the noise. With fewer than 4, intervals do not cover.
CHUNKS = 8
# Without a limit: numbers kept at full precision; beyond that in bfloat16, accurate to 0.4 %; then bytes kept in memory.
FULL_PRECISION, IN_MEMORY = 2**28, 2**31
BFLOAT16 = 2  # bytes
COLUMNS = 2**16


@dataclass(frozen=True)
class Room:
    """How many directions fit, and where the deviations of their products are kept."""

    most: int
    dtype: torch.dtype
    on_disk: bool = False


def room_for(start: Tensor, least: int, most: int, memory: int | None, exact: bool = False) -> Room:
    """What fits into this many bytes: full precision, then bfloat16, then disk, and finally fewer directions.

    A direction takes N numbers in memory, and CHUNKS·N more for the deviations of its products unless these are exact.
    """
    N, width = len(start), start.dtype.itemsize
    if exact and (memory is None or _bytes(N, most, width, 0) <= memory):
        return Room(most, start.dtype)
    if memory is None:
        full = CHUNKS * most * N <= FULL_PRECISION
        return Room(
            most,
            start.dtype if full else torch.bfloat16,
            on_disk=not full and _bytes(N, most, width, BFLOAT16) > IN_MEMORY,
        )
    if _bytes(N, most, width, width) <= memory:
        return Room(most, start.dtype)
    if _bytes(N, most, width, BFLOAT16) <= memory:
        return Room(most, torch.bfloat16)
    fits = memory // (N * width) - 1
    if fits < least:
        raise _too_little(memory, least_bytes(start, least), f"{least} directions of {N:,} numbers")
    return Room(min(most, fits), torch.bfloat16, on_disk=True)


def divided(memory: int, least: Sequence[int]) -> list[int]:
    """Memory for several matrices at once, in proportion to the least bytes that each of them needs."""
    if memory < sum(least):
        raise _too_little(memory, sum(least), f"the directions of {len(least)} layers")
    return [memory * own // sum(least) for own in least]


def least_bytes(start: Tensor, directions: int) -> int:
    """What so many directions take in memory, and the one to come."""
    return _bytes(len(start), directions, start.dtype.itemsize, 0)


def _too_little(memory: int, wanted: int, what: str) -> ValueError:
    return ValueError(
        f"memory: expected at least {wanted:,} bytes for {what}, got {memory:,}; raise it, or ask for a smaller k"
    )


def _bytes(N: int, most: int, width: int, held: int) -> int:
    return N * ((most + 1) * width + CHUNKS * most * held)


class Deviations:
    """y_j^c − ȳ_j for each direction j, to be multiplied with later directions."""

    def __init__(self, room: Room) -> None:
        self._room, self._held = room, list[Tensor | Path]()
        self._folder = tempfile.TemporaryDirectory(prefix="infhess-") if room.on_disk else None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return sum(d.nbytes for d in self._held if isinstance(d, Tensor))

    def append(self, deviation: Tensor) -> None:
        """Add those of the newest direction, (C, N); (0, N) if its product is exact."""
        kept = deviation.to(self._room.dtype)
        if self._folder is None or not len(kept):
            self._held.append(kept)
            return
        path = Path(self._folder.name) / f"{len(self)}.safetensors"
        save_file({str(c): row.clone() for c, row in enumerate(kept.cpu())}, path)
        self._held.append(path)

    def along(self, i: int, Q: Tensor) -> Tensor:
        """q·(y_i^c − ȳ_i) of one direction i, for each row q of Q (m, N): (C, m)."""
        held = self._held[i]
        return _widened(held, Q) if isinstance(held, Tensor) else _read(held, Q)

    def close(self) -> None:
        """Delete the files on disk."""
        if self._folder is not None:
            self._folder.cleanup()


def _widened(held: Tensor, Q: Tensor) -> Tensor:
    """Products of rows in the precision of Q; tensors of lower precision are widened a few columns at a time."""
    if held.dtype == Q.dtype:
        return held @ Q.mT
    parts = zip(held.split(COLUMNS, 1), Q.split(COLUMNS, 1))  # type: ignore[no-untyped-call]
    return sum((h.to(Q) @ q.mT for h, q in parts), Q.new_zeros(len(held), len(Q)))


def _read(path: Path, Q: Tensor) -> Tensor:
    """Products with a file, reading one chunk at a time."""
    with safe_open(path, framework="pt") as file:
        return torch.stack([Q @ file.get_tensor(str(c)).to(Q) for c in range(CHUNKS)])
