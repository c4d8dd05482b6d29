"""Parameters that are sharded over processes (FSDP2, tensor parallel): their local parts, and sums over all parts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from infhess._checks import small_dtype
from infhess.curvature.flat import length, real, widened


def is_sharded(*tensors: Tensor) -> bool:
    """Whether any tensor is a DTensor. Importing that module is slow; until someone has done so there are no DTensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(issubclass(kind, module.DTensor) for kind in set(map(type, tensors)))


def local(x: Any) -> Tensor:
    """The part of a tensor in this process, sharing memory."""
    found: Tensor = x.to_local() if is_sharded(x) else x
    return found


def laid_out(x: Any, like: Any) -> Tensor:
    """A DTensor redistributed to the placements of another; gradients may still be partial sums."""
    found: Tensor = x.redistribute(placements=like.placements)
    return found


def gathered(x: Tensor, p: Any) -> Tensor:
    """The whole tensor whose local part is x, with placements as those of the parameter p."""
    from torch.distributed.tensor import DTensor

    shape, stride = torch.Size(p.shape), p.stride()
    return whole(DTensor.from_local(x, p.device_mesh, p.placements, shape=shape, stride=stride))


def whole(x: Any) -> Tensor:
    """The whole tensor, in every process that has a part of it."""
    found: Tensor = x.full_tensor()
    return found


def part(whole: Tensor, p: Any) -> Tensor:
    """The local part of a tensor that every process has, with placements as those of p; no communication."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = DTensor.from_local(whole, p.device_mesh, [Replicate()] * p.device_mesh.ndim, run_check=False)
    return local(laid_out(everywhere, p))


def spread(t: Tensor, p: Any) -> Tensor:
    """Zeros in the shape of t, distributed by rows over the processes that have a part of p."""
    from torch.distributed.tensor import Replicate, Shard, zeros

    placements = [Shard(0) if placement.is_shard() else Replicate() for placement in p.placements]
    return zeros(*t.shape, dtype=t.dtype, device_mesh=p.device_mesh, placements=placements)


def shared(p: Tensor, first: int) -> Callable[..., tuple[Tensor, ...]]:
    """Evaluates a function of stacks of matrices: each matrix in one of the processes that have p; results are shared.

    Each result comes from one process, so that all have identical numbers; `first` rotates which process begins.
    """

    def evaluated(function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor) -> tuple[Tensor, ...]:
        if not (groups := _groups(p)):
            return function(*stacks)
        group = groups[0]
        here, number = distributed.get_rank(group), distributed.get_world_size(group)
        mine = [i for i in range(len(stacks[0])) if (i + first) % number == here]
        found = []
        for values in function(*(s[mine] for s in stacks)):
            whole = values.new_zeros(len(stacks[0]), *values.shape[1:])
            whole[mine] = values
            distributed.all_reduce(whole, group=group)
            found.append(whole)
        return tuple(found)

    return evaluated


def totals(values: Sequence[float], params: Sequence[Tensor]) -> list[float]:
    """Sum numbers of local parts of parameters over all parts: one all-reduce for all numbers."""
    found, alike = list(values), dict[tuple[Any, ...], list[int]]()
    for i, p in enumerate(params):
        alike.setdefault(_groups(p), []).append(i)
    for groups, places in alike.items():
        if groups:
            device = params[places[0]].device
            sums = torch.tensor([values[i] for i in places], dtype=small_dtype(device), device=device)
            for group in groups:
                distributed.all_reduce(sums, group=group)
            for i, value in zip(places, sums.tolist()):
                found[i] = value
    return found


def total(values: Sequence[float], params: Sequence[Tensor]) -> float:
    """The sum of these numbers over all parameters and parts."""
    sums = dict[tuple[Any, ...], tuple[float, Tensor]]()
    for value, p in zip(values, params):
        groups = _groups(p)
        sums[groups] = sums.get(groups, (0.0, p))[0] + value, p
    return sum(totals(*zip(*sums.values()))) if sums else 0.0


def _groups(p: Any) -> tuple[Any, ...]:
    """The process groups over which a parameter is sharded."""
    if not is_sharded(p):
        return ()
    return tuple(p.device_mesh.get_group(i) for i, placement in enumerate(p.placements) if placement.is_shard())


def length_of(groups: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> float:
    """The norm of all tensors as one vector; each group has local parts, and the parameters that they belong to."""
    if not any(is_sharded(*params) for _, params in groups):
        return length([tensors for tensors, _ in groups])
    squares = [length([[x]]) ** 2 for tensors, _ in groups for x in tensors]
    return math.sqrt(total(squares, [p for _, params in groups for p in params]))


def lengths(tensors: Sequence[Tensor], params: Sequence[Tensor]) -> list[float]:
    """The norm of each tensor, from its local parts and the parameters that they belong to."""
    norms = torch._foreach_norm([widened(x) for x in tensors])
    if not is_sharded(*params):
        return [float(n) for n in norms]
    return [math.sqrt(square) for square in totals([float(n) ** 2 for n in norms], params)]


def size_of(params: Sequence[Tensor]) -> float:
    """The norm |w| of all parameters."""
    return length_of([([local(real(p.detach())) for p in params], params)])


def check_whole(params: Sequence[Tensor], name: str) -> None:
    """Refuse sharded parameters, for which second derivatives are not available."""
    if is_sharded(*params):
        raise RuntimeError(
            f"{name}: parameters are sharded, and cannot be differentiated twice; use RateFree, and call opt.step(closure) "
            "with a closure that clears gradients, computes the loss, calls backward and returns the loss"
        )
