"""What an optimizer has learnt of curvature, by parameter: directions and gains, held only once there are any."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.flat import real
from infhess.optim.controllers.controller_state import ControllerState
from infhess.scaling import Block, Scaling, identity

PREFIX = "curvature_"
NUMBERS = PREFIX + "numbers"
Tensors = dict[str, Tensor]  # of a parameter: basis (k, *shape), gain (k,), values (k,), root (*shape), recent, lagging


class Views(NamedTuple):
    """The tensors of a parameter as a step wants them, made once: a step is short of time for them."""

    tensors: Tensors
    rows: Tensor  # Uᵀ, (k, n)
    columns: Tensor  # U, (n, k)
    root: Tensor | None  # R, (n,)
    scratch: Tensor  # (n,) for the gradient handed on: new memory costs more than writing to it
    shaped: Tensor  # the same in the shape of the parameter

    @classmethod
    def of(cls, tensors: Tensors) -> Views:
        """Views of the tensors of a parameter."""
        rows = tensors["basis"].view(len(tensors["basis"]), -1)
        scratch = rows.new_empty(rows.shape[1])
        root = tensors["root"].view(-1) if "root" in tensors else None
        return cls(tensors, rows, rows.mT, root, scratch, scratch.view(tensors["basis"].shape[1:]))


class PreconditionerState:
    """Tensors by parameter and the scalars of the controllers; in checkpoints beside the base's own state.

    A parameter has tensors from the first estimate with directions on, of fixed shapes: rank rows, some of them zero.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.controller = rank, ControllerState()
        self._tensors: dict[Tensor, Tensors] = {}
        self._views: dict[Tensor, Views] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    def of(self, p: Tensor) -> Tensors:
        """The tensors of a parameter; none at first."""
        return self._tensors.setdefault(p, {})

    def views(self, p: Tensor) -> Views:
        """The tensors of a parameter as a step wants them."""
        tensors, views = self.of(p), self._views.get(p)
        if views is None or views.tensors is not tensors or views.rows.data_ptr() != tensors["basis"].data_ptr():
            views = self._views[p] = Views.of(tensors)
        return views

    def allocate(self, p: Tensor, *, root: bool = False) -> Tensors:
        """Null directions for a parameter that has none, and the base's own scaling where it is to have a root."""
        tensors, w = self.of(p), real(p.detach())
        if root and "root" not in tensors:
            tensors["root"] = w.new_ones(w.shape, dtype=wide(w))
        if "basis" not in tensors:
            small = torch.zeros(self.rank, dtype=small_dtype(p.device), device=p.device)
            tensors["basis"] = w.new_zeros((self.rank, *w.shape), dtype=wide(w))
            tensors["gain"], tensors["values"] = small, small.clone()
        return tensors

    def reset(self) -> None:
        """Nothing is known; checkpoints may hold the old tensors, which are left alone."""
        self._tensors, self._views = {}, {}
        self.controller = ControllerState(base_rate=self.controller.base_rate)

    def install(self, params: list[Tensor], blocks: list[list[int]], scaling: Scaling) -> None:
        """Write P² into the tensors of each parameter."""
        sizes = [real(p.detach()).numel() for p in params]
        if scaling.root is not None:
            for p, root in zip(params, torch.split(scaling.root, sizes)):
                w = real(p.detach())
                self.of(p)["root"] = root.reshape(w.shape).to(wide(w), copy=True)
                self._views.pop(p, None)
        if scaling.directions or any("basis" in self.of(p) for p in params):
            for block, indices in zip(scaling.blocks, blocks):
                for i, U in zip(indices, torch.split(block.U, [sizes[i] for i in indices])):
                    self._write(params[i], block, U)
        self.controller.directions = float(scaling.directions)
        self.controller.factor = scaling.factor

    def _write(self, p: Tensor, block: Block, U: Tensor) -> None:
        own, k = self.allocate(p), U.shape[1]
        for name, small in (("gain", block.gain), ("values", block.values)):
            own[name].zero_()[:k] = small.to(own[name])
        own["basis"].zero_()[:k] = U.mT.reshape(k, *own["basis"].shape[1:]).to(own["basis"])

    def scaling(self, params: list[Tensor], blocks: list[list[int]], like: Tensor) -> Scaling:
        """P² as it is in use."""
        roots = [self.of(p).get("root") for p in params]
        root = None if any(r is None for r in roots) else torch.cat([r.reshape(-1) for r in roots if r is not None])
        if not all("basis" in self.of(p) for p in params):
            sizes = [sum(real(params[i].detach()).numel() for i in indices) for indices in blocks]
            return identity(sizes, like, root)
        found = []
        for indices in blocks:
            own = [self.of(params[i]) for i in indices]
            keep = own[0]["gain"] != 0
            U = torch.cat([o["basis"].reshape(self.rank, -1) for o in own], 1)[keep].mT
            found.append(Block(U, own[0]["gain"][keep], own[0]["values"][keep]))
        return Scaling(found, self.controller.factor, root)

    # ---- checkpoints

    def entries(self, p: Tensor) -> Tensors:
        """What a checkpoint holds of a parameter."""
        return {**{PREFIX + name: value for name, value in self.of(p).items()}, NUMBERS: self.controller.tensor()}

    def check(self, name: Any, p: Tensor, entries: Tensors) -> None:
        """Whether entries of a checkpoint fit a parameter: some of them, or none, as the run had come to need them."""
        shape, small = tuple(real(p.detach()).shape), (self.rank,)
        whole = {"basis": (*small, *shape), "gain": small, "values": small}
        shapes = {
            PREFIX + key: size for key, size in {**whole, **dict.fromkeys(("root", "recent", "lagging"), shape)}.items()
        }
        got = {key: tuple(value.shape) for key, value in entries.items() if key != NUMBERS}
        if any(shapes.get(key) != size for key, size in got.items()):
            raise ValueError(
                f"state_dict: parameter {name} was saved with {got}, expected {shapes}; make the optimizer with the rank, "
                "the base and the parameters that it was saved with"
            )
        if NUMBERS in entries and ControllerState.of(entries[NUMBERS]).directions and PREFIX + "basis" not in entries:
            raise ValueError(
                f"state_dict: the directions of parameter {name} are missing; before a distributed checkpoint is loaded, call "
                "allocate(), so that there is room for them"
            )

    def adopt(self, entries: dict[Tensor, Tensors]) -> None:
        """Take copies of the entries of a checkpoint; parameters without any know nothing."""
        self.reset()
        for given in entries.values():
            if NUMBERS in given:
                self.controller = ControllerState.of(given[NUMBERS])
        null = not self.controller.directions
        for p, given in entries.items():
            names = {key[len(PREFIX) :]: value for key, value in given.items() if key != NUMBERS}
            for name, value in names.items():
                if not (null and name in ("basis", "gain", "values")):  # there is nothing to hold
                    dtype = small_dtype(p.device) if name in ("gain", "values") else wide(real(p.detach()))
                    self.of(p)[name] = value.detach().to(p.device, dtype, copy=True)


def wide(w: Tensor) -> torch.dtype:
    """The dtype of a parameter, single precision at the least."""
    return torch.promote_types(w.dtype, torch.float32)


def parted(state: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Tensors]]:
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
