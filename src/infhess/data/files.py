"""Readers of the data sets' own formats; every file is checked by its sha256 before it is read."""

from __future__ import annotations

import gzip
import hashlib
import os
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

SHA256 = {
    "mnist/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "mnist/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "mnist/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "mnist/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "sarcos/sarcos_inv.mat": "b8a249733253ba6097372fedee7696833fcf30de42037d5b4a7227f21a6d1d97",
    "sarcos/sarcos_inv_test.mat": "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec",
}


class DataError(ValueError):
    """A data file that is missing or damaged; the message names it and the remedy."""


def use(data_dir: Path | None) -> None:
    """Look for data in this folder, here and in the processes started from here; None: where $INFHESS_DATA says."""
    if data_dir is not None:
        os.environ["INFHESS_DATA"] = str(Path(data_dir).resolve())


def folder() -> Path | None:
    """Where data is: $INFHESS_DATA; None where it is not set."""
    return Path(os.environ["INFHESS_DATA"]) if os.environ.get("INFHESS_DATA") else None


@lru_cache(maxsize=16)
def checked(name: str) -> Path:
    """The path of a data file whose checksum is right."""
    root = folder()
    path = None if root is None else root / name
    if path is None or not path.is_file():
        raise DataError(f"{name}: not found in {root or '$INFHESS_DATA'}; name a folder that holds it with --data-dir")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256[name]:
        raise DataError(f"{path}: its sha256 is not that of the original; remove it and get it again")
    return path


def mnist(part: str = "train") -> tuple[Tensor, Tensor]:
    """Images (n, 28, 28) as bytes and labels (n,) of "train" or "t10k", from the idx files."""
    images, labels = (
        gzip.decompress(checked(f"mnist/{part}-{kind}-ubyte.gz").read_bytes())
        for kind in ("images-idx3", "labels-idx1")
    )
    pixels = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8).reshape(-1, 28, 28)
    return pixels, torch.frombuffer(bytearray(labels[8:]), dtype=torch.uint8).long()


def sarcos(part: str = "train") -> tuple[Tensor, Tensor]:
    """Inputs (n, 21) and the seven torques (n, 7) of "train" or "test", in recording order."""
    from scipy.io import loadmat

    name = {"train": "sarcos_inv", "test": "sarcos_inv_test"}[part]
    rows = torch.from_numpy(loadmat(checked(f"sarcos/{name}.mat"))[name])
    return rows[:, :21], rows[:, 21:]


def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 8, 8) in [0, 16] and labels, which come with scikit-learn."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return torch.from_numpy(bunch.images), torch.from_numpy(bunch.target).long()
