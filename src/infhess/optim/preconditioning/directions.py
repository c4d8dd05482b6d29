"""What an optimizer has learnt about curvature: directions and gains of each block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.flat import real
from infhess.optim.checkpoint import params_of
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.drift import Drift
from infhess.preconditioners.scaling import Block, Scaling, identity

PREFIX = "curvature_"
NUMBERS, BASIS, GAIN, VALUES = (PREFIX + name for name in ("numbers", "basis", "gain", "values"))
BLOCKS = ("whole", "layer")
FLAT = ("root", "recent", "lagging")  # vectors over all parameters: the base's own scaling, and means of iterates
Entries = dict[str, Tensor]  # the part of a checkpoint that belongs to one parameter
Groups = list[dict[str, Any]]


@dataclass
class Directions:
    """P² of one block of parameters, as a step applies it: a fixed number of rows, unused ones zero."""

    basis: Tensor  # Uᵀ, (rank, n)
    gain: Tensor  # (rank,)
    values: Tensor  # curvature along the directions, (rank,)
    indices: list[int]  # of the parameters in the block
    shapes: list[torch.Size]  # of these parameters
    sizes: list[int] = field(init=False)
    taken: Tensor = field(init=False)  # the gains in the dtype of the basis
    scratch: Tensor = field(init=False)  # (n,) buffer for the scaled gradient: allocating costs more than writing
    parts: list[Tensor] = field(init=False)  # views of the buffer in the shapes of the parameters

    def __post_init__(self) -> None:
        self.sizes = [shape.numel() for shape in self.shapes]
        self.scratch = self.basis.new_empty(self.basis.shape[1])
        self.parts = [v.view(shape) for v, shape in zip(torch.split(self.scratch, self.sizes), self.shapes)]
        self.taken = self.gain.to(self.basis.dtype)

    def __reduce__(self) -> Any:
        """Copies make their own views."""
        return Directions, (self.basis, self.gain, self.values, self.indices, self.shapes)

    def write(self, block: Block) -> None:
        """Copy a block of P² into these buffers."""
        k = len(block.gain)
        self.gain.zero_()[:k] = block.gain.to(self.gain)
        self.values.zero_()[:k] = block.values.to(self.values)
        self.basis.zero_()[:k] = block.U.mT.to(self.basis)
        self.taken = self.gain.to(self.basis.dtype)

    def block(self) -> Block:
        """The rows in use, as a block of P²."""
        keep = self.gain != 0
        return Block(self.basis[keep].mT, self.gain[keep], self.values[keep])


class PreconditionerState:
    """Directions per block, the base's own scaling, means of iterates, and the controllers' scalars."""

    def __init__(self, rank: int, how: str) -> None:
        self.rank, self.how = rank, how  # "whole" or "layer"
        self.reset(math.nan)

    def reset(self, base_rate: float) -> None:
        """Forget everything else. Old tensors are not overwritten, since checkpoints may hold them."""
        self.controller = ControllerState(base_rate)
        self.blocks: list[Directions] = []
        self.root: Tensor | None = None  # R, flat over all parameters
        self.means: dict[str, Tensor] = {}  # of iterates, flat over all parameters
        self.drift = Drift()  # whether the directions are still valid

    def allocate(self, groups: Groups) -> None:
        """Allocate directions, filled with zeros, where there are none."""
        if self.blocks:
            return
        params = params_of(groups)
        like = like_of(params)
        for block in layout_of(groups, self.how):
            shapes = [real(params[i].detach()).shape for i in block]
            small = torch.zeros(self.rank, dtype=small_dtype(like.device), device=like.device)
            basis = like.new_zeros(self.rank, sum(shape.numel() for shape in shapes))
            self.blocks.append(Directions(basis, small, small.clone(), block, shapes))

    def install(self, groups: Groups, scaling: Scaling) -> None:
        """Put a new P² into use."""
        self.drift = Drift()
        self.root = None if scaling.root is None else scaling.root.to(like_of(params_of(groups)).dtype, copy=True)
        if scaling.directions or self.blocks:
            self.allocate(groups)
            for own, block in zip(self.blocks, scaling.blocks):
                own.write(block)
        self.controller.directions = float(scaling.directions)
        self.controller.factor = scaling.factor
        self.controller.active = 1.0

    def scaling(self, groups: Groups) -> Scaling:
        """P² as currently in use."""
        if not self.blocks:
            return identity(self.block_sizes(groups), like_of(params_of(groups)), self.root)
        return Scaling([own.block() for own in self.blocks], self.controller.factor, self.root)

    def block_sizes(self, groups: Groups) -> list[int]:
        """Number of real entries in each block."""
        sizes = numbers(params_of(groups))
        return [sum(sizes[i] for i in block) for block in layout_of(groups, self.how)]

    def check_sizes(self, params: list[Tensor]) -> None:
        """Check that parameters still have the sizes that the directions were made for."""
        for own in self.blocks:
            for i, size in zip(own.indices, own.sizes):
                if not fits(params[i], size):
                    shape = tuple(params[i].shape)
                    raise ValueError(
                        f"parameter {i} has changed its shape to {shape}; make a new Preconditioned for it"
                    )

    # ---- checkpoints

    def entries(self, params: list[Tensor]) -> list[Entries]:
        """What a checkpoint holds for each parameter: views of its directions, and the scalars."""
        scalars = self.controller.tensor()
        found: list[Entries] = [{NUMBERS: scalars} for _ in params]
        for own in self.blocks:
            for i, shape, rows in zip(own.indices, own.shapes, torch.split(own.basis, own.sizes, dim=1)):
                found[i] |= {BASIS: rows.reshape(self.rank, *shape), GAIN: own.gain, VALUES: own.values}
        for name, vector in {"root": self.root, **self.means}.items():
            for i, part in enumerate([] if vector is None else torch.split(vector, numbers(params))):
                found[i][PREFIX + name] = part.view(real(params[i].detach()).shape)
        return found

    def check(self, name: Any, p: Tensor, given: Entries) -> None:
        """Check that entries of a checkpoint fit a parameter; a checkpoint may hold all, some or none of them."""
        shape = tuple(real(p.detach()).shape)
        sizes = dict.fromkeys(FLAT, shape) | {"gain": (self.rank,), "values": (self.rank,)}
        sizes["basis"] = self.rank, *shape
        got = {key[len(PREFIX) :]: tuple(value.shape) for key, value in given.items() if key != NUMBERS}
        if any(sizes.get(key) != size for key, size in got.items()):
            raise ValueError(
                f"state_dict: parameter {name} was saved with {got}, expected {sizes}; make the optimizer with the rank, "
                "the base and the parameters that it was saved with"
            )
        if NUMBERS in given and ControllerState.of(given[NUMBERS]).directions and BASIS not in given:
            raise ValueError(
                f"state_dict: the directions of parameter {name} are missing; before a distributed checkpoint is loaded, call "
                "allocate(), so that there is room for them"
            )

    def adopt(self, groups: Groups, entries: list[Entries]) -> None:
        """Copy the entries of a checkpoint, after a reset."""
        for given in entries:
            if NUMBERS in given:
                self.controller = ControllerState.of(given[NUMBERS])
        found = {name: _joined([given.get(PREFIX + name) for given in entries], groups) for name in FLAT}
        self.root = found.pop("root")
        self.means = {name: vector for name, vector in found.items() if vector is not None}
        if self.controller.directions:
            self.allocate(groups)
            for own in self.blocks:
                known = [entries[i] for i in own.indices]
                rows = [entry[BASIS].reshape(self.rank, -1).to(own.basis) for entry in known]
                own.write(Block(torch.cat(rows, 1).mT, known[0][GAIN], known[0][VALUES]))


def _joined(parts: list[Tensor | None], groups: Groups) -> Tensor | None:
    """A vector over all parameters, or None if a part is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    like = like_of(params_of(groups))
    return torch.cat([part.detach().reshape(-1).to(like) for part in known])


