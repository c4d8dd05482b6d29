"""Sharpness while a net trains with any optimizer: the largest eigenvalue of the Hessian, with an interval that holds."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5

torch.manual_seed(0)
x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
batches = DataLoader(TensorDataset(x.float() / 16, y), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.2)


def loss(batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


for epoch in range(EPOCHS):
    for batch in batches:
        opt.zero_grad()
        loss(batch).backward()
        opt.step()
    source = infhess.Hessian(loss, model.parameters(), batches)
    top = infhess.spectrum(source, k=1)  # parameters, gradients, buffers and training mode are left as they are
    low, high = (float(bound) for bound in top.interval(0.95))
    value = float(top.values[0])
    print(
        f"epoch {epoch}: sharpness {value:.2f}, 95 % interval {low:.2f} to {high:.2f}; SGD is stable below {2 / 0.2:.0f}"
    )
