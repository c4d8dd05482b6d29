"""The law of shares against SciPy's."""

from __future__ import annotations

import pytest
import torch

from infhess.spectra.shares import bracket_deviate, kolmogorov, share_bound
from util import F64, close


def test_shares_have_the_law_of_random_starts():
    stats = pytest.importorskip("scipy.stats")
    for count in (50.0, 500.0, 1e5):
        F = torch.tensor([0.02, 0.3, 0.9], dtype=F64)
        for z in (-1.96, 0.5, 1.96):
            p = float(torch.special.ndtr(torch.tensor(z, dtype=F64)))
            f = torch.from_numpy(stats.beta.ppf(p, count * F.numpy(), count * (1 - F).numpy()))
            close(share_bound(f, torch.tensor(z, dtype=F64), count), F, rtol=5e-3)
    assert kolmogorov(0.99) == pytest.approx(stats.kstwobign.ppf(0.99), rel=1e-6)


def test_a_wide_bracket_needs_one_side_alone():
    se = torch.ones(3, dtype=F64)
    z = bracket_deviate(0.95, torch.tensor([0.0, 1.0, 100.0], dtype=F64), se)
    assert z[0] == pytest.approx(1.960, abs=1e-3)
    assert 1.645 < float(z[1]) < 1.960
    assert z[2] == pytest.approx(1.645, abs=1e-3)
