"""The scalars of a checkpoint: their order is the file's, and what they are before anything was seen."""

from __future__ import annotations

import math

import pytest
import torch

from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.rate.rate_state import RateState

# In the order of the file: a new one goes last.
RATE_FREE = {
    "steps": 0.0, "log_rate": math.nan, "variance": 0.2, "rate": math.nan, "rate_at_probe": math.nan,
    "steps_at_probe": 0.0, "slow": 0.0, "largest": 0.0, "weight": 0.0, "length": math.nan, "points": 0.0, "observed": 0.0,
    "observed_at": 0.0, "gradient": 0.0, "shortened": 0.0, "skipped": 0.0, "bounded": 0.0, "waiting": 0.0,
    "micro_batches": 1.0, "averaged": 0.0, "differences": 0.0, "lead": 0.0, "noisy": 0.0, "tokens": 0.0,
    "length_read": math.nan, "scale": 1.0, "usual": math.nan, "usual_read": math.nan, "most_usual": 0.0,
    "started_over": 0.0,
}  # fmt: skip
PRECONDITIONED = {
    "base_rate": math.nan, "active": 0.0, "directions": 0.0, "factor": 1.0, "step": math.nan, "limit": math.inf,
    "momentum": 0.0, "nonconvex": 0.0, "read": 0.0, "steps": 0.0, "built_at": math.nan, "steps_at_build": math.nan,
    "curvature": 0.0, "squares": 0.0, "probes": 0.0, "first_curvature": math.nan, "log_rate": math.nan,
    "log_rate_variance": 0.0, "rate": math.nan, "steps_at_probe": 0.0, "slow": 0.0, "longest": 0.0, "gradient_scale": 0.0,
    "slope": 0.0, "slope_squares": 0.0, "noise_dominated": 0.0, "size": 0.0, "shrinking": 0.0, "scheduled_rate": 0.0,
    "micro_batches": 1.0, "skipped": 0.0, "rank_noted": 0.0, "rate_limit": math.inf, "largest_gradient": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fresh"), [(RateState, RATE_FREE), (ControllerState, PRECONDITIONED)])
def test_scalars_are_one_tensor_in_the_order_of_the_file(kind, fresh):
    assert list(kind.__dataclass_fields__) == list(fresh)
    expected = torch.tensor(list(fresh.values()), dtype=torch.float64)
    torch.testing.assert_close(kind().tensor(), expected, rtol=0, atol=0, equal_nan=True)
    numbers = torch.arange(1.0, len(fresh) + 1, dtype=torch.float64)
    assert torch.equal(kind.of(numbers).tensor(), numbers)
    torch.testing.assert_close(kind.of(numbers[:2]).tensor()[2:], expected[2:], rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match="another version"):
        kind.of(torch.zeros(len(fresh) + 1))


def test_after_an_update_the_controllers_go_on_from_its_step():
    state = ControllerState(step=0.25, factor=2.0, limit=6.0, read=100.0, steps=7.0, momentum=0.5, rate=1.0, slow=1.0)
    state.rate_limit = 1e-3
    state.start_over()
    assert state.rate_limit == math.inf
    assert (state.curvature, state.first_curvature, state.squares, state.probes) == (2.0, 2.0, 4.0, 1.0)
    assert (state.longest, state.gradient_scale) == (6.0 * 2.0 / 3, math.inf)
    assert (state.built_at, state.steps_at_build, state.steps_at_probe) == (100.0, 7.0, 7.0)
    assert (state.momentum, state.slow, math.isnan(state.rate), math.isnan(state.log_rate)) == (0.0, 0.0, True, True)
    kept = ControllerState(step=math.nan)
    kept.start_over()
    assert (kept.curvature, kept.built_at) == (1.0, 1.0)
