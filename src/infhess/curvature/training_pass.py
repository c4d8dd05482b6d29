"""The Hessian from the training pass itself: its gradients are kept with their graph, so no second pass is needed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from infhess._distributed import world_size
from infhess.curvature.batch_curvature import (
    BatchCurvature,
    BatchHessian,
    DoubleBackwardError,
    check_twice_differentiable,
    nodes,
)
from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.convolutions import DIMENSIONS, convolve
from infhess.curvature.no_side_effects import ForwardTrace, TwiceDifferentiable, twice_differentiable

# Training passes per step whose graphs are kept: two suffice to tell curvature from its noise.
GRAPHS = 2
EMBEDDINGS = (torch.nn.functional.embedding, torch.nn.functional.embedding_bag)
NO_GRAPH = (
    "no gradient came with its graph: call loss.backward() within watch() or the closure, not torch.autograd.backward, and "
    "pass use_reentrant=False to checkpoint"
)

CHANGED = (
    "weights that the training pass went through have changed since, so that it cannot be differentiated again; step with each "
    "optimizer before the pass of the next one begins"
)


class TrainingPass(TorchFunctionMode):
    """Around forward and backward: keeps the gradient of each parameter with its graph, while `.grad` is as usual.

    `loss.backward()` is called with create_graph, and a hook on each parameter detaches the gradient again before it is added
    to `.grad`: for training, DistributedDataParallel and other hooks it is an ordinary backward pass.
    """

    def __init__(self, params: Iterable[Tensor], *, joined: bool = False) -> None:
        super().__init__()
        self._joined = joined  # whether the optimizer takes part in what `Join` does for processes without further data
        self.params = [p for p in params if p.requires_grad]
        self.backwards = 0  # calls of backward seen
        self.failure: DoubleBackwardError | None = None  # why there is no second derivative
        self._gradients: dict[int, Tensor] = {}
        self._known = {id(p) for p in self.params}
        self._rows: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()  # the most indices that an embedding gets, by their leading dimension
        self._keeps_graph = False  # whether the caller asked for the graph, too
        self._strangers = False  # whether backward has reached parameters of others
        self._aside = False  # whether the caller differentiates within the loss, e.g. for a penalty

    @property
    def seen(self) -> bool:
        """Whether any gradient was computed within the context."""
        return bool(self.backwards or self.failure)

    @property
    def reached(self) -> bool:
        """Whether a backward pass has reached any of the parameters."""
        return bool(self._gradients or self.failure)

    @property
    def strays(self) -> int:
        """How many parameters got no gradient, while backward has reached parameters of others; 0 without those."""
        return (len(self.params) - len(self._gradients)) * self._strangers

    @property
    def points(self) -> int:
        """The batch size as seen: the most frequent leading dimension of tensors that meet a parameter; 0 if none did."""
        return self._rows.most_common(1)[0][0] if self._rows else 0

    @property
    def tokens(self) -> int:
        """The number of tokens as seen: the most indices that an embedding gets, with a row per point; otherwise of points."""
        return max(self.points, self._tokens[self.points])

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient with its graph, summed over backward passes; zero for parameters that were not reached."""
        return [self._gradients[id(p)] if id(p) in self._gradients else torch.zeros_like(p) for p in self.params]

    def __enter__(self) -> TrainingPass:
        """Install twice differentiable operations, and hooks on the parameters."""
        with ExitStack() as stack:
            stack.enter_context(twice_differentiable(self.params))
            if world_size() > 1:  # only then: compiled modules warn about global module hooks
                stack.callback(register_module_forward_pre_hook(self._check_joined).remove)
            for p in self.params:
                stack.callback(p.register_hook(partial(self._take, id(p))).remove)  # type: ignore[no-untyped-call]
            super().__enter__()  # type: ignore[no-untyped-call]
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove both."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._exit.close()

    def _check_joined(self, module: Any, _: object) -> None:
        """A process that has joined takes part only in the collectives of the objects given to `Join`."""
        config = getattr(module, "_join_config", None)
        if config is not None and config.enable and not self._joined:
            raise RuntimeError(
                "a curvature probe is an all-reduce that the model's join() knows nothing of; use RateFree, and "
                "`with torch.distributed.algorithms.Join([model, opt]):`"
            )

    def _take(self, key: int, g: Tensor) -> Tensor | None:
        """Keep a gradient as autograd provides it; training gets it detached."""
        if self._aside:
            return None
        if not torch.is_grad_enabled():
            self.failure = self.failure or DoubleBackwardError(NO_GRAPH)
            return None
        self._gradients[key] = self._gradients[key] + g if key in self._gradients else g
        return None if self._keeps_graph else g.detach()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run operations unchanged, except `backward` and operations whose double backward is wrong."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return self._backward(*args, **kwargs)
        if func is torch.autograd.grad:
            return self._differentiate(*args, **kwargs)
        self._count_rows(func, args)
        found = convolve(func, args, kwargs) if func in DIMENSIONS else None
        return TwiceDifferentiable.call(func, args, kwargs) if found is None else found

    def _differentiate(self, *args: Any, **kwargs: Any) -> Any:
        self._aside = True
        try:
            return torch.autograd.grad(*args, **kwargs)
        finally:
            self._aside = False

    def _backward(
        self,
        loss: Tensor,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        self.backwards += 1
        self._keeps_graph = create_graph
        try:
            check_twice_differentiable(loss)
        except DoubleBackwardError as error:  # training goes on, and the probe reports it
            self.failure = self.failure or error
        leaves = (getattr(node, "variable", None) for node in nodes([loss]))
        self._strangers |= any(leaf is not None and id(leaf) not in self._known for leaf in leaves)
        with warnings.catch_warnings():
            # The warning is about reference cycles between a parameter and its gradient, which the hooks prevent.
            warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
            loss.backward(gradient, retain_graph, True, inputs)  # type: ignore[no-untyped-call]

    def _count_rows(self, func: Any, args: Sequence[Any]) -> None:
        """Record the leading dimension of the first tensor that meets a parameter, and what embeddings get, frozen ones too."""
        if func in EMBEDDINGS and args and args[0].ndim:
            rows = args[0].shape[0]
            self._tokens[rows] = max(self._tokens[rows], args[0].numel())
        tensors = [t for a in args for t in (a if isinstance(a, list | tuple) else (a,)) if isinstance(t, Tensor)]
        others = [t for t in tensors if id(t) not in self._known]
        activations = others and (others[0].is_floating_point() or others[0].is_complex() or func in EMBEDDINGS)
        if activations and len(others) < len(tensors) and others[0].ndim:
            self._rows[others[0].shape[0]] += 1


class BatchTrained(BatchHessian):
    """The curvature of a batch that training has just differentiated."""

    def __init__(self, done: TrainingPass, source: BatchSource) -> None:
        self.flat, self.seed, self.forward_trace, self._alone = source.flat, 0, ForwardTrace(), False
        self._gradients = done.gradients

    def along(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """H s; fails if weights have changed since."""
        try:
            return super().along(vectors)
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            raise ValueError(CHANGED) from error


class TrainedHessian(BatchSource):
    """The Hessian on the batch that training has just differentiated, as a source."""

    pooled = False

    def __init__(self, done: TrainingPass, points: int) -> None:
        self._points, self._done = points, done
        super().__init__(done.params, [done], split=False, generator=None)

    def points_of(self, batch: Batch) -> int:
        """The number of points, if known; otherwise 0."""
        return self._points

    def at(self, batch: Batch, seed: int) -> BatchCurvature:
        """The kept graph; it is valid as long as the parameters do not change."""
        if self._done.failure or not self._done.backwards:
            raise self._done.failure or DoubleBackwardError(NO_GRAPH)
        return BatchTrained(self._done, self)

    def fresh(self, batches: Iterable[Batch]) -> BatchSource:
        """Not available: there is no loss to evaluate on other data."""
        raise TypeError("expected a loss that can be evaluated on other batches; make a Hessian of it")
