"""Edge of stability, with error bars.

Gradient descent on all the data sharpens a net until its largest eigenvalue reaches 2/η, and then hovers there (Cohen et
al. 2021). `Tracker` follows the eigenvalue from mini-batches while the net trains, with an interval at each update.

Figure: The largest eigenvalue of a net rises during training and settles at the dashed line 2 over the learning rate.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import mse_loss

import infhess

torch.manual_seed(3)
x = torch.randn(256, 10)
y = (x[:, :1] * x[:, 1:2]).tanh() + 0.1 * torch.randn(256, 1)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
rate, every, steps = 0.2, 60, 2400


def loss(batch):
    return mse_loss(model(batch[0]), batch[1])


batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, 256, 32)]
tracker = infhess.Tracker(infhess.Hessian(loss, model.parameters(), batches))
opt = torch.optim.SGD(model.parameters(), lr=rate)
losses = []
for step in range(steps + 1):
    if step % every == 0:
        tracker.update(step=step, rate=rate)
    opt.zero_grad()
    losses.append(loss((x, y)))
    losses[-1].backward()
    opt.step()

last = tracker.history[-1]
print(
    f"2/η = {2 / rate:.1f}; at the end the largest eigenvalue is {last.values[0]:.1f} ({last.low[0]:.1f} to {last.high[0]:.1f})"
)

fig, (above, below) = plt.subplots(2, 1, figsize=(6.5, 5), sharex=True)
at = [moment.step for moment in tracker.history]
above.plot(at, [moment.values[0] for moment in tracker.history], label="largest eigenvalue")
above.fill_between(
    at, [m.low[0] for m in tracker.history], [m.high[0] for m in tracker.history], alpha=0.25, label="95 % interval"
)
above.axhline(2 / rate, color="#d9640b", linestyle="--", label="2/η")
above.set(ylabel="sharpness")
above.legend()
below.plot([float(value.detach()) for value in losses], color="#8a8a8a")
below.set(xlabel="step of gradient descent", ylabel="training loss", yscale="log")
fig.savefig("figure.svg")
