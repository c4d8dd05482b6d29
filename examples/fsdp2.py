"""FSDP2: `torchrun --nproc-per-node 2 examples/fsdp2.py`; run plainly it starts two processes by itself."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import infhess

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 6


def main(**where):
    dist.init_process_group("gloo", **where)
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    torch.manual_seed(0)  # the same model in all processes
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    opt = infhess.RateFree(model.parameters(), points=32)  # of each process
    x = torch.randn(2048, 20)
    y = (x @ torch.randn(20, 4)).argmax(1)
    for _ in range(EPOCHS):
        for part in torch.randperm(2048).split(32 * world):
            mine = part[rank::world]

            def closure(mine=mine):
                opt.zero_grad()
                loss = cross_entropy(model(x[mine]), y[mine])
                loss.backward()
                return loss

            opt.step(closure)  # on probing steps the closure runs twice: curvature is a difference of gradients
    opt.eval()
    accuracy = float((model(x).argmax(1) == y).float().mean())
    if rank == 0:
        print(f"accuracy {accuracy:.3f}, learning rate {opt.rate}")
    dist.barrier()
    dist.destroy_process_group()


def process(rank, store):
    main(init_method=store, rank=rank, world_size=2)


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun
        main()
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(process, (f"file://{folder}/store",), nprocs=2)
