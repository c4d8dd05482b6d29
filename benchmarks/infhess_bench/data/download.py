"""Download data sets from their publishers: sha256 is checked before any use, and files are written atomically."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infhess._files import atomic
from infhess_bench.data.files import DataError, cache, digest
from infhess_bench.data.registry import DATASETS, File

TIMEOUT = 30.0
Bar = Callable[[File], Any]  # makes a progress bar in pooch's interface: .total, .update(n), .reset(), .close()


def get(
    name: str,
    folder: Path | None = None,
    *,
    mirror: str | None = None,
    timeout: float = TIMEOUT,
    bar: Bar | None = None,
) -> Iterator[Path]:
    """Put the files of a data set into a folder (the cache by default) and yield the path of each.

    Correct files are not fetched again. `mirror` is an address that has the files by name; it is tried before the originals.
    """
    if name not in DATASETS:
        raise DataError(f"data set: expected one of {', '.join(DATASETS)}, got {name!r}")
    root = folder or cache()
    for file in DATASETS[name].files:
        target = root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        members = [root / member for member in file.members]
        if not (members and all(m.is_file() for m in members)) and not (
            target.is_file() and digest(target) == file.sha256
        ):
            _fetch(file, target, mirror, timeout, bar)
        if members:
            yield from _unpacked(target, members)
        else:
            yield target


def _fetch(file: File, target: Path, mirror: str | None, timeout: float, bar: Bar | None) -> None:
    """Download from the first address that returns the right bytes."""
    urls = ([f"{mirror.rstrip('/')}/{file.name}"] if mirror else []) + list(file.urls)
    reasons = []
    for url in urls:
        try:
            _fetch_from(url, file, target, timeout, bar)
        except (OSError, ValueError) as error:
            reasons.append(f"{url}: {_reason(error)}")
        else:
            return
    raise DataError(
        f"{file.name} could not be fetched ({'; '.join(reasons)}); try again later, name a --mirror that has it, "
        f"or put it at {target} by hand"
    )


def _fetch_from(url: str, file: File, target: Path, timeout: float, bar: Bar | None) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # silence messages on temporary files
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
        downloader = pooch.HTTPDownloader(progressbar=bar(file) if bar else False, timeout=timeout)
        path = pooch.retrieve(
            url, known_hash=f"sha256:{file.sha256}", fname=file.name, path=folder, downloader=downloader
        )
        Path(path).chmod(0o644)
        Path(path).replace(target)


def _reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "its sha256 is not that of the original" if "hash" in text.lower() else text[:200]


def _unpacked(archive: Path, members: list[Path]) -> Iterator[Path]:
    """The members of a checked archive, by name, each written atomically; the archive itself is then removed."""
    missing = [m for m in members if not m.is_file()]
    if missing:
        with tarfile.open(archive) as tar:
            for member in missing:
                member.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(f"{member.parent.name}/{member.name}")
                if source is None:
                    raise DataError(f"{archive}: has no {member.name}; remove it and get it again")
                with atomic(member) as temporary:
                    temporary.write_bytes(source.read())
    archive.unlink(missing_ok=True)
    yield from members
