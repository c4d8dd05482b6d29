"""Files of posteriors: those written before the package for the format was used, foreign ones, and shared factors."""

from __future__ import annotations

import ctypes
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from infhess import Isotropic, Kronecker, condition, load
from infhess.posterior.storage import FORMAT
from util import F64, close, randn, spd


def by_hand(path, tensors, metadata):
    """The writer of version 0.1.0: a length, a JSON header padded to 8 bytes, raw numbers."""
    header, chunks, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        data = ctypes.string_at(tensor.data_ptr(), tensor.numel() * 8)
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        chunks.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def test_a_file_of_version_0_1_0_is_read(tmp_path):
    posterior = condition(Isotropic(1.0, 2.0, 0.3), 3 * randn(6, 4), randn(6, 4, seed=1))
    rows = {"S": posterior.observations.S.mT, "Y": posterior.observations.Y.mT, "norms": posterior.observations.norms}
    numbers = json.dumps({"mean": 1.0, "scale": 2.0, "noise": 0.3})
    by_hand(tmp_path / "p", rows, {"format": FORMAT, "prior": "Isotropic", "numbers": numbers})
    loaded = load(tmp_path / "p")
    close(loaded.mean.dense(), posterior.mean.dense(), 1e-14)
    close(loaded.S, posterior.S, 1e-14)


def test_metadata_is_readable_by_others(tmp_path):
    condition(Isotropic(1.0, 2.0, 0.3), randn(6, 4), randn(6, 4)).save(tmp_path / "p")
    with safe_open(tmp_path / "p", framework="pt") as file:
        assert file.metadata()["format"] == FORMAT
        assert json.loads(file.metadata()["numbers"]) == {"mean": 1.0, "scale": 2.0, "noise": 0.3}
        assert set(file.keys()) == {"S", "Y", "norms"}


def test_factors_that_are_one_tensor(tmp_path):
    posterior = condition(Kronecker(0.0, spd(5), noise_left=spd(5, 2)), randn(5, 3), randn(5, 3, seed=1))
    posterior.save(tmp_path / "p")
    close(load(tmp_path / "p").mean.dense(), posterior.mean.dense(), 1e-13)


def test_what_is_loaded_outlives_its_file(tmp_path):
    posterior = condition(Isotropic(), randn(6, 4), randn(6, 4, seed=1))
    posterior.save(tmp_path / "p")
    loaded = load(tmp_path / "p")
    (tmp_path / "p").write_bytes(b"")
    assert torch.equal(loaded.S, posterior.S)


BAD = {
    "whole numbers": ({"S": torch.ones(2, 3, dtype=torch.int64)}, {}),
    "no observations": ({"S": torch.ones(2, 3)}, {}),
    "rows that do not fit": ({"S": torch.ones(2, 3), "Y": torch.ones(1, 3), "norms": torch.ones(2, dtype=F64)}, {}),
    "an unknown prior": (None, {"prior": "Dense"}),
    "numbers that are none": (None, {"numbers": "["}),
    "another field": (None, {"numbers": '{"width": 1}'}),
}


@pytest.mark.parametrize(("tensors", "metadata"), BAD.values(), ids=BAD)
def test_a_file_of_the_right_format_with_wrong_content(tensors, metadata, tmp_path):
    good = {"S": torch.eye(2, 3), "Y": torch.ones(2, 3), "norms": torch.ones(2, dtype=F64)}
    save_file(tensors or good, tmp_path / "p", {"format": FORMAT, "prior": "Isotropic", "numbers": "{}", **metadata})
    with pytest.raises(ValueError, match="damaged or of another kind"):
        load(tmp_path / "p")
