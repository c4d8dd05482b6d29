"""What an estimate found and what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

Seen = tuple[Tensor, tuple[str, ...]]  # eigenvalues and notes of what self-driving did with a batch


@dataclass(frozen=True)
class Report:
    """The curvature behind a preconditioner, its step, and the price of both.

    Attributes:
        values: eigenvalues of the curvature, descending; in the base's own scaling where it has one.
        std: their standard deviations from the noise of mini-batches; NaN where that is not known.
        step: what multiplies P²g: 1/λmax(P²B) where it is measured, NaN where the base keeps its rate.
        products: products with mini-batch curvature.
        product_points: data points that they were taken with, a point anew for each product.
        data_points: data points read.
        seconds: wall time.
        notes: what the user should know, in sentences.
        step_std: the standard deviation of the step from the noise of looks; in nets, by `observe`, and NaN elsewhere.

    """

    values: Tensor
    std: Tensor
    step: float
    products: int
    data_points: int
    seconds: float
    notes: tuple[str, ...] = ()
    product_points: int = 0
    step_std: float = math.nan

    def as_dict(self) -> dict[str, float]:
        """Numbers by name, for TensorBoard or any logger."""
        row = {
            "step": self.step,
            "products": float(self.products),
            "product_points": float(self.product_points),
            "data_points": float(self.data_points),
            "seconds": self.seconds,
            "notes": float(len(self.notes)),
            **({"step/std": self.step_std} if self.step_std == self.step_std else {}),
        }
        for i, (value, std) in enumerate(zip(self.values.tolist(), self.std.tolist()), 1):
            row |= {f"value/{i}": value} | ({f"std/{i}": std} if std == std else {})
        return row
