"""Plain torch: `watch()` around forward and backward, nothing else."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20

torch.manual_seed(0)
x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16
batches = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

opt = infhess.RateFree(model.parameters())
for _ in range(EPOCHS):
    for inputs, targets in batches:
        opt.zero_grad()
        with opt.watch():
            nn.functional.cross_entropy(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip or not: the learning rate is the same
        opt.step()

with opt.averaged():  # the averaged weights are the result
    accuracy = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
print(f"accuracy {accuracy:.3f}, learning rate {opt.rate}")
print(opt.report.as_dict())  # of the last curvature probe, for any logger
opt.finish()
torch.save(model.state_dict(), "digits.pt")
