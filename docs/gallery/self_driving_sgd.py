"""Self-driving sgd against tuned sgd.

Least squares with a condition number of 1e5, batches of 32. Plain sgd gets the best of eight learning rates, chosen on this
problem. `Preconditioned` with `observe` starts from an absurd one; it estimates curvature and sets the step length by itself.

Figure: Gap to the optimum against data points read: sgd at eight learning rates, and below all of them self-driving sgd,
which ends far lower.
"""

import matplotlib.pyplot as plt
import torch

import infhess

g = torch.Generator().manual_seed(0)
n, d = 20_000, 60
x = torch.randn(n, d, generator=g) * torch.logspace(0, -2.5, d)
x = x @ torch.linalg.qr(torch.randn(d, d, generator=g)).Q
y = x @ torch.randn(d, generator=g) * 10 + 0.1 * torch.randn(n, generator=g)
best = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]


def value(w):
    return float((x @ w - y).square().mean())


def gap(w):
    return (value(w) - value(best)) / (value(torch.zeros(d)) - value(best))


def run(make, observe=False):
    w = torch.zeros(d, requires_grad=True)
    opt, mean, curve = make([w]), torch.zeros(d), []

    def loss(batch):
        return (batch[0] @ w - batch[1]).square().mean()

    for step, part in enumerate(torch.randperm(n, generator=torch.Generator().manual_seed(1)).split(32), 1):
        batch = x[part], y[part]
        opt.zero_grad()
        loss(batch).backward()
        if observe:
            opt.observe(loss, batch)
        opt.step()
        mean += 4 / (step + 3) * (w.detach() - mean) if step > 1 else w.detach() - mean  # recent iterates weigh more
        if step % 10 == 0:
            curve.append((32 * step, gap(mean)))
    return curve


fig, ax = plt.subplots(figsize=(6.5, 4))
runs = {rate: run(lambda p, rate=rate: torch.optim.SGD(p, lr=rate)) for rate in torch.logspace(-2.5, 1, 8).tolist()}
chosen = min(runs, key=lambda rate: runs[rate][-1][1] if runs[rate][-1][1] == runs[rate][-1][1] else float("inf"))
for rate, curve in runs.items():
    known = (
        {"color": "#d9640b", "label": f"sgd, lr = {rate:.2g}, the best of eight"}
        if rate == chosen
        else {"color": "#8a8a8a"}
    )
    ax.plot(*zip(*curve), **known)
curve = run(lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1e6)), observe=True)
ax.plot(*zip(*curve), color="#1f6fb2", linewidth=2, label="self-driving sgd, made with lr = 1e6")
print(f"gap after one pass: sgd {runs[chosen][-1][1]:.1e}, self-driving sgd {curve[-1][1]:.1e}")
ax.set(xlabel="data points read", ylabel="gap to the optimum", xscale="log", yscale="log", ylim=(1e-6, 3))
ax.legend()
fig.savefig("figure.svg")
