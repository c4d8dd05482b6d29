"""Jobs that run in several processes; the rows of a finished job are stored, and it does not run again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from infhess.harness.rows import Key, Row, RowFile


@dataclass(frozen=True)
class Job:
    """One computation: the template of its rows, and a module-level function of the template and further arguments."""

    template: Row
    call: Callable[..., list[Row]]
    arguments: tuple[Any, ...] = ()

    @property
    def key(self) -> Key:
        """Its key among the rows."""
        return self.template.key

    @property
    def title(self) -> str:
        """Its name in the progress line."""
        _, problem, method, seed, batch = self.key
        words = [problem, *([f"batch {batch}"] if batch else []), *([f"seed {seed}"] if seed else [])]
        return f"{', '.join(words)}: {method}"

    def run(self) -> list[Row]:
        """Compute; rows carry the key, so that the job is recognised as done."""
        rows = self.call(self.template, *self.arguments)
        assert any(row.key == self.key for row in rows), f"{self.title}: no row has the key {self.key}"
        return rows


def run(jobs: Iterable[Job], file: RowFile, workers: int) -> Generator[Job, None, None]:
    """Compute what is not in the file yet, add the rows as each job finishes, and yield the job.

    A single worker runs in this process; several run in their own processes, with one thread each. Whatever ends it early,
    Ctrl-C or a job that failed, ends the workers at once and keeps the rows of jobs that are finished.
    """
    todo = [job for job in jobs if job.key not in file.done()]
    if workers <= 1 or len(todo) <= 1:
        for job in todo:
            file.add(job.run())
            yield job
        return
    context, before = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    futures: dict[Future[list[Row]], Job] = {}
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start) as pool:
        try:
            with _interrupts_later():
                futures |= {pool.submit(job.run): job for job in todo}
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    file.add(future.result())
                    yield futures.pop(future)
        except BaseException:
            # Leaving the pool waits for the jobs that run, for minutes: their processes are ended first.
            for worker in set(multiprocessing.active_children()) - set(before):
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            for future, job in futures.items():  # those that finished before that
                if not future.cancelled() and future.exception() is None and job.key not in file.done():
                    file.add(future.result())
            raise


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back for a moment; processes that start in it never get one, not even while they import."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start() -> None:
    """A worker uses one thread, leaves Ctrl-C to its parent, and ends when its parent is gone, even if that was killed."""
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
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
