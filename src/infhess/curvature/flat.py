"""Parameters as one flat vector, in the order given."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from infhess._checks import small_dtype

HALF = (torch.float16, torch.bfloat16)
# More tensors than this, with fewer entries than this on average, are concatenated to compute their norm.
MANY, SMALL = 16, 1024

# Parameters, with or without names.
Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]


class Flat:
    """Packs tensors of the shapes of the parameters into a vector, and back.

    The vector has the widest dtype among the parameters, at least single precision. A complex parameter becomes its real and
    imaginary parts. `names` are those of the parameters, or None.
    """

    def __init__(self, params: Params) -> None:
        if not isinstance(params, Iterable) or isinstance(params, torch.nn.Module):
            raise TypeError(f"params: expected tensors, such as model.parameters(), got {type(params).__name__}")
        self.names, self.params = _named(params)
        for p in self.params:
            if isinstance(p, str):
                raise TypeError("params: expected tensors, got names; pass infhess.select(model, pattern)")
            if not isinstance(p, Tensor):
                raise TypeError(f"params: expected tensors, such as model.parameters(), got {type(p).__name__}")
            if not (p.is_floating_point() or p.is_complex()):
                raise TypeError(f"params: expected floating-point parameters, got {p.dtype}")
        if len({id(p) for p in self.params}) < len(self.params):
            raise ValueError("params: expected each parameter once, got one of them twice; name shared parameters once")
        if not any(p.numel() for p in self.live):
            raise ValueError("params: expected at least one parameter that requires a gradient, got none")
        self.sizes = [real(p).numel() for p in self.params]
        self.size = sum(self.sizes)
        self.device = self.params[0].device
        self.dtype = reduce(torch.promote_types, (real(p).dtype for p in self.params), torch.float32)

    @property
    def given(self) -> Params:
        """The parameters as given: with their names, if they had any."""
        return self.params if self.names is None else dict(zip(self.names, self.params))

    @property
    def live(self) -> list[Tensor]:
        """The parameters that require a gradient now."""
        return [p for p in self.params if p.requires_grad]

    @property
    def like(self) -> Tensor:
        """An empty tensor with the dtype and the device of flat vectors."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def pack(self, values: Sequence[Tensor]) -> Tensor:
        """One vector from tensors for the live parameters (those that require a gradient); frozen ones get zeros."""
        given = iter(values)
        parts = [next(given) if p.requires_grad else torch.zeros_like(p) for p in self.params]
        if all(v.dtype == self.dtype and v.device == self.device and not v.is_sparse for v in parts):
            with torch.no_grad():
                return torch.cat([v.reshape(-1) for v in parts])
        return torch.cat([real(dense(v.detach())).reshape(-1).to(self.device, self.dtype) for v in parts])

    def unpack(self, vector: Tensor) -> list[Tensor]:
        """Tensors for the live parameters, in their shapes, dtypes and devices."""
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of shape ({self.size},), got {tuple(vector.shape)}")
        parts = zip(self.params, torch.split(vector, self.sizes))
        return [shaped(v, p) for p, v in parts if p.requires_grad]

    def pack_columns(self, values: Sequence[Tensor]) -> Tensor:
        """A matrix with one column per entry of the tensors' first dimension; for real parameters only."""
        given, k = iter(values), len(values[0])
        parts = [next(given) if p.requires_grad else p.new_zeros(k, p.numel()) for p in self.params]
        return torch.cat([v.detach().reshape(k, -1).to(self.device, self.dtype) for v in parts], 1).mT

    def unpack_columns(self, S: Tensor) -> list[Tensor]:
        """Tensors for the live parameters with an extra first dimension: one entry per column of S."""
        parts = zip(self.params, torch.split(S, self.sizes))
        return [v.mT.reshape(-1, *p.shape).to(p.device, p.dtype) for p, v in parts if p.requires_grad]


def _named(params: Any) -> tuple[list[str] | None, list[Tensor]]:
    """Names and tensors from a dict, from pairs as in model.named_parameters(), or from tensors alone."""
    if isinstance(params, Mapping):
        return [str(name) for name in params], list(params.values())
    found = [params] if isinstance(params, Tensor) else list(params)
    pairs = [p for p in found if isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str)]
    if pairs and len(pairs) == len(found):
        return [name for name, _ in pairs], [p for _, p in pairs]
    return None, found


@contextmanager
def shifted(flat: Flat, vector: Tensor) -> Iterator[None]:
    """Within the context, parameters are moved by a flat vector. Afterwards they are restored bit for bit."""
    live = flat.live
    before = [p.detach().clone() for p in live]
    try:
        for p, b, shift in zip(live, before, flat.unpack(vector)):
            p.data.copy_(b + shift)
        yield
    finally:
        for p, b in zip(live, before):
            p.data.copy_(b)


def real(v: Tensor) -> Tensor:
    """A complex tensor as its real and imaginary parts, in a last dimension of size two; a real one unchanged."""
    return torch.view_as_real(v.resolve_conj()) if v.is_complex() else v


def length(groups: Iterable[Sequence[Tensor]]) -> float:
    """The norm of all these tensors as one vector, in one pass over each group."""
    norms = [n for group in groups if group for n in _norms(group)]
    place = norms[0].device
    if place.type == "cpu":
        return math.hypot(*map(float, norms))
    # Only one number leaves the device.
    together = torch.stack([n if n.device == place else n.to(place) for n in norms])
    return float(torch.linalg.vector_norm(together.to(small_dtype(place))))


def _norms(group: Sequence[Tensor]) -> Sequence[Tensor]:
    """The norm of each tensor; for many small ones, their norm as one vector."""
    wide = [widened(v) for v in group]
    if len(wide) > MANY and wide[0].device.type == "cpu" and sum(v.numel() for v in wide) <= MANY * SMALL:
        return [torch.linalg.vector_norm(torch._C._nn.flatten_dense_tensors(wide), dtype=torch.float64)]
    return torch._foreach_norm(wide)


def widened(v: Tensor) -> Tensor:
    """The tensor in at least single precision."""
    return v.float() if v.dtype in HALF else v


def shaped(v: Tensor, p: Tensor) -> Tensor:
    """A slice of a flat vector as a tensor like the parameter."""
    if p.is_complex():
        parts = v.reshape(*p.shape, 2).to(p.device, p.real.dtype, copy=True)  # complex views need an even offset
        return torch.view_as_complex(parts)
    return v.reshape(p.shape).to(p.device, p.dtype)


def flattened(tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """All tensors as one vector; a view if there is only one."""
    parts = [v if v.dtype == dtype and v.device == device else real(v).to(device, dtype) for v in tensors]
    return torch._C._nn.flatten_dense_tensors(parts)


def dense(v: Tensor) -> Tensor:
    """A gradient as a dense tensor: those of embeddings may be sparse."""
    return v.to_dense() if v.is_sparse else v
