"""The result of `minimize`: the gap with its bound, the cost, and one row per pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infhess.minimizing.stop_rule import Gap, Row


@dataclass(frozen=True, repr=False)
class Minimum:
    """The result of `minimize`; the parameters are at the best point seen.

    Attributes:
        gap: estimate of (L − L*)/(L₀ − L*), the share of the possible gain that is left; NaN after SGD alone.
        loss: the loss over all the data; over the pool after SGD alone.
        data_points: data points in gradients, counted each time.
        passes: passes over the data, including a first one of SGD.
        products: Hessian-vector products, and gradients of pool and held-out points, which cost as much.
        product_points: the data points in these, counted each time.
        seconds: from call to return.
        history: a row, a dict, for each pass.
        stopped: "gap", "passes", "precision" (rounding), "stalled" (notes say why), "unbounded" (there is no minimum),
            "not convex: …" or "interrupted".
        method: "dense Newton", "pool-Newton", "L-BFGS around P" or "sgd".
        notes: the method and why it was chosen, and anything unusual.

    >>> import torch, infhess
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> found = infhess.minimize(lambda x: (x @ w - 1).square().mean(), [w], x.split(50), gap=1e-6)
    >>> found.stopped, found.gap_upper(0.95) <= 1e-6, len(found.history) > 0
    ('gap', True, True)
    >>> str(found).startswith("Minimum(gap")
    True

    """

    gap: float
    spread: float
    loss: float
    data_points: int
    passes: int
    products: int
    product_points: int
    seconds: float
    history: list[Row]
    stopped: str
    method: str
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        cost = f"{self.passes} passes, {self.products} products, {self.data_points} data points, {self.seconds:.2g} s"
        return f"Minimum(gap {self.gap:.2g}, loss {self.loss:.6g}; {cost}; stopped: {self.stopped})"

    def gap_upper(self, level: float = 0.95) -> float:
        """An upper bound on the gap that holds with this probability."""
        return Gap(self.gap, self.spread).upper(level)

    def plot(self, ax: Any = None) -> Any:
        """Plot the gap against passes, with its 95 % bound; returns the axes."""
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError("plot: needs matplotlib; pip install 'infhess[experiments]'") from error
        ax = plt.subplots(figsize=(6, 4))[1] if ax is None else ax
        return drawn(ax, self.history)


def drawn(ax: Any, history: list[Row]) -> Any:
    """Draw rows with a gap on the axes; a first pass of SGD is shaded."""
    rows = [r for r in history if r["gap"] == r["gap"] and not r["cut"]]
    x, gaps, uppers = ([r[name] for r in rows] for name in ("pass", "gap", "gap_upper"))
    ax.fill_between(x, gaps, uppers, alpha=0.25, linewidth=0, label="up to its bound, 95 %")
    ax.plot(x, gaps, marker="o", label="gap, estimated")
    if history and history[0]["phase"] == "sgd":
        ax.axvspan(0, 1, color="0.92", zorder=0)
        ax.text(0.5, 0.97, "sgd", transform=ax.get_xaxis_transform(), ha="center", va="top", color="0.4")
    ax.set(yscale="log", xlabel="passes over the data", ylabel="gap (L − L*)/(L₀ − L*)")
    ax.set_xlim(left=0)
    ax.legend(frameon=False)
    return ax
