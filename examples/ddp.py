"""DistributedDataParallel: `torchrun --nproc-per-node 2 examples/ddp.py`; run plainly it starts two processes by itself."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import infhess

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def main(**where):
    dist.init_process_group("gloo", **where)
    torch.manual_seed(0)
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    data = TensorDataset(x[:1400], y[:1400])
    sampler = DistributedSampler(data, seed=0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    opt = infhess.RateFree(model.parameters())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=32, sampler=sampler):
            opt.zero_grad()
            with opt.watch():
                nn.functional.cross_entropy(model(inputs), targets).backward()
            opt.step()
    opt.finish()  # all processes have the same weights and the same learning rate
    if dist.get_rank() == 0:
        accuracy = (net(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
        print(f"accuracy {accuracy:.3f}, learning rate {opt.rate}")
    dist.destroy_process_group()


def process(rank, store):
    main(init_method=store, rank=rank, world_size=2)


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun
        main()
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(process, (f"file://{folder}/store",), nprocs=2)
