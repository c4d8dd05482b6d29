"""The usual alternatives to `minimize`, each until it stops by itself; gradients, products and seconds are recorded."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infhess.curvature import Hessian
from infhess.minimizing import minimize
from infhess_bench.bench.published import SKETCHY
from infhess_bench.bench.recorder import Recorder
from infhess_bench.problems import ConvexProblem
from infhess_bench.problems.convex_problems import logistic, softmax, squares

Solver = Callable[[ConvexProblem, Recorder], None]


def infhess(problem: ConvexProblem, record: Recorder) -> None:
    """`minimize` to 1e-9, on batches in an order given by the seed."""
    batches, model = problem.batches(record.template.batch_size, record.template.seed), problem.model()

    def note(row: dict[str, Any]) -> None:
        record.points, record.products = row["data_points"], row["products"]
        record.product_points = row["product_points"]
        record(model.weight, row["loss"] if row["phase"] == "newton" else None)

    record._since = time.process_time()
    minimize(problem.loss(model), model.parameters(), batches, gap=1e-9, callback=note, passes=60)


def torch_lbfgs(problem: ConvexProblem, record: Recorder) -> None:
    """torch.optim.LBFGS with 20 secants and strong Wolfe conditions."""
    model = problem.model()
    loss = problem.loss(model)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=10**6, max_eval=10**7, history_size=20, tolerance_grad=0.0, tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(problem.data)
        value.backward()  # type: ignore[no-untyped-call]
        record.points += record.n
        record(model.weight, value.item())
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def scipy_minimize(method: str, problem: ConvexProblem, record: Recorder, **options: Any) -> None:
    """scipy.optimize.minimize; if it needs products, with those of `infhess.Hessian`."""
    from scipy.optimize import minimize as scipy_solver

    model = problem.model()
    loss, W = problem.loss(model), model.weight
    source = Hessian(loss, [W], [problem.data])
    local: dict[bytes, Any] = {}

    def put(w: Any) -> None:
        W.data.copy_(torch.from_numpy(w).view_as(W))

    def value_and_gradient(w: Any) -> tuple[float, Any]:
        put(w)
        value = loss(problem.data)
        (g,) = torch.autograd.grad(value, [W])
        record.points += record.n
        record(W, value.item())
        return value.item(), g.reshape(-1).numpy()

    def product(w: Any, p: Any) -> Any:
        if w.tobytes() not in local:
            put(w)
            local.clear()
            local[w.tobytes()] = source.local(problem.data)
        record.products, record.product_points = record.products + 1, record.product_points + record.n
        return local[w.tobytes()].product(torch.from_numpy(p)).numpy()

    second = {} if method == "L-BFGS-B" else {"hessp": product}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = W.detach().reshape(-1).numpy().copy()
        scipy_solver(value_and_gradient, start, jac=True, method=method, options=options, **second)


def adam_cosine(rate: float, passes: int, problem: ConvexProblem, record: Recorder) -> None:
    """Adam with a rate that falls to zero over this many passes, with batches of 256."""
    model, g = problem.model(), torch.Generator().manual_seed(record.template.seed)
    loss, (x, y) = problem.loss(model), problem.data
    steps = passes * -(-record.n // 256)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(passes):
        for i in torch.split(torch.randperm(record.n, generator=g), 256):
            optimizer.zero_grad()
            loss((x[i], y[i])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            record.points += len(i)
        record(model.weight)


def scikit_learn(solver: str, problem: ConvexProblem, record: Recorder) -> None:
    """Restarts with more iterations each time; an iteration counts as a pass, a line search within it does not."""
    x, y = (t.numpy() for t in problem.data)
    rounds = 1
    while True:
        with warnings.catch_warnings():
            for kind in (UserWarning, RuntimeWarning):  # including those on convergence
                warnings.simplefilter("ignore", kind)
            model = scikit_model(solver, problem, rounds, tolerance=1e-14)
            record._spent, record._since = 0.0, time.process_time()
            model.fit(x, y)
        done = record.points == (spent := int(max(model.n_iter_ if model.n_iter_ is not None else [rounds])) * record.n)
        record.points = spent
        record(torch.from_numpy(model.coef_))
        if done:
            return
        rounds = max(rounds + 1, rounds * 3 // 2)


def scikit_model(solver: str, problem: ConvexProblem, rounds: int, tolerance: float) -> Any:
    """scikit-learn's model for a problem, with at most this many iterations."""
    from sklearn.linear_model import LogisticRegression, Ridge

    options = {"solver": solver, "fit_intercept": False, "max_iter": rounds, "tol": tolerance, "random_state": 0}
    if problem.loss_of is squares:
        return Ridge(alpha=1e-10, **options)
    strength = 1 / (len(problem.data[0]) * problem.l2) if problem.l2 else 1e12
    return LogisticRegression(C=strength, **options)


def applies(solver: str, problem: ConvexProblem) -> bool:
    """Whether scikit-learn has this loss with this solver."""
    if problem.loss_of is squares:
        return solver in ("saga", "sag")
    return problem.loss_of in (logistic, softmax) and not (solver == "newton-cholesky" and problem.outputs > 10)


GENERAL: dict[str, Solver] = {
    "torch L-BFGS": torch_lbfgs,
    "SciPy L-BFGS-B": partial(scipy_minimize, "L-BFGS-B", maxcor=20, maxiter=10**5, maxfun=10**6, ftol=0.0, gtol=0.0),
    "SciPy Newton-CG, infhess products": partial(scipy_minimize, "Newton-CG", maxiter=10**4, xtol=0.0),
    "SciPy trust-ncg, infhess products": partial(scipy_minimize, "trust-ncg", maxiter=10**4, gtol=0.0),
    **SKETCHY,
    "Adam, cosine, 1e-2": partial(adam_cosine, 1e-2, 30),
}
SCIKIT = {f"scikit-learn {s}": s for s in ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga")}
# Neither second-order methods nor methods that use our products: the baselines of the target in passes.
FIRST_ORDER = ("torch L-BFGS", "SciPy L-BFGS-B", *SKETCHY, "Adam, cosine, 1e-2",
               "scikit-learn lbfgs", "scikit-learn sag", "scikit-learn saga")  # fmt: skip
DENSE_NEWTON = ("scikit-learn newton-cholesky",)


def solvers(problem: ConvexProblem) -> dict[str, Solver]:
    """All solvers that apply to a problem, except `minimize`."""
    return GENERAL | {name: partial(scikit_learn, s) for name, s in SCIKIT.items() if applies(s, problem)}
