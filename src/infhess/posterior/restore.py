"""Read a posterior from its file."""

from __future__ import annotations

from typing import Any

from infhess.posterior.base import Posterior
from infhess.posterior.priors import CurvatureShaped, Isotropic, Kronecker, Symmetric
from infhess.posterior.storage import DAMAGED, read

PRIORS = {cls.__name__: cls for cls in (Isotropic, Symmetric, CurvatureShaped, Kronecker)}


def load(path: Any) -> Posterior:
    """The posterior that `Posterior.save` wrote to this file.

    >>> import tempfile, torch, infhess
    >>> posterior = infhess.condition(infhess.Isotropic(), torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     posterior.save(f"{folder}/posterior.safetensors")
    ...     again = infhess.load(f"{folder}/posterior.safetensors")
    >>> again.mean.dense().tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    name, values, observations = read(path)
    try:
        return PRIORS[name](**values).given(observations)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {DAMAGED} ({error})") from error