def split_entries(state: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Entries]]:
    """Split the entries of a checkpoint into the base's and the wrapper's."""
    of_base, own = {}, {}
    for name, entry in state.items():
        if not isinstance(entry, dict):
            of_base[name] = entry
            continue
        own[name] = {k: v for k, v in entry.items() if str(k).startswith(PREFIX)}
        rest = {k: v for k, v in entry.items() if k not in own[name]}
        if rest or not own[name]:
            of_base[name] = rest
    return of_base, own


# ---- parameters as flat vectors


def layout_of(groups: Groups, how: str) -> list[list[int]]:
    """Indices of the parameters of each block; blocks are consecutive.

    With "layer" a block is one module, recognised by parameter names. Without names, a vector (a bias, the scales of a norm)
    joins the matrix before it.

    >>> import torch
    >>> layout_of([{"params": [torch.ones(2, 2), torch.ones(2), torch.ones(3, 2)]}], "layer")
    [[0, 1], [2]]
    >>> layout_of([{"params": [torch.ones(2)] * 3, "param_names": ["a.g", "a.b", "c"]}], "layer")
    [[0, 1], [2]]
    """
    params = params_of(groups)
    if how == "whole":
        return [list(range(len(params)))]
    if all("param_names" in group for group in groups):
        names = [name for group in groups for name in group["param_names"]]
        modules = groupby(range(len(params)), key=lambda i: names[i].rpartition(".")[0] or names[i])
        return [list(same) for _, same in modules]
    blocks: list[list[int]] = []
    for i, p in enumerate(params):
        if blocks and p.ndim <= 1:
            blocks[-1].append(i)
        else:
            blocks.append([i])
    return blocks


def numbers(params: list[Tensor]) -> list[int]:
    """Number of real entries in each parameter."""
    return [real(p.detach()).numel() for p in params]


def fits(tensor: Tensor, size: int) -> bool:
    """Whether a tensor has the size that the directions were made for."""
    return tensor.numel() * (2 if tensor.is_complex() else 1) == size


def like_of(params: list[Tensor]) -> Tensor:
    """An empty tensor for flat vectors: in the widest dtype, at least single precision, where the first parameter is."""
    widest = reduce(torch.promote_types, {p.dtype for p in params}, torch.float32)
    return torch.empty(0, dtype=widest.to_real(), device=params[0].device)
