"""Plain torch: `step(closure)`, torch's own convention, drives any optimizer of the library."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20

x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16


def train(make):
    torch.manual_seed(0)
    batches = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = make(model.parameters())
    for _ in range(EPOCHS):
        for inputs, targets in batches:

            def closure(inputs=inputs, targets=targets):
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            opt.step(closure)
    if isinstance(opt, infhess.RateFree):
        opt.finish()
    return (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()


print(f"RateFree: accuracy {train(infhess.RateFree):.3f}")
for rate in (1e-6, 100.0):  # the learning rate that the base was made with does not matter
    momentum = lambda params, rate=rate: torch.optim.SGD(params, lr=rate, momentum=0.9)  # noqa: E731
    wrapped = lambda params, base=momentum: infhess.Preconditioned(base(params), blocks="layer")  # noqa: E731
    print(f"momentum, made with lr = {rate:g}: accuracy {train(wrapped):.3f}")
