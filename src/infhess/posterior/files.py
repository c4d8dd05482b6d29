"""Posteriors on disk, in the safetensors format: a length, a JSON header, raw numbers. Nothing in it is ever executed."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infhess._files import atomic
from infhess.posterior.base import Posterior
from infhess.posterior.observations import Observations
from infhess.posterior.priors import CurvatureShaped, Isotropic, Kronecker, Symmetric

PRIORS = {cls.__name__: cls for cls in (Isotropic, Symmetric, CurvatureShaped, Kronecker)}
DTYPES = {"F64": torch.float64, "F32": torch.float32}
FORMAT = "infhess-posterior-1"


def save(posterior: Posterior, path: Any) -> None:
    """Write prior and observations; the file appears whole or not at all."""
    prior = posterior.prior
    values = {f.name: getattr(prior, f.name) for f in dataclasses.fields(prior)}
    tensors = {f"prior.{name}": value for name, value in values.items() if isinstance(value, Tensor)}
    tensors |= {
        "S": posterior.observations.S.mT,
        "Y": posterior.observations.Y.mT,
        "norms": posterior.observations.norms,
    }
    numbers = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    metadata = {"format": FORMAT, "prior": type(prior).__name__, "numbers": json.dumps(numbers)}
    write_safetensors(Path(path), tensors, metadata)


def load(path: Any) -> Posterior:
    """The posterior that `Posterior.save` wrote to this file."""
    tensors, metadata = read_safetensors(Path(path))
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT or metadata.get("prior") not in PRIORS:
        raise ValueError(f"{path}: expected a file that posterior.save wrote, got another safetensors file")
    try:
        values = json.loads(metadata["numbers"])
        values |= {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("prior.")}
        prior = PRIORS[metadata["prior"]](**values)
        return prior.given(Observations.of_units(tensors["S"], tensors["Y"], tensors["norms"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {DAMAGED} ({error})") from error


DAMAGED = "expected a file that posterior.save wrote; it is damaged or of another kind"


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write to a temporary name beside the file, then rename."""
    header: dict[str, Any] = {"__metadata__": metadata}
    chunks, offset = [], 0
    for name, tensor in tensors.items():
        data = _bytes(tensor)
        code = next(code for code, dtype in DTYPES.items() if dtype == tensor.dtype)
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        chunks.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.writelines([len(text).to_bytes(8, "little"), text, *chunks])


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a file that is cut short or is something else is an error that says so."""
    data = path.read_bytes()
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(data, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path}: {DAMAGED}") from error
    return tensors, metadata


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def _tensor(data: bytes, start: int, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    if start + end > len(data):
        raise ValueError("file is cut short")
    raw = bytearray(data[start + begin : start + end])
    if not raw:
        return torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
    return torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
