"""Pieces of work that fan out over processes; a finished one is on disk, and is not computed again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from infhess.experiments.rows import Row, RowFile

Key = tuple[str, str, str, int, int]


@dataclass(frozen=True)
class Piece:
    """One computation: a key among the rows, a title for the progress line, and a module-level function with its arguments."""

    key: Key
    title: str
    call: Callable[..., list[Row]]
    arguments: tuple[Any, ...] = ()

    def run(self) -> list[Row]:
        """Compute; the first row carries the key, so that the piece is found again."""
        rows = self.call(*self.arguments)
        assert any(row.piece == self.key for row in rows), f"{self.title}: no row has the key {self.key}"
        return rows


def run(pieces: Iterable[Piece], file: RowFile, workers: int) -> Iterator[Piece]:
    """Compute what is not in the file yet, add its rows as each piece finishes, and yield the piece.

    With one worker in this process; with more, each in a process of its own with one thread.
    """
    todo = [piece for piece in pieces if piece.key not in file.done()]
    if workers <= 1 or len(todo) <= 1:
        for piece in todo:
            file.add(piece.run())
            yield piece
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start) as pool:
        futures: dict[Future[list[Row]], Piece] = {pool.submit(piece.run): piece for piece in todo}
        try:
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    file.add(future.result())
                    yield futures.pop(future)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start() -> None:
    """A worker has one thread, leaves Ctrl-C to its parent, and ends when its parent is gone, even if that was killed."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
