"""What `infhess spectrum` measures on demand: the density of all eigenvalues, and the layers one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from infhess.cli import plots
from infhess.curvature.batch_source import BatchSource
from infhess.spectra import Density, Estimate, Spectrum, density, spectrum, trace


@dataclass(frozen=True)
class Extras:
    """A density, and traces and top eigenvalues by layer; what was not asked for is None, or empty."""

    density: Density | None = None
    traces: dict[str, Estimate] = field(default_factory=dict)
    tops: dict[str, Spectrum] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For a script: plain numbers and lists, under the names of the options."""
        found: dict[str, Any] = {}
        if self.density is not None:
            found["density"] = _density_dict(self.density)
        if self.tops:
            found["layers"] = {name: dict(self._of(name)) for name in self.tops}
        return found

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """(problem, method, metric)."""
        if self.density is not None:
            shares = {"share below zero": self.density.negative, "share near zero": self.density.near_zero}
            for name, share in shares.items():
                for method, metric in zip(("value", "low", "high"), (share.value, *share.interval())):
                    yield name, method, metric
        for name in self.tops:
            yield from ((f"layer-{name}", method, metric) for method, metric in self._of(name))

    def _of(self, name: str) -> Iterator[tuple[str, float]]:
        total, top = self.traces[name], self.tops[name]
        low, high = top.interval()
        yield from zip(("trace", "trace-low", "trace-high"), (total.value, *total.interval()))
        yield from zip(("largest", "largest-low", "largest-high"), (float(v[0]) for v in (top.values, low, high)))

    def layer_lines(self) -> list[list[str]]:
        """A table: name, trace and largest eigenvalue with their 95 % intervals."""
        lines = []
        for name in self.tops:
            v = dict(self._of(name))
            cells = [f"{v[w]:.4g} ({v[w + '-low']:.3g} … {v[w + '-high']:.3g})" for w in ("trace", "largest")]
            lines.append([name, *cells])
        return lines

    def density_lines(self) -> list[list[str]]:
        """A table: what share of the eigenvalues is negative, and near zero, with its 95 % interval."""
        if self.density is None:
            return []
        zero = f"{self.density.zero:.3g}"
        shares = {f"below −{zero}": self.density.negative, f"within ± {zero}": self.density.near_zero}
        return [[n, f"{s.value:.4f}", "{:.4f} … {:.4f}".format(*s.interval())] for n, s in shares.items()]


def extras(source: BatchSource, *, with_density: bool, with_layers: bool, seed: int) -> Extras:
    """Extras of the source's matrix, each with its own seed."""

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    return Extras(
        density(source, generator=generator()) if with_density else None,
        trace(source, by="layer", generator=generator()) if with_layers else {},
        spectrum(source, 1, by="layer", generator=generator()) if with_layers else {},
    )


def _density_dict(found: Density) -> dict[str, Any]:
    x = found.grid[torch.linspace(0, len(found.grid) - 1, min(len(found.grid), 129)).long()]
    low, high = found.interval(x)
    return {
        "grid": found.grid.tolist(),
        "values": found.values.tolist(),
        "cdf": {"x": x.tolist(), "share": found.cdf(x).tolist(), "low": low.tolist(), "high": high.tolist()},
        "zero": found.zero,
        "negative": [found.negative.value, *found.negative.interval()],
        "near_zero": [found.near_zero.value, *found.near_zero.interval()],
        "points": found.points,
        "data_error": found.data_error,
        "stopped": found.stopped,
    }


def density_figure(found: Density, path: Path) -> Path:
    """The density above its distribution function."""
    fig, (above, below) = plots.figure(7.0, 7.0, nrows=2)
    found.plot(above)
    found.plot(below, cdf=True)
    return plots.save(fig, path)
