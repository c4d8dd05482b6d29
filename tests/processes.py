"""Cases in several processes at once. Processes are started once a session, by whichever worker asks first."""

from __future__ import annotations

import fcntl
import multiprocessing
import pickle
import queue
import traceback

import torch
from torch import distributed

# Imported once, by the process that the others are forked from.
PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "infhess"]


def in_processes(number, folder, cases, preload=()):
    """What each process finds: {name: case(rank, number)}; they meet in a file, not at a port."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *preload])
    results = context.Queue()
    args = (number, f"{folder}/store-{number}", cases, results)
    processes = [context.Process(target=_worker, args=(rank, *args), daemon=True) for rank in range(number)]
    for process in processes:
        process.start()
    try:
        found = dict(_next(results, processes) for _ in processes)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return [found[rank] for rank in range(number)]


def once(tmp_path_factory, name, compute):
    """compute(folder), for all workers of a session: the first one computes, the others read what it found."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if root.name.startswith("popen-") else root
    folder = root / f"once-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "found"
        if not path.exists():
            path.write_bytes(pickle.dumps(compute(folder)))
        return pickle.loads(path.read_bytes())


def _worker(rank, number, store, cases, results):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=number)
    try:
        results.put((rank, {name: case(rank, number) for name, case in cases.items()}))
    except BaseException:
        results.put((rank, traceback.format_exc()))
        raise
    distributed.barrier()
    distributed.destroy_process_group()


def _next(results, processes):
    """The next result, however long it takes, unless a process has died."""
    while True:
        try:
            rank, found = results.get(timeout=1)
        except queue.Empty:
            assert not any(process.exitcode for process in processes), "a process died before it had a result"
            continue
        assert not isinstance(found, str), found
        return rank, found
