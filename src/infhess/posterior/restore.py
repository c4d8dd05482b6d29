"""A posterior from its file."""

from __future__ import annotations

from typing import Any

from infhess.posterior.base import Posterior
from infhess.posterior.priors import CurvatureShaped, Isotropic, Kronecker, Symmetric
from infhess.posterior.storage import DAMAGED, read

PRIORS = {cls.__name__: cls for cls in (Isotropic, Symmetric, CurvatureShaped, Kronecker)}


def load(path: Any) -> Posterior:
    """The posterior that `Posterior.save` wrote to this file."""
    name, values, observations = read(path)
    try:
        return PRIORS[name](**values).given(observations)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {DAMAGED} ({error})") from error
