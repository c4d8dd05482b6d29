"""Readers for the data sets' own formats: idx, MATLAB 5, CIFAR's binary records. No pickle is used."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import torch
from torch import Tensor

from infhess_bench.data.files import DataError, checked, cifar_batch
from infhess_bench.data.registry import BATCH_SIZE


def mnist(part: str = "train") -> tuple[Tensor, Tensor]:
    """Images (n, 28, 28) as bytes and labels (n,) of "train" or "t10k", from the idx files."""
    images, labels = (
        gzip.decompress(checked("mnist", f"mnist/{part}-{kind}-ubyte.gz").read_bytes())
        for kind in ("images-idx3", "labels-idx1")
    )
    pixels = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8).reshape(-1, 28, 28)
    return pixels, torch.frombuffer(bytearray(labels[8:]), dtype=torch.uint8).long()


def sarcos(part: str = "train") -> tuple[Tensor, Tensor]:
    """Inputs (n, 21) and the seven torques (n, 7) of "train" or "test", in recording order.

    Row k of the test file is row 10k of the training file: leave rows 0, 10, 20, … out of training for a valid test error.
    """
    from scipy.io import loadmat

    name = {"train": "sarcos_inv", "test": "sarcos_inv_test"}[part]
    rows = torch.from_numpy(loadmat(checked("sarcos", f"sarcos/{name}.mat"))[name])
    return rows[:, :21], rows[:, 21:]


def cifar10(batches: Sequence[str] = ("data_batch_1",)) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) as bytes and labels (n,) of the named batches only; "test_batch" is the test set."""
    records = [_records(f"{name}.bin") for name in batches]
    both = torch.cat(records)
    return both[:, 1:].reshape(-1, 3, 32, 32), both[:, 0].long()


def _records(name: str) -> Tensor:
    """The 10,000 records of a batch: a label and 3,072 bytes of image each."""
    path = cifar_batch(name)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) == BATCH_SIZE else None
    if records is None or int(records[::3073].max()) > 9:
        raise DataError(
            f"{path}: damaged, expected 10,000 records of 3,073 bytes; remove it and run: infhess data get cifar10"
        )
    return records.reshape(-1, 3073)
