"""Distributed processes with their own batches: their products are averaged to one product over all of their data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from infhess._distributed import all_reduce_sum, any_process, mean_over_processes, world_size
from infhess.curvature.batch_curvature import BatchCurvature, DoubleBackwardError
from infhess.curvature.no_side_effects import ForwardTrace


class PooledBatch(BatchCurvature):
    """The mean over processes of gradients and products, each weighted by its data points.

    All processes have to make the same calls, in the same order.
    """

    def __init__(self, local: BatchCurvature, points: int) -> None:
        self._local, self.flat, self.seed = local, local.flat, local.seed
        self.points = round(all_reduce_sum([points], local.flat.device)[0])
        self._weight = points * world_size() / self.points

    @property
    def forward_trace(self) -> ForwardTrace:  # type: ignore[override]
        """What was seen of the loss in this process."""
        return self._local.forward_trace

    def _mean(self, x: Tensor) -> Tensor:
        return mean_over_processes(x.detach() * self._weight)

    def gradient(self) -> Tensor:
        """The gradient of the loss, flat."""
        return self._mean(self._local.gradient())

    @property
    def value(self) -> float:  # type: ignore[override]
        """The mean loss, where the gradient was last computed."""
        return all_reduce_sum([self._local.value * self._weight], self.flat.device)[0] / world_size()

    def product(self, s: Tensor) -> Tensor:
        """The product with a flat vector."""
        return self._mean(self._local.product(s))

    @property
    def gradients(self) -> list[Tensor]:
        """The gradient, a tensor for each parameter."""
        return [self._mean(g) for g in self._local.gradients]

    def along(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The product with tensors of the shapes of the parameters."""
        return [self._mean(x) for x in self._local.along(vectors)]

    def block(self, S: Tensor) -> Tensor:
        """The products with the columns of S."""
        return self._mean(self._local.block(S))


def failed_somewhere(error: Exception | None, device: torch.device) -> Exception | None:
    """The error of this process; if only another process has failed, an error of the same type."""
    if world_size() == 1 or not any_process(error is not None, device):
        return error
    told: list[tuple[int, str] | None] = [None] * world_size()
    distributed.all_gather_object(told, None if error is None else (_kind(error), str(error)))
    kind, message = next(filter(None, told))
    return error or KINDS[kind](f"another process that takes part has failed: {message}")


class AbsentError(ValueError):
    """A process has nothing to contribute this time."""


KINDS = (DoubleBackwardError, AbsentError, ValueError, RuntimeError)


def _kind(error: Exception) -> int:
    """Code of the error types that callers distinguish; any other error ends all processes."""
    return next((i for i, kind in enumerate(KINDS) if isinstance(error, kind)), len(KINDS) - 1)
