"""The objective of a net problem."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deep_cases import images, small


def test_the_objective_has_the_penalty_and_the_test_has_not():
    problem = small(l2=0.5)
    model = problem.model()
    (x, y), (tx, ty) = images()
    model.eval()
    penalty = 0.25 * float(sum(p.detach().square().sum() for p in model.parameters()))
    with torch.no_grad():
        assert problem.value(model) == pytest.approx(
            float(nn.functional.cross_entropy(model(x), y)) + penalty, rel=1e-5
        )
        assert problem.tested(model) == pytest.approx(float(nn.functional.cross_entropy(model(tx), ty)), rel=1e-5)
