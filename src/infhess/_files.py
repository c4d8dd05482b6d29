"""Atomic writes: a file is complete or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path next to `path`, renamed to it if the block succeeds and removed if it fails."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected the name of a file, got a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: there is no such folder; make it first")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
