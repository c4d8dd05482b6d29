"""A worked example for `infhess spectrum`: a small net on scikit-learn's digits, after some training.

    infhess spectrum infhess.example:small_net --k 5

The function returns (model, loss, batches). Alternatively it may return (loss, params, batches), where the loss of a batch
closes over the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 8, 8) in [0, 16] and labels, from scikit-learn."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return torch.from_numpy(bunch.images), torch.from_numpy(bunch.target).long()


def small_net() -> tuple[nn.Module, nn.Module, DataLoader[tuple[Tensor, ...]]]:
    """A net 64–16–10 after 200 steps of Adam, the cross-entropy, and a shuffling loader of batches of 64."""
    images, labels = digits()
    data = TensorDataset((images / 16).reshape(-1, 64).float(), labels)
    generator = torch.Generator().manual_seed(0)
    batches: DataLoader[tuple[Tensor, ...]] = DataLoader(data, batch_size=64, shuffle=True, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model, loss = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(7):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return model, loss, batches
