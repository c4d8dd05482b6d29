"""The top curvature of a user's own loss: what `infhess spectrum` computes, and its rows."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from infhess.curvature import GaussNewton, Hessian
from infhess.curvature.batch_source import BatchSource
from infhess.experiments.rows import Row
from infhess.spectrum import Spectrum, spectrum

EXPERIMENT = "spectrum"
FORMS = "(loss, params, batches) with loss(batch), or (model, loss, batches) with loss(outputs, targets)"


@dataclass(frozen=True)
class Measured:
    """A spectrum of a named loss, with 95 % intervals."""

    target: str
    found: Spectrum
    low: list[float]
    high: list[float]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For a script: plain numbers and lists."""
        found = self.found
        return {
            "target": self.target,
            "values": found.values.tolist(),
            "std": found.std.tolist(),
            "low": self.low,
            "high": self.high,
            "level": 0.95,
            "resolved": found.resolved.tolist(),
            "lowest": list(found.lowest),
            "parameters": found.vectors.shape[0],
            "products": found.products,
            "data_points": found.data_points,
            "rounds": found.rounds,
            "stopped": found.stopped,
            "seconds": self.seconds,
        }

    def rows(self, seed: int) -> Iterator[Row]:
        """Value, standard error and interval of each eigenvalue."""
        found = self.found
        for i in range(len(found.values)):
            for method, metric in (
                ("value", float(found.values[i])), ("std", float(found.std[i])), ("low", self.low[i]), ("high", self.high[i]),
            ):  # fmt: skip
                yield Row(
                    EXPERIMENT, f"{self.target}/eigenvalue-{i + 1}", method, seed, 0, found.data_points, found.products,
                    self.seconds, metric=metric,
                )  # fmt: skip


def measure(
    target: str, k: int, rtol: float | None, budget: int | None, matrix: str, products: str, seed: int
) -> Measured:
    """Load MODULE:FUNCTION, call it, and take the spectrum of what it returns."""
    source = source_of(load(target)(), matrix, products, seed)
    start = time.perf_counter()
    found = spectrum(source, min(k, source.size), rtol, budget=budget, generator=torch.Generator().manual_seed(seed))
    low, high = found.interval(0.95)
    return Measured(target, found, low.tolist(), high.tolist(), time.perf_counter() - start)


def load(target: str) -> Any:
    """FUNCTION of MODULE:FUNCTION, where MODULE is a name that can be imported from here or the path of a file."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ValueError(f"expected MODULE:FUNCTION, such as infhess.problems.example:small_net, got {target!r}")
    module = _module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{module_name} has no function {name}; it returns {FORMS}")
    return function


def _module(name: str) -> Any:
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ValueError(f"{name}: there is no such file")
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"no module named {error.name} from here; give the path of a file instead, as file.py:function"
        ) from error


def source_of(returned: Any, matrix: str, products: str, seed: int) -> BatchSource:
    """The Hessian or Gauss–Newton matrix of what the user's function returned."""
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        raise TypeError(f"the function must return {FORMS}; it returned {type(returned).__name__}")
    first, second, batches = returned
    generator = torch.Generator().manual_seed(seed)
    if isinstance(first, nn.Module):
        params = [p for p in first.parameters() if p.requires_grad]
        if matrix == "gauss-newton":
            return GaussNewton(first, second, params, batches, generator=generator)
        return Hessian(lambda b: second(first(b[0]), b[1]), params, batches, products=products, generator=generator)
    if matrix == "gauss-newton":
        raise ValueError("--matrix gauss-newton needs a function that returns (model, loss, batches)")
    return Hessian(first, second, batches, products=products, generator=generator)
