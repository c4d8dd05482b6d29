"""The top curvature of a user's own loss: what `infhess spectrum` computes, its rows and its figure."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from infhess.cli.extras import Extras, extras
from infhess.curvature import GaussNewton, Hessian
from infhess.curvature.batch_source import BatchSource
from infhess.experiments import plots
from infhess.harness.rows import Row
from infhess.spectra import Spectrum, spectrum

EXPERIMENT = "spectrum"
NUMBERS = ("value", "std", "low", "high")  # rows of an eigenvalue
FORMS = "(loss, params, batches) with loss(batch), or (model, loss, batches) with loss(outputs, targets)"


class UserCodeError(ValueError):
    """Something went wrong in the user's function, loss or data."""


@dataclass(frozen=True)
class Measured:
    """A spectrum of a named loss, with 95 % intervals."""

    target: str
    found: Spectrum
    low: list[float]
    high: list[float]
    seconds: float
    extras: Extras = field(default_factory=Extras)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for scripts."""
        return {"target": self.target, **self.found.as_dict(), "seconds": self.seconds, **self.extras.as_dict()}

    def rows(self, seed: int) -> Iterator[Row]:
        """Value, standard error and interval of each eigenvalue."""
        found = self.found
        cost = found.data_points, found.products, self.seconds
        for i, numbers in enumerate(zip(found.values.tolist(), found.std.tolist(), self.low, self.high), 1):
            for method, metric in zip(NUMBERS, numbers):
                yield Row(EXPERIMENT, f"{self.target}/eigenvalue-{i}", method, seed, 0, *cost, metric=metric)
        for problem, method, metric in self.extras.rows():
            yield Row(EXPERIMENT, f"{self.target}/{problem}", method, seed, 0, metric=metric)


class Asked(NamedTuple):
    """The request: eigenvalues, a tolerance and its budget; which matrix, how products are taken, and the seed."""

    k: int
    rtol: float | None
    budget: int | None
    matrix: str
    products: str
    seed: int

    def generator(self) -> torch.Generator:
        """A generator with this seed."""
        return torch.Generator().manual_seed(self.seed)


def prepared(target: str, asked: Asked) -> BatchSource:
    """Load MODULE:FUNCTION and call it: the source of what it returns."""
    function = load(target)
    with named_errors(target):
        return source_of(function(), asked)


def measure(target: str, source: BatchSource, asked: Asked, *, density: bool = False, layers: bool = False) -> Measured:
    """The spectrum of a source, and what was asked for besides."""
    start = time.perf_counter()
    with named_errors(target):
        found = spectrum(source, asked.k, asked.rtol, budget=asked.budget, generator=asked.generator())
        seconds = time.perf_counter() - start
        more = extras(source, with_density=density, with_layers=layers, seed=asked.seed)
    low, high = found.interval(0.95)
    return Measured(target, found, low.tolist(), high.tolist(), seconds, more)


@contextmanager
def named_errors(target: str) -> Iterator[None]:
    """Errors in the user's code, in one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = str(error).strip().splitlines()
        where = "" if isinstance(error, ValueError | TypeError) else f" failed with {type(error).__name__}"
        raise UserCodeError(
            f"{target}{where}: {reason[0] if reason else 'no message'}; see it whole with --traceback"
        ) from error


def load(target: str) -> Any:
    """FUNCTION of MODULE:FUNCTION, where MODULE can be imported, or is the path of a file."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ValueError(f"expected MODULE:FUNCTION, such as infhess.problems.example:small_net, got {target!r}")
    module = _module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{module_name} has no function {name}; it returns {FORMS}")
    return function


def _module(name: str) -> Any:
    path = Path(name)
    if name.endswith(".py"):
        if not path.is_file():
            raise ValueError(f"{name}: there is no such file")
        sys.path.insert(0, str(path.parent.resolve()))
        spec = importlib.util.spec_from_file_location(path.stem, name)
        if spec is None or spec.loader is None:
            raise ValueError(f"{name}: expected a Python file")
        module, loader = importlib.util.module_from_spec(spec), spec.loader
        sys.modules[path.stem] = module
        _run(lambda: loader.exec_module(module), name)
        return module
    sys.path.insert(0, str(Path.cwd()))
    return _run(lambda: importlib.import_module(name), name)


def _run(load: Callable[[], Any], name: str) -> Any:
    """Import, with errors in one line."""
    try:
        return load()
    except ModuleNotFoundError as error:
        remedy = "give the path of a file, as file.py:function"
        raise ValueError(f"no module named {error.name} from here; {remedy}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise UserCodeError(f"{name} cannot be imported: {reason}") from error


def source_of(returned: Any, asked: Asked) -> BatchSource:
    """The Hessian or Gauss–Newton matrix of what the user's function returned."""
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        shown = f"{len(returned)} things" if isinstance(returned, tuple | list) else type(returned).__name__
        raise TypeError(f"the function must return {FORMS}; it returned {shown}")
    first, second, batches = returned
    products, generator = asked.products, asked.generator()
    if not callable(second):
        if asked.matrix == "gauss-newton":
            raise ValueError("--matrix gauss-newton needs a function that returns (model, loss, batches)")
        return Hessian(first, second, batches, products=products, generator=generator)
    if not isinstance(first, nn.Module):
        raise TypeError(
            f"the function must return {FORMS}, with a torch.nn.Module as the model; it returned two functions"
        )
    params = {name: p for name, p in first.named_parameters() if p.requires_grad}
    if asked.matrix == "gauss-newton":
        if products != "exact":
            raise ValueError("--products difference is for the Hessian; leave it out with --matrix gauss-newton")
        return GaussNewton(first, second, params, batches, generator=generator)
    return Hessian(lambda b: second(first(b[0]), b[1]), params, batches, products=products, generator=generator)


def figure(rows: Sequence[Row], path: Path) -> Path:
    """Eigenvalues with their 95 % intervals."""
    tops = [r for r in rows if "/eigenvalue-" in r.problem]
    values, low, high = ([r.metric for r in tops if r.method == what] for what in ("value", "low", "high"))
    index = range(1, len(values) + 1)
    errors = [[max(0.0, v - end) for v, end in zip(values, low)], [max(0.0, end - v) for v, end in zip(values, high)]]
    fig, ax = plots.figure()
    ax.errorbar(index, values, yerr=errors, fmt="o", color=plots.BLUE, capsize=4, label="95 % interval")
    ax.set(xlabel="eigenvalue number", ylabel="curvature", xticks=list(index))
    if min(low) > 0:
        ax.set_yscale("log")
    ax.set_title(f"Top curvature of {rows[0].problem.rsplit('/', 1)[0]}", loc="left", fontsize=10)
    ax.legend(frameon=False)
    return plots.save(fig, path)
