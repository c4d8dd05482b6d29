"""Operators as types of other packages: curvlinops, and linear_operator, which GPyTorch is built on."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from infhess._draw import needed


class Multiplies(Protocol):
    """What other packages need to know about a matrix."""

    @property
    def shape(self) -> tuple[int, int]: ...  # noqa: D102
    @property
    def like(self) -> Tensor: ...  # noqa: D102
    @property
    def T(self) -> Any: ...  # noqa: D102
    def __matmul__(self, v: Any) -> Tensor: ...


def curvlinops_operator(operator: Multiplies) -> Any:
    """A `PyTorchLinearOperator` whose spaces are flat vectors."""
    module = needed("curvlinops._torch_base", "to_curvlinops", "pip install curvlinops-for-pytorch")

    class Exported(module.PyTorchLinearOperator):  # type: ignore[name-defined, misc]
        """An operator of infhess."""

        def _matmat(self, X: list[Tensor]) -> list[Tensor]:
            return [operator @ X[0]]

        def _adjoint(self) -> Any:
            return curvlinops_operator(operator.T)

        @property
        def dtype(self) -> torch.dtype:
            return operator.like.dtype

        @property
        def device(self) -> torch.device:
            return operator.like.device

    rows, columns = operator.shape
    return Exported([(columns,)], [(rows,)])


def gpytorch_operator(operator: Multiplies) -> Any:
    """A `LinearOperator` of the package linear_operator; gradients do not flow through it to the operator."""
    module = needed("linear_operator.operators", "to_linear_operator", "pip install linear_operator")

    class Exported(module.LinearOperator):  # type: ignore[name-defined, misc]
        """An operator of infhess."""

        def _matmul(self, rhs: Tensor) -> Tensor:
            return operator @ rhs

        def _size(self) -> torch.Size:
            return torch.Size(operator.shape)

        def _transpose_nonbatch(self) -> Any:
            return gpytorch_operator(operator.T)

    return Exported(operator.like)
