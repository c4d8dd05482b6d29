"""Products of several batches of the same shape in one pass: `torch.func.vmap` over batches, each with its own parameters.

For a small net, launching operations takes longer than computing them; vmap launches each once for all batches.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from infhess.curvature.batch_curvature import BatchHessian
from infhess.curvature.batches import Batch, size_of, tensors, tree_map
from infhess.curvature.flat import Flat
from infhess.curvature.loss import scalar
from infhess.curvature.no_side_effects import no_side_effects

# With more parameters than this, arithmetic takes longer than launching it, and one batch at a time is as fast.
MOST = 2**18
# The same for the numbers that the forward pass computes per batch; all batches are in memory at once.
OUTPUTS = 2**18
# One batch that agrees with its separate product vouches for this many more; agreement is up to this many rounding errors.
UNSEEN, AGREE = 248, 1e4


class Mapped:
    """Products of the Hessians of several batches, or None if batches have to be computed separately.

    A loss can be mapped if it stores no tensor, draws no random numbers and reads no value: anything else fails, or is found by
    comparison with a batch that is also computed separately. `count` is called for every product, including those of the
    comparison and of discarded passes.
    """

    def __init__(self, loss: Callable[[Any], Tensor], flat: Flat) -> None:
        self._loss, self._flat, self._left = loss, flat, 0
        self.possible = flat.size <= MOST and not any(p.is_complex() for p in flat.params)

    def products(
        self, batches: Sequence[Batch], seed: int, vectors: Sequence[Tensor], count: Callable[[int], None]
    ) -> Tensor | None:
        """H_b s for each batch b and each vector s: (C, k, N)."""
        if not _alike(batches):
            return None
        alone = None
        if self._left < len(batches):
            alone = _on_its_own(self._loss, batches[0], self._flat, seed, vectors[0])
            count(1)
            self.possible = alone is not None
        try:
            found = self._one_pass(batches, seed, vectors, count) if self.possible else None
        except Exception:  # a branch on data, or an operation without a batching rule: the loss itself is fine
            found = None
        self.possible = found is not None and (alone is None or _agree(found[0, 0], alone))
        self._left = UNSEEN if alone is not None else self._left - len(batches)
        return found if self.possible else None

    def _one_pass(
        self, batches: Sequence[Batch], seed: int, vectors: Sequence[Tensor], count: Callable[[int], None]
    ) -> Tensor:
        live, C = self._flat.live, len(batches)
        copies = [p.detach().expand(C, *p.shape).requires_grad_() for p in live]

        def loss(own: list[Tensor], batch: Batch) -> Tensor:
            with _Instead(live, own):
                return self._loss(batch).reshape(())

        with no_side_effects(live, seed, stateless=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # operations without a batching rule are slower but correct
            values = vmap(loss)(copies, tree_map(torch.stack, list(batches), size_of(batches[0])))
            scalar(values.sum())
            gradients = torch.autograd.grad(values.sum(), copies, create_graph=True)
            found = list[Tensor]()
            for s in vectors:
                found.append(self._product(gradients, copies, s))
                count(C)
            return torch.stack(found, 1)

    def _product(self, gradients: Sequence[Tensor], copies: Sequence[Tensor], s: Tensor) -> Tensor:
        along = [v.expand_as(p) for v, p in zip(self._flat.unpack(s), copies)]
        found = torch.autograd.grad(gradients, copies, along, retain_graph=True)
        return self._flat.pack_columns(found).mT


class _Instead(TorchFunctionMode):
    """Within the context, operations get other tensors instead of the parameters."""

    def __init__(self, params: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        super().__init__()
        self._other = {id(p): other for p, other in zip(params, others)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace parameters among the arguments, also within a list or tuple."""
        return func(*map(self._given, args), **{name: self._given(a) for name, a in (kwargs or {}).items()})

    def _given(self, a: Any) -> Any:
        return type(a)(map(self._given, a)) if type(a) in (list, tuple) else self._other.get(id(a), a)


class _LeftBehind(TorchFunctionMode):
    """Records the outputs of operations, to see which still exist afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._seen, self.numbers = list[weakref.ref[Tensor]](), 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else (result,):
            if isinstance(value, Tensor) and not any(value is a for a in args):
                self._seen.append(weakref.ref(value))
                self.numbers += value.numel()
        return result

    @property
    def any(self) -> bool:
        """Whether any output is still referenced."""
        return any(seen() is not None for seen in self._seen)


def _on_its_own(loss: Callable[[Any], Tensor], batch: Batch, flat: Flat, seed: int, s: Tensor) -> Tensor | None:
    """H_b s of one batch; None for a loss that is random, large, has state or stores tensors."""
    left = _LeftBehind()

    def watched(b: Batch) -> Tensor:
        with left:
            return loss(b)

    local = BatchHessian(watched, batch, flat, seed)
    y, plain = local.product(s), local.plain
    del local
    return y if plain and left.numbers <= OUTPUTS and not left.any else None


def _alike(batches: Sequence[Batch]) -> bool:
    """Whether there are several batches, of tensors alone and with the same shapes."""
    shapes = [[(t.shape, t.dtype, t.device) for t in tensors(batch)] for batch in batches]
    return len(batches) > 1 and all(map(_is_nest, batches)) and all(s == shapes[0] for s in shapes)


def _is_nest(batch: Batch) -> bool:
    if type(batch) is dict:
        return all(map(_is_nest, batch.values()))
    return all(map(_is_nest, batch)) if type(batch) in (list, tuple) else type(batch) is Tensor


def _agree(y: Tensor, alone: Tensor) -> bool:
    eps = torch.finfo(y.dtype).eps
    return bool(torch.linalg.vector_norm(y - alone) <= AGREE * eps * torch.linalg.vector_norm(alone))
