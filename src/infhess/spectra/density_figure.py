"""Plots of a spectral density."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def draw_density(ax: Any, x: Tensor, y: Tensor) -> None:
    """The density on a logarithmic scale: most of a net's eigenvalues lie close to zero."""
    ax.semilogy(x.cpu(), y.cpu(), linewidth=1.2)
    ax.set_ylim(1e-6 * float(y.max()), 3 * float(y.max()))
    ax.set(xlabel="curvature", ylabel="density of eigenvalues")


def draw_distribution(ax: Any, x: Tensor, share: Tensor, bands: dict[str, tuple[Tensor, Tensor]], zero: float) -> None:
    """A distribution function with its bounds, widest first; magnitudes above `zero` on a logarithmic scale."""
    if zero > 0:
        ax.set_xscale("symlog", linthresh=zero)
    for shade, (label, (low, high)) in zip((0.15, 0.3), bands.items()):
        ax.fill_between(x.cpu(), low.cpu(), high.cpu(), alpha=shade, color="C0", linewidth=0, label=label)
    ax.plot(x.cpu(), share.cpu(), color="C0", linewidth=1.2)
    ax.set(xlabel="curvature", ylabel="share of eigenvalues at or below")
    ax.legend(frameon=False)
