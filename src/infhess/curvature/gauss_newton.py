"""The Gauss–Newton matrix of one batch: Jᵀ H_L J, by three reverse passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from infhess._checks import callable_with
from infhess.curvature.batch_curvature import BatchCurvature, derivative
from infhess.curvature.batches import is_named, named
from infhess.curvature.flat import Flat
from infhess.curvature.loss import scalar
from infhess.curvature.no_side_effects import TwiceDifferentiable, no_side_effects

# Names under which targets are looked for in a batch.
TARGETS = ("labels", "label", "targets", "target", "y")

Pair: TypeAlias = Callable[[Any], tuple[Any, Any]]


class BatchGaussNewton(BatchCurvature):
    """J s = d(Jᵀu)/du · s, linear in the dummy u; then H_L J s at the outputs; then Jᵀ of the result."""

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Callable[..., Tensor],
        batch: Any,
        flat: Flat,
        seed: int,
        pair: Pair | None = None,
    ) -> None:
        self.flat, self.seed = flat, seed
        forward, targets = parted(model, batch, pair)
        with no_side_effects(flat.live, seed) as self.forward_trace:
            with TwiceDifferentiable():
                self.outputs = one_tensor(forward())
            self.dummy = torch.zeros_like(self.outputs, requires_grad=True)
            self.pulled = derivative([self.outputs], flat.live, [self.dummy], create_graph=True)
            self.leaf = self.outputs.detach().requires_grad_()
            self.loss_gradient = derivative([scalar(loss(self.leaf, targets))], [self.leaf], None, create_graph=True)

    def gradient(self) -> Tensor:
        """The gradient of the loss, flat."""
        with no_side_effects(self.flat.live, self.seed):
            return self.flat.pack(derivative([self.outputs], self.flat.live, self.loss_gradient, retain_graph=True))

    def product(self, s: Tensor) -> Tensor:
        """Jᵀ H_L J s."""
        with no_side_effects(self.flat.live, self.seed):
            (Js,) = derivative(self.pulled, [self.dummy], self.flat.unpack(s), retain_graph=True)
            return self.flat.pack(derivative([self.outputs], self.flat.live, [self.inner(Js)], retain_graph=True))

    def inner(self, Js: Tensor) -> Tensor:
        """H_L J s, at the outputs."""
        return derivative(self.loss_gradient, [self.leaf], [Js], retain_graph=True)[0]


def parted(model: Callable[..., Any], batch: Any, pair: Pair | None) -> tuple[Callable[[], Any], Any]:
    """The forward pass of a batch, as a callable, and its targets.

    In a mapping or a dataclass, targets are an entry, and the model takes the other entries as keywords.
    """
    if pair is not None or not is_named(batch):
        inputs, targets = in_two(batch if pair is None else pair(batch), "batch" if pair is None else "pair")
        callable_with(
            model, "model", ["inputs"], "outputs", "pass a function of the inputs, lambda inputs: model(*inputs)"
        )
        return (lambda: model(inputs)), targets
    entries = named(batch)
    name = target_of(entries)
    return (lambda: model(**{key: value for key, value in entries.items() if key != name})), entries[name]


def in_two(batch: Any, name: str) -> tuple[Any, Any]:
    """Split a pair (inputs, targets)."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        shown = f"a {type(batch).__name__} of {len(batch)}" if isinstance(batch, list | tuple) else type(batch).__name__
        remedy = "pass pair=, a function from a batch to (inputs, targets)" if name == "batch" else "return both"
        raise TypeError(f"{name}: GaussNewton expects pairs (inputs, targets), got {shown}; {remedy}")
    return batch[0], batch[1]


def target_of(entries: dict[str, Any]) -> str:
    """The single entry that has one of the names of targets."""
    found = [name for name in TARGETS if name in entries]
    if len(found) != 1:
        raise TypeError(
            f"batch: GaussNewton expects one of {', '.join(TARGETS)} among its entries, got {', '.join(map(str, entries))}; "
            "pass pair=, a function from a batch to (inputs, targets)"
        )
    return found[0]


def one_tensor(outputs: Any) -> Tensor:
    """The outputs of the model: one tensor that depends on the parameters, or an object with it as its `logits`."""
    found = outputs if isinstance(outputs, Tensor) else _logits(outputs)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"model: expected one output tensor, or an output with .logits, got {type(outputs).__name__}; "
            "wrap the model to return it"
        )
    if not found.requires_grad:
        raise ValueError("model: its outputs do not depend on any parameter; does it detach, or run under no_grad?")
    return found


def _logits(outputs: Any) -> Any:
    return outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
