"""RateFree against Adam at five learning rates.

One net on scikit-learn's digits, the same batches for all. Adam needs a search for its learning rate; RateFree computes its
own from the curvature of about one batch in eighty.

Figure: Training loss against steps: Adam at five learning rates in grey shades, RateFree in blue at or below the best
of them.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import infhess

x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16
x, y, held_x, held_y = x[:1400], y[:1400], x[1400:], y[1400:]


def trained(make, steps=500):
    """Training loss along the way, and the test loss at the end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    opt, curve = make(model.parameters()), []
    for step in range(1, steps + 1):
        part = torch.randint(len(x), (32,))

        def closure(part=part):
            opt.zero_grad()
            loss = cross_entropy(model(x[part]), y[part]) + 5e-4 * sum(p.square().sum() for p in model.parameters())
            loss.backward()
            return loss

        opt.step(closure)
        if step % 20 == 0:
            if isinstance(opt, infhess.RateFree):
                opt.eval()
            with torch.no_grad():
                curve.append((step, float(cross_entropy(model(x), y)), float(cross_entropy(model(held_x), held_y))))
            if isinstance(opt, infhess.RateFree):
                opt.train()
    return curve


fig, ax = plt.subplots(figsize=(6.5, 4))
for rate, alpha in zip((1e-4, 1e-3, 1e-2, 1e-1, 1.0), (0.3, 0.5, 0.7, 0.85, 1.0)):
    curve = trained(lambda params, rate=rate: torch.optim.Adam(params, lr=rate))
    print(f"Adam, lr = {rate:g}: training loss {curve[-1][1]:.3f}, test loss {curve[-1][2]:.3f}")
    ax.plot(*zip(*(point[:2] for point in curve)), color="#8a8a8a", alpha=alpha, label=f"Adam, lr = {rate:g}")
curve = trained(infhess.RateFree)
print(f"RateFree:         training loss {curve[-1][1]:.3f}, test loss {curve[-1][2]:.3f}")
ax.plot(*zip(*(point[:2] for point in curve)), color="#1f6fb2", linewidth=2, label="RateFree, nothing set")
ax.set(xlabel="steps", ylabel="training loss", yscale="log", ylim=(None, 4))
ax.legend()
fig.savefig("figure.svg")
