"""Posteriors on disk, in the safetensors format: a JSON header and raw numbers. Nothing in it is executed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from infhess._files import atomic
from infhess.posterior.observations import Observations

FORMAT = "infhess-posterior-1"
HALF = ("float16", "bfloat16")
DAMAGED = "expected a file that posterior.save wrote; it is damaged or of another kind"


def write(path: Any, prior: Any, observations: Observations) -> None:
    """Write a prior (a dataclass of numbers and tensors) and observations, atomically."""
    values = {f.name: getattr(prior, f.name) for f in dataclasses.fields(prior)}
    # Copies: two factors may be the same tensor, which the format does not allow.
    tensors = {f"prior.{name}": value.cpu().clone() for name, value in values.items() if isinstance(value, Tensor)}
    rows = {"S": observations.S.mT, "Y": observations.Y.mT, "norms": observations.norms}
    tensors |= {name: value.cpu().contiguous() for name, value in rows.items()}
    numbers = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    metadata = {"format": FORMAT, "prior": type(prior).__name__, "numbers": json.dumps(numbers)}
    metadata["given"] = str(observations.given).removeprefix("torch.")
    with atomic(Path(path)) as temporary:
        save_file(tensors, temporary, metadata)


def read(path: Any) -> tuple[str, dict[str, Any], Observations]:
    """The name of the prior, its values, and the observations; raises a clear error for any other file."""
    tensors, metadata = _read_tensors(Path(path))
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: expected a file that posterior.save wrote, got another safetensors file")
    try:
        values = json.loads(metadata["numbers"])
        values |= {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("prior.")}
        given = getattr(torch, metadata["given"]) if metadata.get("given") in HALF else None
        return metadata["prior"], values, Observations.of_units(tensors["S"], tensors["Y"], tensors["norms"], given)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {DAMAGED} ({error})") from error


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        if path.is_dir():
            raise IsADirectoryError
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            metadata = file.metadata() or {}
    except (SafetensorError, IsADirectoryError) as error:
        raise ValueError(f"{path}: {DAMAGED}") from error
    if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in tensors.values()):
        raise ValueError(f"{path}: {DAMAGED}")
    return tensors, metadata
