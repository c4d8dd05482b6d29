"""Accelerate: what `prepare` gives has `step`, `eval` and `train`; `reachable` adds `watch`, `rate` and the rest."""

import sys
import tempfile

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess
from infhess.integrations.accelerate import reachable

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20

torch.manual_seed(0)
x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
opt = infhess.RateFree(model.parameters())
batches = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=32, shuffle=True)
model, opt, batches = accelerator.prepare(model, opt, batches)
opt = reachable(opt)

for _ in range(EPOCHS):
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            with opt.watch():
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()

opt.eval()  # the averaged weights
accuracy = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
accelerator.print(f"accuracy {accuracy:.3f}, learning rate {opt.rate}")
folder = tempfile.mkdtemp()
accelerator.save_state(folder)  # holds the averaged weights, and all that training needs
accelerator.load_state(folder)
opt.train()  # goes on bit for bit
