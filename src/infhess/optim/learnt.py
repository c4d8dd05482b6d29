"""What an optimizer has learnt of curvature: directions and gains of each parameter, and a few scalars."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.flat import real
from infhess.optim.numbers import Numbers
from infhess.optim.scaling import Block, Scaling
from infhess.optim.transform import Handle, Own

PREFIX = "curvature_"
NUMBERS, BASIS = PREFIX + "numbers", PREFIX + "basis"


class Learnt:
    """U, gain, curvature (the base's root R, means of iterates) by parameter: null tensors of their shape from the start.

    Checkpoints and compiled steps so always find the same tensors.
    """

    def __init__(self, rank: int, *, rooted: bool, averaging: bool) -> None:
        self.rank, self.rooted, self.averaging = rank, rooted, averaging
        self.numbers = Numbers()
        self._own: dict[Tensor, Own] = {}
        self._handles: dict[Tensor, Handle] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}

    def of(self, p: Tensor) -> Own:
        """The tensors of a parameter."""
        if p not in self._own:
            self._own[p] = self._null(p)
        return self._own[p]

    def _null(self, p: Tensor) -> Own:
        parts = real(p.detach())
        dtype = torch.promote_types(parts.dtype, torch.float32)
        small = torch.zeros(self.rank, dtype=small_dtype(p.device), device=p.device)
        own = {"basis": parts.new_zeros((self.rank, *parts.shape), dtype=dtype), "gain": small, "values": small.clone()}
        if self.rooted:
            own["root"] = parts.new_ones(parts.shape, dtype=dtype)
        if self.averaging:
            own |= {name: parts.new_zeros(parts.shape, dtype=dtype) for name in ("recent", "lagging")}
        return own

    def handle(self, p: Tensor) -> Handle:
        """The tensors of a parameter as a step wants them."""
        own, handle = self.of(p), self._handles.get(p)
        if handle is None or handle.own is not own:
            handle = self._handles[p] = Handle.of(own)
        return handle

    def forget(self) -> None:
        """Nothing is known: new null tensors, since checkpoints may hold the old ones."""
        self._own = {p: self._null(p) for p in self._own}
        self.numbers = Numbers(base_rate=self.numbers.base_rate)

    def install(self, params: list[Tensor], blocks: list[list[int]], scaling: Scaling) -> None:
        """Write P² into the tensors of each parameter."""
        sizes = [real(p.detach()).numel() for p in params]
        if scaling.root is not None:
            for p, root in zip(params, torch.split(scaling.root, sizes)):
                self.of(p)["root"].copy_(root.view_as(self.of(p)["root"]))
        for block, indices in zip(scaling.blocks, blocks):
            for i, U in zip(indices, torch.split(block.U, [sizes[i] for i in indices])):
                own, k = self.of(params[i]), U.shape[1]
                for name, small in (("gain", block.gain), ("values", block.values)):
                    own[name].zero_()[:k] = small.to(own[name])
                own["basis"].zero_()[:k] = U.mT.reshape(k, *own["basis"].shape[1:]).to(own["basis"])
        self.numbers.directions = float(sum(len(block.gain) for block in scaling.blocks))
        self.numbers.factor = scaling.factor

    def scaling(self, params: list[Tensor], blocks: list[list[int]]) -> Scaling:
        """P² as it is in use."""
        found = []
        for indices in blocks:
            own = [self.of(params[i]) for i in indices]
            keep = own[0]["gain"] != 0
            U = torch.cat([o["basis"].reshape(self.rank, -1) for o in own], 1)[keep].mT
            found.append(Block(U, own[0]["gain"][keep], own[0]["values"][keep]))
        root = torch.cat([self.of(p)["root"].reshape(-1) for p in params]) if self.rooted else None
        return Scaling(found, self.numbers.factor, root)

    # ---- checkpoints

    def entries(self, p: Tensor) -> dict[str, Tensor]:
        """What a checkpoint holds of a parameter."""
        return {**{PREFIX + name: value for name, value in self.of(p).items()}, NUMBERS: self.numbers.tensor()}

    def check(self, name: Any, p: Tensor, entries: dict[str, Tensor]) -> None:
        """Whether entries of a checkpoint fit a parameter; none at all do."""
        expected = {key: tuple(value.shape) for key, value in self.entries(p).items() if key != NUMBERS}
        got = {key: tuple(value.shape) for key, value in entries.items() if key != NUMBERS}
        if entries and got != expected:
            raise ValueError(
                f"state_dict: parameter {name} was saved with {got}, expected {expected}; make the optimizer with the rank, "
                "the base and the parameters that it was saved with"
            )
        if NUMBERS in entries:
            Numbers.of(entries[NUMBERS])

    def adopt(self, entries: dict[Tensor, dict[str, Tensor]]) -> None:
        """Take copies of the entries of a checkpoint; parameters without any know nothing."""
        copies = {p: self._copied(p, given) for p, given in entries.items() if given}
        numbers = [given[NUMBERS] for given in entries.values() if NUMBERS in given]
        self.forget()
        self._own.update(copies)
        if numbers:
            self.numbers = Numbers.of(numbers[0])

    def _copied(self, p: Tensor, given: dict[str, Tensor]) -> Own:
        names = {key[len(PREFIX) :]: value for key, value in given.items() if key != NUMBERS}
        return {name: value.detach().to(self.of(p)[name], copy=True) for name, value in names.items()}


def parted(state: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, dict[str, Tensor]]]:
    """Entries of a checkpoint: the base's, and ours."""
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
