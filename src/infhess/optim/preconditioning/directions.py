"""What an optimizer has learnt about curvature: directions and gains of each block, once there are any."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.flat import real
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.drift import Drift
from infhess.preconditioners.scaling import Block, Scaling, identity

PREFIX = "curvature_"
NUMBERS = PREFIX + "numbers"
SMALL, OF_ALL = ("gain", "values"), ("recent", "lagging")
Entries = dict[str, Tensor]  # what a checkpoint holds of a parameter


@dataclass
class Directions:
    """P² of one block of parameters, as a step applies it: a fixed number of rows, some of them zero."""

    basis: Tensor  # Uᵀ, (rank, n)
    gain: Tensor  # (rank,)
    values: Tensor  # the curvature along them, (rank,)
    shapes: list[torch.Size]  # of the parameters that make the block
    sizes: list[int] = field(init=False)
    taken: Tensor = field(init=False)  # the gains in the dtype of the basis
    scratch: Tensor = field(init=False)  # (n,) for the gradient handed on: new memory costs more than writing to it
    parts: list[Tensor] = field(init=False)  # views of it in the shapes of the parameters

    def __post_init__(self) -> None:
        self.sizes = [shape.numel() for shape in self.shapes]
        self.scratch = self.basis.new_empty(self.basis.shape[1])
        self.parts = [v.view(shape) for v, shape in zip(torch.split(self.scratch, self.sizes), self.shapes)]
        self.taken = self.gain.to(self.basis.dtype)

    def __reduce__(self) -> Any:
        """Copies make views of their own."""
        return Directions, (self.basis, self.gain, self.values, self.shapes)

    @classmethod
    def null(cls, rank: int, shapes: list[torch.Size], like: Tensor) -> Directions:
        """Zeros for this many directions."""
        small = torch.zeros(rank, dtype=small_dtype(like.device), device=like.device)
        return cls(like.new_zeros(rank, sum(s.numel() for s in shapes)), small, small.clone(), shapes)

    def write(self, block: Block) -> None:
        """Copy a block of P²."""
        k = len(block.gain)
        self.gain.zero_()[:k] = block.gain.to(self.gain)
        self.values.zero_()[:k] = block.values.to(self.values)
        self.basis.zero_()[:k] = block.U.mT.to(self.basis)
        self.taken = self.gain.to(self.basis.dtype)

    def block(self) -> Block:
        """The rows in use."""
        keep = self.gain != 0
        return Block(self.basis[keep].mT, self.gain[keep], self.values[keep])


class PreconditionerState:
    """Directions by block, the base's own scaling, means of iterates, and the scalars of the controllers."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.controller = ControllerState()
        self._clear()

    def _clear(self) -> None:
        self.blocks: list[Directions] = []
        self.layout: list[list[int]] = []  # which parameters make a block
        self.root: Tensor | None = None  # R, flat over all parameters
        self.means: dict[str, Tensor] = {}  # of iterates, flat over all parameters
        self.drift = Drift()  # whether the directions still hold

    def reset(self) -> None:
        """Nothing is known; checkpoints may hold the old tensors, which are left alone."""
        self.controller = ControllerState(base_rate=self.controller.base_rate)
        self._clear()

    def allocate(self, params: list[Tensor], layout: list[list[int]]) -> None:
        """Null directions where there are none."""
        if not self.blocks:
            shapes, like = [real(p.detach()).shape for p in params], like_of(params)
            self.layout = layout
            self.blocks = [Directions.null(self.rank, [shapes[i] for i in block], like) for block in layout]

    def install(self, params: list[Tensor], layout: list[list[int]], scaling: Scaling) -> None:
        """Take P² into use."""
        self.drift = Drift()
        self.root = None if scaling.root is None else scaling.root.to(like_of(params).dtype, copy=True)
        if scaling.directions or self.blocks:
            self.allocate(params, layout)
            for own, block in zip(self.blocks, scaling.blocks):
                own.write(block)
        self.controller.directions = float(scaling.directions)
        self.controller.factor = scaling.factor

    def scaling(self, params: list[Tensor], layout: list[list[int]]) -> Scaling:
        """P² as it is in use."""
        if not self.blocks:
            sizes = numbers(params)
            return identity([sum(sizes[i] for i in block) for block in layout], like_of(params), self.root)
        return Scaling([own.block() for own in self.blocks], self.controller.factor, self.root)

    def check_sizes(self, params: list[Tensor]) -> None:
        """Whether parameters are still those that the directions were made for."""
        for own, block in zip(self.blocks, self.layout):
            for i, size in zip(block, own.sizes):
                if not fits(params[i], size):
                    shape = tuple(params[i].shape)
                    raise ValueError(
                        f"parameter {i} has changed its shape to {shape}; make a new Preconditioned for it"
                    )

    # ---- checkpoints

    def entries(self, params: list[Tensor]) -> list[Entries]:
        """What a checkpoint holds of each parameter: views, and the scalars with each."""
        scalars = self.controller.tensor()
        found: list[Entries] = [{NUMBERS: scalars} for _ in params]
        for own, block in zip(self.blocks, self.layout):
            for i, shape, rows in zip(block, own.shapes, torch.split(own.basis, own.sizes, dim=1)):
                found[i] |= {PREFIX + "basis": rows.reshape(self.rank, *shape)}
                found[i] |= {PREFIX + "gain": own.gain, PREFIX + "values": own.values}
        flat = {"root": self.root, **self.means}
        for name, vector in flat.items():
            for i, part in enumerate([] if vector is None else torch.split(vector, numbers(params))):
                found[i][PREFIX + name] = part.view(real(params[i].detach()).shape)
        return found

    def check(self, name: Any, p: Tensor, given: Entries) -> None:
        """Whether entries of a checkpoint fit a parameter: some of them, or none, as the run had come to need them."""
        shape = tuple(real(p.detach()).shape)
        sizes = {"basis": (self.rank, *shape), "gain": (self.rank,), "values": (self.rank,)}
        sizes |= dict.fromkeys(("root", *OF_ALL), shape)
        got = {key[len(PREFIX) :]: tuple(value.shape) for key, value in given.items() if key != NUMBERS}
        if any(sizes.get(key) != size for key, size in got.items()):
            raise ValueError(
                f"state_dict: parameter {name} was saved with {got}, expected {sizes}; make the optimizer with the rank, "
                "the base and the parameters that it was saved with"
            )
        if NUMBERS in given and ControllerState.of(given[NUMBERS]).directions and "basis" not in got:
            raise ValueError(
                f"state_dict: the directions of parameter {name} are missing; before a distributed checkpoint is loaded, call "
                "allocate(), so that there is room for them"
            )

    def adopt(self, params: list[Tensor], layout: list[list[int]], entries: list[Entries]) -> None:
        """Take copies of the entries of a checkpoint; with none at all, nothing is known."""
        self.reset()
        for given in entries:
            if NUMBERS in given:
                self.controller = ControllerState.of(given[NUMBERS])
        found = {name: self._joined(name, params, entries) for name in ("root", *OF_ALL)}
        self.root = found.pop("root")
        self.means = {name: vector for name, vector in found.items() if vector is not None}
        if self.controller.directions:
            self.allocate(params, layout)
            for own, block in zip(self.blocks, layout):
                for name in SMALL:
                    getattr(own, name).copy_(entries[block[0]][PREFIX + name])
                rows = [entries[i][PREFIX + "basis"].reshape(self.rank, -1).to(own.basis) for i in block]
                own.basis.copy_(torch.cat(rows, 1))
                own.taken = own.gain.to(own.basis.dtype)

    def _joined(self, name: str, params: list[Tensor], entries: list[Entries]) -> Tensor | None:
        """A vector over all parameters, where each has its part."""
        if not all(PREFIX + name in given for given in entries):
            return None
        like = like_of(params)
        return torch.cat([given[PREFIX + name].detach().reshape(-1).to(like) for given in entries])


def numbers(params: list[Tensor]) -> list[int]:
    """Real numbers in each parameter."""
    return [real(p.detach()).numel() for p in params]


def fits(tensor: Tensor, size: int) -> bool:
    """Whether a tensor has the size that the directions were made for."""
    return tensor.numel() * (2 if tensor.is_complex() else 1) == size


def like_of(params: list[Tensor]) -> Tensor:
    """An empty tensor for flat vectors: single precision at the least, on the device of the first parameter."""
    return torch.empty(0, dtype=wide(real(params[0].detach())), device=params[0].device)


def wide(w: Tensor) -> torch.dtype:
    """The dtype of a tensor, single precision at the least."""
    return torch.promote_types(w.dtype, torch.float32)


def parted(state: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Entries]]:
    """Entries of a checkpoint: the base's, and the wrapper's."""
    theirs, ours = {}, {}
    for name, entry in state.items():
        if not isinstance(entry, dict):
            theirs[name] = entry
            continue
        ours[name] = {k: v for k, v in entry.items() if str(k).startswith(PREFIX)}
        rest = {k: v for k, v in entry.items() if k not in ours[name]}
        if rest or not ours[name]:
            theirs[name] = rest
    return theirs, ours
