"""scikit-learn's solvers on our problems."""

from __future__ import annotations

import time
import warnings

import torch
from torch import Tensor

from infhess.problems.convex import ConvexProblem, squares


def solved(problem: ConvexProblem, solver: str, iterations: int) -> tuple[Tensor, float] | None:
    """Weights after so many iterations of a solver, and the seconds that they took; None where the solver does not apply."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    x, y = (t.numpy() for t in problem.data)
    if problem.loss_of is squares:
        if solver != "saga":
            return None
        fitted = Ridge(alpha=1e-10, solver="saga", fit_intercept=False, max_iter=iterations, tol=1e-12, random_state=0)
    else:
        strength = 1 / (len(x) * problem.l2)
        fitted = LogisticRegression(
            C=strength, solver=solver, fit_intercept=False, max_iter=iterations, tol=1e-12, random_state=0
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        began = time.perf_counter()
        fitted.fit(x, y)
        seconds = time.perf_counter() - began
    return torch.from_numpy(fitted.coef_).reshape(problem.model().weight.shape).to(problem.data[0]), seconds
