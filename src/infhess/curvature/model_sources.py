"""Sources for a model and a loss of its outputs: the Gauss–Newton matrix and the Fisher matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from infhess._checks import callable_with
from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batch_source import BatchSource, Loss
from infhess.curvature.batches import Batch
from infhess.curvature.fisher import BatchFisher, Sample, sampler_of
from infhess.curvature.flat import Params
from infhess.curvature.gauss_newton import BatchGaussNewton, Pair
from infhess.curvature.selection import select


class ModelSource(BatchSource):
    """A source from a model, a loss of outputs and targets, and batches of inputs and targets."""

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Loss,
        params: Params | str,
        batches: Iterable[Batch],
        pair: Pair | None,
        split: bool,
        generator: torch.Generator | None,
    ) -> None:
        order = f"the order is {type(self).__name__}(model, loss, params, batches)"
        callable_with(loss, "loss", ["outputs", "targets"], "scalar", order)
        if not callable(model):  # what it takes depends on the batches
            callable_with(model, "model", ["inputs"], "outputs", order)
        if pair is not None:
            callable_with(pair, "pair", ["batch"], "(inputs, targets)", "pass a function of one batch")
        super().__init__(chosen(model, params), batches, split, generator)
        self.model, self.loss, self.pair = model, loss, pair


def chosen(model: Any, params: Params | str) -> Params:
    """The parameters; patterns are replaced by the model's parameters whose names match."""
    if isinstance(params, str):
        return select(model, params)
    if not isinstance(params, list | tuple) or not params or not all(isinstance(p, str) for p in params):
        return params
    return select(model, *params)


class GaussNewton(ModelSource):
    """The Gauss–Newton matrix Jᵀ H_L J of loss(model(inputs), targets): positive semi-definite for convex losses.

    Args:
        model: inputs ↦ outputs, one tensor, or an object with that tensor as its `logits`.
        loss: (outputs, targets) ↦ scalar, the mean over the batch.
        params: the parameters, with or without names; or one or several patterns of names, such as "blocks.*.attn.*".
        batches: an iterable of (inputs, targets); or of mappings or dataclasses with an entry `labels`, `label`, `targets`,
            `target` or `y`, whose other entries the model takes as keywords.
        pair: batch ↦ (inputs, targets), for any other batch.
        split: False if the loss is not a mean over data points.
        generator: random numbers for the seeds of dropout masks.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> source = GaussNewton(model, torch.nn.MSELoss(), model.parameters(), [(torch.eye(2), torch.zeros(2, 1))])
    >>> source.matvec(torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]

    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Loss,
        params: Params | str,
        batches: Iterable[Batch],
        *,
        pair: Pair | None = None,
        split: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, loss, params, batches, pair, split, generator)

    def at(self, batch: Batch, seed: int) -> BatchCurvature:
        """The Gauss–Newton matrix of one batch."""
        return BatchGaussNewton(self.model, self.loss, batch, self.flat, seed, self.pair)

    def fresh(self, batches: Iterable[Batch]) -> GaussNewton:
        """The same matrix from other data."""
        made = GaussNewton(
            self.model, self.loss, self.flat.given, batches, pair=self.pair, split=self.split, generator=self._generator
        )
        made.pooled = self.pooled
        return made


class Fisher(ModelSource):
    """The Fisher matrix (1/n) Σ g_i g_iᵀ of the gradients of single points: positive semi-definite.

    Args:
        model: as for `GaussNewton`; dimension 0 of its outputs counts data points.
        loss: as there, a mean over data points.
        params: as there.
        batches: as there.
        kind: "empirical", with the targets of the data; or "mc", with targets drawn from the model anew for each batch. The
            expectation of "mc" is the true Fisher matrix: the Gauss–Newton matrix for cross-entropy and squared errors.
        pair: as for `GaussNewton`.
        split: as there.
        sample: outputs ↦ targets drawn from the model, for "mc" with a loss other than torch's cross-entropies and MSE.
        generator: random numbers for the seeds of dropout masks and of drawn targets.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> torch.nn.init.zeros_(model.weight)
    Parameter containing:
    tensor([[0., 0.]], requires_grad=True)
    >>> source = Fisher(model, torch.nn.MSELoss(), model.parameters(), [(torch.eye(2), torch.ones(2, 1))])
    >>> source.matvec(torch.tensor([1.0, 2.0])).tolist()
    [2.0, 4.0]

    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Loss,
        params: Params | str,
        batches: Iterable[Batch],
        kind: str = "empirical",
        *,
        pair: Pair | None = None,
        sample: Sample | None = None,
        split: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        if kind not in ("empirical", "mc"):
            raise ValueError(f'kind: expected "empirical" or "mc", got {kind!r}')
        if sample is not None and kind != "mc":
            raise TypeError('sample: expected a function from outputs to targets, with kind="mc" alone')
        if sample is not None:
            callable_with(sample, "sample", ["outputs"], "targets", "pass a function of the model's outputs")
        super().__init__(model, loss, params, batches, pair, split, generator)
        self.kind, self.sample = kind, sample or sampler_of(loss) if kind == "mc" else None

    def at(self, batch: Batch, seed: int) -> BatchCurvature:
        """The Fisher matrix of one batch."""
        return BatchFisher(self.model, self.loss, batch, self.flat, seed, self.pair, self.sample)

    def fresh(self, batches: Iterable[Batch]) -> Fisher:
        """The same matrix from other data."""
        made = Fisher(
            self.model, self.loss, self.flat.given, batches, self.kind, pair=self.pair, sample=self.sample, split=self.split,
            generator=self._generator,
        )  # fmt: skip
        made.pooled = self.pooled
        return made
