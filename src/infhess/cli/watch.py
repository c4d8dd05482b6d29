"""Top curvature over a folder of checkpoints: what `infhess spectrum --watch` computes, its rows and its table."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from infhess.cli.measure import NUMBERS, Asked, load, named_errors, source_of
from infhess.harness.rows import Row
from infhess.spectra import Moment, Tracker

EXPERIMENT = "spectrum-watch"
ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
# Keys under which training scripts store weights next to the optimizer's state.
INSIDE = ("state_dict", "model_state_dict", "model")


def checkpoints(folder: Path) -> list[Path]:
    """Files of weights in a folder, in the order of the numbers in their names."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of checkpoints")
    found = [p for p in folder.iterdir() if p.suffix in ENDINGS]
    if not found:
        raise ValueError(f"{folder}: expected checkpoints that end in {', '.join(ENDINGS)}, got none")
    return sorted(found, key=lambda p: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", p.name)])


def weights(path: Path) -> dict[str, Tensor]:
    """The state dict of a checkpoint; no code in it is executed."""
    try:
        held: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path}: damaged, or no checkpoint ({str(error).splitlines()[0]})") from error
    except Exception as error:  # pickle.UnpicklingError: the file holds more than weights
        raise ValueError(f"{path}: expected weights alone; save model.state_dict()") from error
    state = next((held[name] for name in INSIDE if isinstance(held, dict) and isinstance(held.get(name), dict)), held)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path}: expected a state dict of tensors, or one under {', '.join(INSIDE)}")
    return state


def step_of(path: Path, number: int) -> int:
    """The last number in the name, such as 1200 of net-1200.pt; else the place in the folder."""
    found = re.findall(r"\d+", path.stem)
    return int(found[-1]) if found else number


def model_of(returned: Any) -> nn.Module:
    """The model that the checkpoints belong to."""
    model = returned[0] if isinstance(returned, tuple | list) and returned else None
    if not isinstance(model, nn.Module):
        raise ValueError(
            "--watch needs a function that returns (model, loss, batches), for the checkpoints to be loaded"
        )
    return model


class Watch(NamedTuple):
    """A model, and the tracker of its curvature."""

    target: str
    model: nn.Module
    tracker: Tracker
    seed: int

    def rows(self, paths: Sequence[Path]) -> Iterator[list[Row]]:
        """The rows of each checkpoint in turn."""
        for number, path in enumerate(paths):
            start = time.perf_counter()
            try:
                self.model.load_state_dict(weights(path))
            except RuntimeError as error:
                raise ValueError(f"{path}: its weights are not those of the model of {self.target}") from error
            with named_errors(self.target):
                self.tracker.update(step=step_of(path, number))
            yield list(_rows(path, self.tracker.history[-1], self.seed, time.perf_counter() - start))


def prepared(target: str, asked: Asked) -> Watch:
    """Load MODULE:FUNCTION and call it: the model that it returns, and a tracker."""
    function = load(target)
    with named_errors(target):
        returned = function()
        model, source = model_of(returned), source_of(returned, asked)
        tracker = Tracker(source, asked.k, rtol=asked.rtol, budget=asked.budget, generator=asked.generator())
    return Watch(target, model, tracker, asked.seed)


def _rows(path: Path, moment: Moment, seed: int, seconds: float) -> Iterator[Row]:
    cost = moment.data_points, moment.products, seconds
    for i, numbers in enumerate(zip(moment.values, moment.std, moment.low, moment.high), 1):
        for name, number in zip(NUMBERS, numbers):
            yield Row(EXPERIMENT, path.name, f"eigenvalue {i}: {name}", seed, 0, *cost, metric=number)


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines: a checkpoint, its eigenvalues with 95 % intervals, and products."""
    found = {(r.problem, r.method): r for r in rows}
    k = max(int(r.method.split()[1].rstrip(":")) for r in rows)
    lines = []
    for name in dict.fromkeys(r.problem for r in rows):
        mine = [r for r in rows if r.problem == name]
        lines.append([name, *(_cell(found, name, i) for i in range(1, k + 1)), str(mine[0].products)])
    return ["checkpoint", *(f"λ{i}, 95 % interval" for i in range(1, k + 1)), "products"], lines


def _cell(found: dict[tuple[str, str], Row], name: str, i: int) -> str:
    """An eigenvalue with its interval; a dash if an earlier run asked for fewer."""
    numbers = [found.get((name, f"eigenvalue {i}: {what}")) for what in ("value", "low", "high")]
    return "{:.4g} ({:.4g} … {:.4g})".format(*(r.metric for r in numbers if r)) if all(numbers) else "–"
