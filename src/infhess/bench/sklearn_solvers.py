"""scikit-learn's solvers on convex problems."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch

from infhess.harness.rows import Row
from infhess.harness.timing import timed
from infhess.problems.convex_problems import ConvexProblem, convex_problem, squares

LONGEST = 20  # seconds of a call, after which there are no more


def solver_curve(template: Row) -> list[Row]:
    """Loss by seconds: the solver from the start, with twice as many iterations each time."""
    p, rows = convex_problem(template.problem), []
    for iterations in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        solver = solver_for(p, template.method.removeprefix("scikit-learn "), iterations)
        if solver is None:
            break
        x, y = (t.numpy() for t in p.data)
        seconds = _quietly_timed(solver, x, y)
        model = p.model()
        model.weight.data.copy_(torch.from_numpy(solver.coef_).reshape(model.weight.shape))
        rows.append(replace(template, data_points=iterations * len(x), seconds=seconds, loss=p.value(model)))
        if seconds > LONGEST:
            break
    return rows or [replace(template, loss=math.nan)]


def solver_for(problem: ConvexProblem, solver: str, iterations: int) -> Any:
    """A solver for a problem, at most so many iterations; None where it does not apply."""
    from sklearn.linear_model import LogisticRegression, Ridge

    options = {"solver": solver, "fit_intercept": False, "max_iter": iterations, "tol": 1e-12, "random_state": 0}
    if problem.loss_of is squares:
        return Ridge(alpha=1e-10, **options) if solver == "saga" else None
    return LogisticRegression(C=1 / (len(problem.data[0]) * problem.l2), **options)


def _quietly_timed(solver: Any, x: Any, y: Any) -> float:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return timed(lambda: solver.fit(x, y))
