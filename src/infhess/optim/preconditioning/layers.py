"""Which parameters form one matrix."""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

BLOCKS = ("whole", "layer")


def blocks_of(params: list[Tensor], names: list[str] | None, how: str) -> list[list[int]]:
    """Indices of the parameters of each block, consecutive ones.

    With "layer" those of one module, by their names; where there are none a vector (a bias, the scales of a norm) joins
    the matrix before it.

    >>> import torch
    >>> blocks_of([torch.ones(2, 2), torch.ones(2), torch.ones(3, 2)], None, "layer")
    [[0, 1], [2]]
    >>> blocks_of([torch.ones(2), torch.ones(2), torch.ones(3)], ["a.g", "a.b", "c"], "layer")
    [[0, 1], [2]]
    """
    indices = list(range(len(params)))
    if how == "whole":
        return [indices]
    if names is not None:
        return [list(same) for _, same in groupby(indices, key=lambda i: names[i].rpartition(".")[0] or names[i])]
    blocks: list[list[int]] = []
    for i in indices:
        if blocks and params[i].ndim <= 1:
            blocks[-1].append(i)
        else:
            blocks.append([i])
    return blocks
