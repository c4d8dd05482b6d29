"""Where data files are: a given folder, $INFHESS_DATA, or the cache; every file is checked before it is read."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from infhess_bench.data.registry import BATCH_SHA256, BATCH_SIZE, DATASETS


class DataError(ValueError):
    """A data file that is missing or damaged; the message names it and a remedy."""


def use(data_dir: Path | None) -> None:
    """Look for data in this folder first, in this process and in those that it starts."""
    if data_dir is None:
        return
    if not Path(data_dir).is_dir():
        raise DataError(f"--data-dir {data_dir}: expected a folder; there is none of that name")
    os.environ["INFHESS_DATA"] = str(Path(data_dir).resolve())


def cache() -> Path:
    """Where `infhess data get` puts files: $INFHESS_CACHE, or the system's place for caches."""
    if os.environ.get("INFHESS_CACHE"):
        return Path(os.environ["INFHESS_CACHE"])
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "infhess"


def folders() -> list[Path]:
    """The folders that are searched, in order."""
    named = os.environ.get("INFHESS_DATA")
    return [*([Path(named)] if named else []), cache()]


def checked(dataset: str, path: str) -> Path:
    """The path of a data file, after checking its checksum."""
    sha256 = next(file.sha256 for file in DATASETS[dataset].files if file.path == path)
    return _verified(found(dataset, path), sha256)


def found(dataset: str, *names: str) -> Path:
    """The first of these files, in the first folder that has one."""
    for folder in folders():
        for name in names:
            if (folder / name).is_file():
                return folder / name
    searched = ", ".join(map(str, folders()))
    raise DataError(
        f"{names[0]}: not found in {searched}; get it with: infhess data get {dataset}, or name a folder with --data-dir"
    )


@lru_cache(maxsize=64)
def _verified(path: Path, sha256: str) -> Path:
    if digest(path) != sha256:
        raise DataError(f"{path}: damaged, its sha256 is not that of the original; remove it and get it again")
    return path


def digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file.read())
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def cifar_batch(name: str) -> Path:
    """The path of one of CIFAR-10's batches, plain or gzipped."""
    stem = f"cifar10/cifar-10-batches-bin/{name}"
    path = found("cifar10", stem, f"{stem}.gz")
    if path.name in BATCH_SHA256:
        return _verified(path, BATCH_SHA256[path.name])
    if path.suffix == ".bin" and path.stat().st_size != BATCH_SIZE:
        raise DataError(f"{path}: damaged, expected {BATCH_SIZE} bytes; remove it and run: infhess data get cifar10")
    return path
