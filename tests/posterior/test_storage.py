"""Posteriors on disk: round trips, no pickle, damage is named."""

from __future__ import annotations

import os

import pytest
import torch

import infhess
from infhess import CurvatureShaped, Isotropic, Kronecker, Symmetric, condition, load
from util import F64, close, randn, spd

PRIORS = [
    Isotropic(1.0, 2.0, 0.3),
    Symmetric(1.0, 2.0, 0.3),
    CurvatureShaped(),
    CurvatureShaped(0.1),
    Kronecker(1.0, spd(6), randn(6).abs(), 0.2, spd(6, 3)),
]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("prior", PRIORS, ids=[type(p).__name__ for p in PRIORS])
def test_what_is_loaded_is_what_was_saved(prior, dtype, tmp_path):
    S, Y = randn(6, 7, dtype=dtype), randn(6, 7, seed=1, dtype=dtype)
    posterior = condition(prior, 3 * S, Y)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = load(tmp_path / "posterior.safetensors")
    assert type(loaded) is type(posterior)
    assert loaded.mean.dtype == dtype
    tolerance = 1e-12 if dtype == F64 else 1e-4
    close(loaded.mean.dense(), posterior.mean.dense(), tolerance)
    close(loaded.variance(S, S), posterior.variance(S, S), tolerance)
    if not isinstance(prior, CurvatureShaped):
        close(loaded.log_evidence(), posterior.log_evidence(), tolerance)
    assert os.listdir(tmp_path) == ["posterior.safetensors"]


def test_a_damaged_or_foreign_file_is_named(tmp_path):
    path = tmp_path / "p.safetensors"
    condition(PRIORS[0], randn(6, 2), randn(6, 2)).save(path)
    whole = path.read_bytes()
    for bad in (whole[: len(whole) // 2], b"", b"\x80\x04pickle", whole[:40]):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="damaged or of another kind"):
            load(path)
    foreign = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(len(foreign).to_bytes(8, "little") + foreign + b"\0\0\0\0")
    with pytest.raises(ValueError, match="another safetensors file"):
        load(path)
    with pytest.raises(ValueError, match="of another kind"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent")
    with pytest.raises(IsADirectoryError, match="expected the name of a file, got a folder"):
        condition(PRIORS[0], randn(6, 2), randn(6, 2)).save(tmp_path)
    assert os.listdir(tmp_path) == ["p.safetensors"]


def test_a_saved_posterior_comes_back_bit_for_bit(tmp_path):
    posterior = condition(Isotropic(1.0, 1.0, 0.1), randn(9, 4).float(), randn(9, 4, seed=1).float())
    posterior.save(tmp_path / "p")
    assert torch.equal(infhess.load(tmp_path / "p").mean.dense(), posterior.mean.dense())
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o644
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        posterior.save(tmp_path / "folder")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        posterior.save(tmp_path / "absent" / "p")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "p"]
