"""Rows of results on disk: written as they are computed, never overwritten; an interrupted run continues where it stopped."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from infhess._files import atomic
from infhess._rules import versioned
from infhess._version import __version__
from infhess.cli.rules import rule_before, rule_of

Key = tuple[str, str, str, int, int]  # experiment, problem, method, seed, batch size


@dataclass(frozen=True)
class Row:
    """One number of one curve: `method` names the curve, the counts are the cost; `rule` is filled in when it is stored."""

    experiment: str
    problem: str
    method: str
    seed: int = 0
    batch_size: int = 0
    data_points: int = 0
    products: int = 0
    seconds: float = 0.0
    loss: float = float("nan")
    metric: float = float("nan")
    version: str = __version__
    rule: str = ""

    @property
    def key(self) -> Key:
        """The key of the job that computes it; a job with stored rows does not run again."""
        return self.experiment, self.problem, self.method, self.seed, self.batch_size


COLUMNS = [f.name for f in fields(Row)]


class RowFile:
    """`rows.csv` in a folder; rows of a finished job are added all together or not at all."""

    def __init__(self, folder: Path, *, fresh: bool = False, seed: int | None = None) -> None:
        self.path = folder / "rows.csv"
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: expected a folder for rows and figures, got a file; choose another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{folder}: cannot be made ({error.strerror}); choose another --out") from error
        if fresh:
            set_aside(self.path)
        self.rows = list(self._read())
        others = {row.seed for row in self.rows} - {seed}
        if seed is not None and others:
            raise ValueError(
                f"{self.path} holds rows of seed {min(others)}; choose another --out, or start over with --fresh"
            )

    def _read(self) -> Iterator[Row]:
        if not self.path.exists():
            return
        with self.path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames not in (COLUMNS, COLUMNS[:-1]):  # earlier files do not name the rule
                raise ValueError(f"{self.path}: expected the columns {','.join(COLUMNS)}; choose another --out folder")
            for record in reader:
                yield _row(record)

    def done(self) -> set[Key]:
        """The jobs with stored rows."""
        return {row.key for row in self.rows}

    def drop(self, stale: Callable[[Row], bool]) -> None:
        """Drop rows; the file is rewritten with the next job."""
        self.rows = [row for row in self.rows if not stale(row)]

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows of a finished job, by way of a temporary file that replaces the old one."""
        named = [row if row.rule else replace(row, rule=versioned(rule_of(*row.key[:3]))) for row in rows]
        rows = [*self.rows, *named]
        with atomic(self.path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
        self.rows = rows  # only now: who is interrupted before can add them again


def set_aside(path: Path) -> None:
    """Rename an existing file: rows.csv becomes rows.1.csv."""
    if path.exists():
        path.rename(next(p for i in count(1) if not (p := path.with_name(f"{path.stem}.{i}{path.suffix}")).exists()))


def _row(record: dict[str, str]) -> Row:
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    try:
        row = Row(**{f.name: kinds[str(f.type)](record[f.name]) for f in fields(Row) if f.name in record})
    except (TypeError, ValueError) as error:
        raise ValueError(f"rows.csv has a damaged line ({record}); fix it, or start over with --fresh") from error
    return row if "rule" in record else replace(row, rule=rule_before(*row.key[:3], row.version))
