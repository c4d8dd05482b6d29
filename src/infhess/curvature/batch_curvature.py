"""The curvature of one batch: its gradient, and any number of products, on one graph."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import Flat, real, shifted
from infhess.curvature.loss import scalar
from infhess.curvature.no_side_effects import (
    Coarsest,
    ForwardTrace,
    TwiceDifferentiable,
    backward_alone,
    no_side_effects,
)

# Columns of a block per pass, unless more are asked for: a pass takes that many times the memory of one product.
COLUMNS = 16


# A dtype with an eps above this is half precision.
HALF = 1e-5


class DoubleBackwardError(ValueError):
    """A loss that cannot be differentiated twice; the message names a workaround.

    >>> import torch, infhess
    >>> class Once(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, w):
    ...         return w.square().sum()
    ...     @staticmethod
    ...     @torch.autograd.function.once_differentiable
    ...     def backward(ctx, g):
    ...         return g * 2 * torch.ones(2)
    >>> w = torch.ones(2, requires_grad=True)
    >>> try:
    ...     infhess.Hessian(lambda x: Once.apply(w), [w], [torch.ones(4, 1)]).matvec(torch.ones(2))
    ... except infhess.DoubleBackwardError:
    ...     print('pass products="difference"')
    pass products="difference"
    """


class BatchCurvature(ABC):
    """Gradient and products at the present parameters, for one batch and one draw of dropout masks."""

    flat: Flat
    seed: int
    forward_trace: ForwardTrace
    points: int = 0  # data points of the batch
    plain: bool = False  # True if it was checked for side effects and had none
    value: float = math.nan  # the loss where `gradient` was last computed

    @abstractmethod
    def gradient(self) -> Tensor:
        """The gradient of the loss, flat."""

    @abstractmethod
    def product(self, s: Tensor) -> Tensor:
        """The product with a flat vector."""

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient of the loss, as one tensor per parameter that requires a gradient."""
        return self.flat.unpack(self.gradient())

    def along(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The product with tensors of the shapes of the parameters that require a gradient."""
        return self.flat.unpack(self.product(self.flat.pack(vectors)))

    def block(self, S: Tensor) -> Tensor:
        """The products with the columns of S."""
        return torch.stack([self.product(s) for s in S.unbind(1)], 1)


REMEDIES = {
    "When use_reentrant=True": "pass use_reentrant=False to checkpoint",
    "double backward": 'use products="difference" with Hessian',
    "is not implemented": 'use products="difference" with Hessian',
    "not differentiable": 'use products="difference" with Hessian',
    "sparse": 'use products="difference" with Hessian, or sparse=False in the embedding',
    "Inference tensors": "leave torch.inference_mode(); no_grad() is no obstacle",
}


def derivative(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor] | None, **options: Any
) -> list[Tensor]:
    """Σ d(output·vector)/d(input); zeros for an unused input, or for an output that depends on nothing."""
    live = [i for i, o in enumerate(outputs) if o.requires_grad]
    if not live:
        return [torch.zeros_like(i) for i in inputs]
    along = None if vectors is None else [vectors[i] for i in live]
    try:
        gradients = torch.autograd.grad([outputs[i] for i in live], inputs, along, allow_unused=True, **options)
    except RuntimeError as error:
        remedy = next((r for sign, r in REMEDIES.items() if sign in str(error)), None)
        if remedy is None:
            raise
        reason = str(error).splitlines()[0][:120]
        raise DoubleBackwardError(f"this loss cannot be differentiated so ({reason}); {remedy}") from error
    if any(g is None for g in gradients) and _reentrant([outputs[i] for i in live]):
        raise DoubleBackwardError(
            "reentrant checkpoints hide parameters from autograd.grad; pass use_reentrant=False to checkpoint"
        )
    return [torch.zeros_like(i) if g is None else g for g, i in zip(gradients, inputs)]


# The code object that `once_differentiable` wraps around any function.
_ONCE = torch.autograd.function.once_differentiable(lambda _: None).__code__


def nodes(outputs: Sequence[Tensor]) -> Iterator[Any]:
    """The autograd nodes behind these tensors."""
    todo, seen = [o.grad_fn for o in outputs], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
            yield node


def _reentrant(outputs: Sequence[Tensor]) -> bool:
    """Whether the graph has a reentrant checkpoint: the loss seems not to depend on parameters inside it."""
    return any(node.name().startswith("CheckpointFunction") for node in nodes(outputs))


def check_twice_differentiable(loss: Tensor) -> bool:
    """Refuse functions marked `once_differentiable`: PyTorch silently takes their second derivatives to be zero.

    Returns False if some operations have to be replaced by those of `TwiceDifferentiable`.
    """
    right = True
    for node in nodes([loss]):
        right &= not node.name().startswith("WeightNorm")
        function: Any = getattr(node, "_forward_cls", None)
        if getattr(getattr(function, "backward", None), "__code__", None) is _ONCE:
            raise DoubleBackwardError(
                f"this loss cannot be differentiated twice ({function.__name__} is once_differentiable); "
                'use products="difference" with Hessian'
            )
    return right


def _twice_differentiable_loss(loss: Callable[[Any], Tensor], batch: Any, seed: int) -> Tensor:
    """The loss of a batch; evaluated again with replacements if an operation in its graph has wrong second derivatives."""
    value = scalar(loss(batch))
    if not check_twice_differentiable(value):
        torch.default_generator.manual_seed(seed)
        with TwiceDifferentiable():
            value = scalar(loss(batch))
    return value


class BatchHessian(BatchCurvature):
    """Reverse over reverse: the gradient with its graph, differentiated once more along a vector (Pearlmutter 1994).

    `plain`: this loss is known to have no side effects, in the forward pass and in the product.
    """

    columns = COLUMNS
    _looked = False

    def __init__(
        self, loss: Callable[[Any], Tensor], batch: Any, flat: Flat, seed: int, *, plain: bool = False
    ) -> None:
        self.flat, self.seed, self._alone, self._looked = flat, seed, plain, not plain
        with no_side_effects(flat.live, seed, stateless=plain) as self.forward_trace:
            value = _twice_differentiable_loss(loss, batch, seed)
            self.value = float(value.detach())
            self._gradients = derivative([value], flat.live, None, create_graph=True)

    def gradient(self) -> Tensor:
        """The gradient of the loss, flat."""
        return self.flat.pack(self.gradients)

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient of the loss, with its graph."""
        return self._gradients

    def along(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """H s, parameter by parameter, without a flat copy."""
        with self._backward():
            return derivative(self.gradients, self.flat.live, vectors, retain_graph=True)

    def product(self, s: Tensor) -> Tensor:
        """H s."""
        return self.flat.pack(self.along(self.flat.unpack(s)))

    def block(self, S: Tensor) -> Tensor:
        """H S, with several columns per pass if PyTorch can batch them."""
        if not all(g.requires_grad for g in self.gradients) or any(p.is_complex() for p in self.flat.live):
            return super().block(S)
        try:
            return torch.cat([self._columns(part) for part in S.split(self.columns, 1)], 1)  # type: ignore[no-untyped-call]
        except RuntimeError:  # an operation cannot be batched
            return super().block(S)

    def _columns(self, S: Tensor) -> Tensor:
        vectors = self.flat.unpack_columns(S)
        options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
        with self._backward(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # operations without a batching rule are slower but correct
            found = torch.autograd.grad(self.gradients, self.flat.live, vectors, **options)
        given = [torch.zeros_like(v) if g is None else g for g, v in zip(found, vectors)]
        return self.flat.pack_columns(given)

    @contextmanager
    def _backward(self) -> Iterator[None]:
        """The first pass shows whether later ones run anything but graph operations, as checkpoints do."""
        around = backward_alone(self.flat.live) if self._alone else no_side_effects(self.flat.live, self.seed)
        with around as trace:
            yield
        self._alone = not (trace.modules or trace.random or self.flat.device.type == "cuda")
        seen = self.forward_trace
        self.plain = self._looked and self._alone and not (seen.state or seen.batch_statistics or seen.random)


class BatchDifference(BatchCurvature):
    """Central differences of gradients, for losses that cannot be differentiated twice.

    H s ≈ [∇L(w + εs) − ∇L(w − εs)] / 2ε with ε = eps^{1/3} (1 + |w|)/|s|. The error is about eps^{2/3} on smooth losses, and
    much larger across the kinks of ReLU and max-pooling. eps is that of the coarsest dtype that the loss computes in. The
    parameters are restored bit for bit.
    """

    def __init__(self, loss: Callable[[Any], Tensor], batch: Any, flat: Flat, seed: int) -> None:
        self.loss, self.batch, self.flat, self.seed, self.forward_trace = loss, batch, flat, seed, ForwardTrace()
        self._eps = max(torch.finfo(p.dtype).eps for p in flat.live)

    def gradient(self) -> Tensor:
        """The gradient of the loss, flat."""
        with no_side_effects(self.flat.live, self.seed) as trace:
            value = scalar(self.loss(self.batch))
            self.value = float(value.detach())
            gradient = self.flat.pack(derivative([value], self.flat.live, None))
        self.forward_trace = trace
        return gradient

    def product(self, s: Tensor) -> Tensor:
        """H s, approximately."""
        length = float(torch.linalg.vector_norm(s))
        if length == 0:
            return torch.zeros_like(s)
        size, eps = sum(float(real(p.detach()).double().square().sum()) for p in self.flat.live) ** 0.5, self._eps
        step = relative_step(eps) * (1 + size) / length
        ahead = self._gradient_at(step * s)
        if self._eps > eps:  # the forward pass used a coarser dtype
            return self.product(s)
        difference: Tensor = (ahead - self._gradient_at(-step * s)) / (2 * step)
        return difference

    def _gradient_at(self, shift: Tensor) -> Tensor:
        with shifted(self.flat, shift), Coarsest(self._eps) as coarsest:
            gradient = self.gradient()
        self._eps = coarsest.eps
        return gradient


def relative_step(eps: float) -> float:
    """eps^{1/3}, which balances rounding against the third derivative; √eps in half precision.

    There the cube root would be a fifth of |w|. Rounding averages out over many weights: on nets √eps is 1 to 3 % off.
    """
    return math.sqrt(eps) if eps > HALF else math.pow(eps, 1 / 3)
