"""The tests' own tools."""

from __future__ import annotations

import torch

from util import close, spectrum


def test_spectrum_utility():
    close(torch.linalg.eigvalsh(spectrum([3.0, 1.0])), torch.tensor([1.0, 3.0]), 1e-12)
