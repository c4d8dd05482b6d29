"""Lightning with two processes: one process on the joint batches, to rounding."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from lightning_cases import OWN_WARNINGS, Net, data, fit, loader, trainer
from watch_cases import F64, weights

pytestmark = [pytest.mark.filterwarnings(text) for text in OWN_WARNINGS]


class Split(Net):
    """Reads its part of the data, in order: Lightning's own sampler would shuffle."""

    size = 16

    def train_dataloader(self):
        return DataLoader(data(F64), batch_size=self.size, sampler=DistributedSampler(data(), shuffle=False))

    def val_dataloader(self):
        return loader(64, dtype=F64)


@pytest.mark.parametrize(("size", "micro_batches"), [(16, 1), (8, 2)])
def test_two_processes_are_one_on_the_joint_batch(size, micro_batches, tmp_path):
    module = Split().to(F64)
    module.size = size
    options = {"accumulate_grad_batches": micro_batches, "use_distributed_sampler": False}
    runs = trainer(tmp_path, strategy="ddp_spawn", devices=2, **options)
    runs.fit(module)
    _, alone = fit(tmp_path, dtype=F64)
    torch.testing.assert_close(weights(module), weights(alone), rtol=1e-7, atol=1e-10)
