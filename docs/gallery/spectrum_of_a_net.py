"""The spectrum of a net with intervals, against the exact one.

Ten eigenvalues of a net's Hessian over all its data, from mini-batches of 32, with 95 % intervals. The net is small enough
to compute the exact matrix: nine or ten of ten crosses should lie within their bars.

Figure: Ten largest eigenvalues: dots with error bars from mini-batches, crosses for the exact values, nearly all
within the bars.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import infhess

torch.manual_seed(0)
x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
x = x.float() / 16
model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(150):
    part = torch.randint(len(x), (64,))
    opt.zero_grad()
    cross_entropy(model(x[part]), y[part]).backward()
    opt.step()


def loss(batch):
    return cross_entropy(model(batch[0]), batch[1])


loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
source = infhess.Hessian(loss, model.parameters(), loader)
found = infhess.spectrum(source, k=10)
low, high = found.interval(0.95)

whole = infhess.Hessian(loss, model.parameters(), [(x, y)])
matrix = torch.stack([whole.matvec(unit) for unit in torch.eye(whole.size)])
exact = torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)[:10]
inside = int(((low <= exact) & (exact <= high)).sum())
print(f"{found.products} products, {found.data_points} data points read; {inside} of 10 intervals hold the exact value")

fig, ax = plt.subplots(figsize=(6.5, 3.6))
place = torch.arange(1, 11)
bars = torch.stack([found.values - low, high - found.values])
ax.errorbar(place, found.values, bars, fmt="o", capsize=3, label="from mini-batches, 95 % interval")
ax.plot(place, exact, "x", color="#d9640b", label="exact")
ax.set(xlabel="eigenvalue", ylabel="curvature", yscale="log", xticks=place)
ax.legend()
fig.savefig("figure.svg")
