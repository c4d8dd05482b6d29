"""The posterior of a small matrix, as a picture.

A symmetric matrix of 12 rows is inferred from noisy products alone. With each product the posterior mean comes closer to the
matrix, and the standard deviation of its entries falls.

Figure: Six small matrices: the truth, then posterior mean (above) and standard deviation (below) after 1, 4 and 10
products.
"""

import matplotlib.pyplot as plt
import torch

import infhess

g = torch.Generator().manual_seed(1)
N, noise = 12, 0.3
i = torch.arange(N)
B = 3 * torch.exp(-0.15 * (i[:, None] - i) ** 2) * torch.cos(i[:, None] / 3) * torch.cos(i / 3)

# Products along random directions, each with noise of its own.
S = torch.linalg.qr(torch.randn(N, N, generator=g)).Q
Y = B @ S + noise * torch.randn(N, N, generator=g)

fig, axes = plt.subplots(2, 4, figsize=(8, 4.2))
show = {"vmin": -3, "vmax": 3}
axes[0, 0].imshow(B, **show)
axes[0, 0].set_title("the truth")
axes[1, 0].axis("off")
for column, m in zip(axes.T[1:], (1, 4, 10)):
    posterior = infhess.condition(infhess.Symmetric(mean=0.0, scale=1.5, noise=noise), S[:, :m], Y[:, :m])
    eye = torch.eye(N)
    deviation = [[posterior.variance(eye[a], eye[b]).sqrt() for b in range(N)] for a in range(N)]
    error = (posterior.mean.dense() - B).norm() / B.norm()
    print(f"{m:2d} products: relative error {error:.2f}")
    column[0].imshow(posterior.mean.dense(), **show)
    column[0].set_title(f"mean, {m} product{'s' * (m > 1)}")
    last = column[1].imshow(torch.tensor(deviation), cmap="Greys", vmin=0, vmax=1.5)
    column[1].set_title("standard deviation")
for ax in axes.flat:
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
fig.colorbar(last, ax=axes[1, :], location="bottom", shrink=0.4, label="standard deviation of an entry")
fig.savefig("figure.svg")
