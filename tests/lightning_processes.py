"""Lightning in several processes, and in one on the joint batch."""

from __future__ import annotations

import os
import warnings

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lightning_cases import OWN_WARNINGS, Memory, Net, data, trainer
from watch_cases import F64, diagonal, weights

EVERY = 5


def run(folder, world, micro_batches=1):
    """Weights and what curvature allows for after two epochs, and what was logged; batches in order."""
    from infhess.integrations.lightning import CurvatureCallback

    module, logger = Net(make=diagonal).to(F64), Memory()
    several = {"devices": world, "strategy": "ddp", "use_distributed_sampler": False} if world > 1 else {}
    sampler = DistributedSampler(data(F64), shuffle=False) if world > 1 else None
    options = {"max_epochs": 2, "logger": logger, "accumulate_grad_batches": micro_batches}
    runs = trainer(folder, [CurvatureCallback(every=EVERY)], callback=False, **options, **several)
    size = 32 // world // micro_batches
    runs.fit(module, DataLoader(data(F64), size, sampler=sampler), DataLoader(data(F64), 64))
    return weights(module).tolist(), runs.optimizers[0].report.allowed, logger.of("sharpness/value/1")


def cases(folder, rank, world):
    """Processes are started from outside, as by torchrun, and meet in a file: Lightning finds their group."""
    for text in OWN_WARNINGS:
        warnings.filterwarnings("ignore", message=text.removeprefix("ignore:"))
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world), "RANK": str(rank)}
    return [run(folder, world, micro_batches) for micro_batches in (1, 2)]
