"""The density of a transformer's Hessian.

All eigenvalues at once: most lie near zero, a few stand out. The band below bounds the share of eigenvalues at or below
each point, and holds with 95 % probability.

Figure: Above, the spectral density of a small transformer, peaked at zero; below, its distribution function within a
95 % band.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import infhess

torch.manual_seed(0)
LENGTH, LETTERS = 12, 11


class Transformer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, width)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, LETTERS)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens) + self.place, src_mask=self.mask))


# Each sequence counts up by a step of its own: tokens can be predicted from the third on.
tokens = (torch.randint(LETTERS, (256, 1)) + torch.randint(1, 4, (256, 1)) * torch.arange(LENGTH + 1)) % LETTERS
x, y = tokens[:, :-1], tokens[:, 1:]
model = Transformer()


def loss(batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


opt = infhess.RateFree(model.parameters())
for _ in range(120):
    part = torch.randint(256, (32,))
    opt.zero_grad()
    with opt.watch():
        loss((x[part], y[part])).backward()
    opt.step()
opt.finish()

batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 256, 64)]
source = infhess.Hessian(loss, model.named_parameters(), batches)
found = infhess.density(source)
low, high = found.negative.interval(0.95)
print(f"{source.size} weights, loss {loss((x, y)):.3f}; {found.products} products")
print(f"share of negative eigenvalues: {found.negative.value:.2f} ({low:.2f} to {high:.2f})")

fig, (above, below) = plt.subplots(2, 1, figsize=(6.5, 5.2))
found.plot(above)
found.plot(below, cdf=True)
fig.savefig("figure.svg")
