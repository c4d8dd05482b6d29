"""A run on disk, in the safetensors format: the best weights, with rows and notes as JSON. Nothing in it is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from infhess._files import atomic

FORMAT = "infhess-minimize-1"
DAMAGED = "expected a checkpoint that minimize wrote; it is damaged or of another kind: remove it to start again"


def write_run(path: Path, best: Tensor, header: dict[str, Any]) -> None:
    """Write the file atomically."""
    with atomic(path) as temporary:
        save_file({"best": best.cpu()}, temporary, {"format": FORMAT, "run": json.dumps(header)})


def read_run(path: Path, like: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """The best weights, with the size of `like`, and the header."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            best: Tensor = file.get_tensor("best")
        header: dict[str, Any] = json.loads(metadata["run"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: {DAMAGED}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: {DAMAGED}")
    if best.shape != like.shape:
        raise ValueError(
            f"{path}: expected a checkpoint of {len(like)} weights, got one of {best.numel()}; remove it to start again"
        )
    return best.to(like), header
