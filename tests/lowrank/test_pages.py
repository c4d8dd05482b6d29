"""Room for long columns is an ordinary tensor."""

from __future__ import annotations

import copy

import pytest
import torch

from infhess.lowrank import pages
from infhess.lowrank.pages import empty_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("large", [0, 2**40])
def test_room_is_written_read_and_copied(dtype, large, monkeypatch):
    monkeypatch.setattr(pages, "LARGE", large)
    X = empty_rows(3, 1001, torch.empty(0, dtype=dtype))
    assert X.shape == (3, 1001)
    assert X.dtype == dtype
    assert X.is_contiguous()
    X[:] = torch.arange(1001).to(X)
    part, twin = X[1], copy.deepcopy(X)
    del X
    assert torch.equal(part, torch.arange(1001).to(part))
    assert torch.equal(twin[2], part)


def test_a_system_without_huge_pages(monkeypatch):
    monkeypatch.setattr(pages, "LARGE", 0)
    monkeypatch.delattr(pages.mmap, "MADV_HUGEPAGE", raising=False)
    assert empty_rows(2, 5, torch.empty(0)).shape == (2, 5)
