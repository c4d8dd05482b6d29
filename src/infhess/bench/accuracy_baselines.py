"""What users would pick instead of `minimize`, each to its own end: gradients, products and seconds are noted on the way."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from infhess.bench.published import ALPHA, inverse, nystrom
from infhess.curvature import Hessian
from infhess.harness import Row
from infhess.minimizing import minimize
from infhess.problems import ConvexProblem
from infhess.problems.convex_problems import logistic, softmax, squares

MINIMIZE = "infhess.minimize"
# A run ends at this gap, after so many passes of gradients, or so many seconds and one more for each NUMBERS in the data.
ENOUGH, PASSES, SECONDS, NUMBERS = 3e-9, 500, 3.0, 2e7
Iterate = Tensor | nn.Module


class EnoughError(Exception):
    """A run has come to its end."""


class Recorder:
    """The loss over all the data, against what was spent; its own time does not count.

    Seconds are of the processor, of one thread: other work on the machine does not count either.
    """

    def __init__(self, problem: ConvexProblem, template: Row, best: float, start: float) -> None:
        self.problem, self.template, self.n = problem, template, len(problem.data[0])
        self.best, self.start, self._model = best, start, problem.model()
        self.rows: list[Row] = []
        # minimize ends by its own rule; what it took is in the rows.
        self.limit = math.inf if template.method == MINIMIZE else SECONDS + problem.data[0].numel() / NUMBERS
        self.points, self.product_points, self.products = 0, 0, 0
        self._spent, self._since = 0.0, time.process_time()

    def __call__(self, W: Tensor, loss: float | None = None) -> None:
        """A row at these weights, where the loss over all the data may be known already."""
        self._spent += time.process_time() - self._since
        if loss is None:
            self._model.weight.data.copy_(W.detach().reshape(self._model.weight.shape))
            loss = self.problem.value(self._model)
        self.write(loss, self._spent)
        gap = (self.rows[-1].loss - self.best) / (self.start - self.best)
        if gap <= ENOUGH or self.points > PASSES * self.n or self._spent > self.limit:
            raise EnoughError
        self._since = time.process_time()

    def write(self, loss: float, seconds: float) -> None:
        """A row; the metric is work in passes: points of gradients and of products."""
        t, work = self.template, (self.points + self.product_points) / self.n
        row = Row(t.experiment, t.problem, t.method, t.seed, t.batch_size, self.points, self.products,
                  float(f"{seconds:.4g}"), loss, work)  # fmt: skip
        self.rows.append(row)


Solver = Callable[[ConvexProblem, Recorder], None]


def infhess(problem: ConvexProblem, record: Recorder) -> None:
    """`minimize` to 1e-9, on batches in an order of the seed's own."""
    x, y = problem.data
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(record.template.seed))
    batches = [(x[i], y[i]) for i in torch.split(order, record.template.batch_size)]
    model = problem.model()

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
    """scipy.optimize.minimize; where it wants products, with those of `infhess.Hessian`."""
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
        scipy_solver(
            value_and_gradient,
            W.detach().reshape(-1).numpy().copy(),
            jac=True,
            method=method,
            options=options,
            **second,
        )


def adam_cosine(rate: float, passes: int, problem: ConvexProblem, record: Recorder) -> None:
    """Adam with a rate that falls to zero over so many passes, batches of 256."""
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


def sketchy_svrg(rho: float, problem: ConvexProblem, record: Recorder) -> None:
    """SketchySVRG (PROMISE, Frangella et al. 2024): SVRG with a Nyström preconditioner of rank 10 and ρ relative to λ₁.

    Batches of 256, a snapshot each pass, the preconditioner from √n points anew each pass unless the loss is quadratic, and
    the step ½ / λmax of the preconditioned Hessian of as many fresh points.
    """
    model, g = problem.model(), torch.Generator().manual_seed(record.template.seed)
    loss, W, (x, y), n = problem.loss(model), model.weight, problem.data, record.n
    source = Hessian(loss, [W], [problem.data])

    def some(k: int) -> Any:
        i = torch.randperm(n, generator=g)[:k]
        return x[i], y[i]

    def gradient(batch: Any) -> Tensor:
        return torch.autograd.grad(loss(batch), [W])[0].reshape(-1)

    def sketch() -> tuple[Tensor, Tensor, float, float]:
        k = max(int(n**0.5), 64)
        rank = min(10, W.numel())
        Omega = torch.linalg.qr(torch.randn(W.numel(), rank, dtype=W.dtype, generator=g)).Q
        values, U = nystrom(source.local(some(k)).block(Omega), Omega)
        shift, v = rho * float(values.max()), torch.randn(W.numel(), dtype=W.dtype, generator=g)
        other = source.local(some(k))
        for _ in range(10):
            v = inverse(values, U, shift, v / v.norm(), -0.5)
            v = inverse(values, U, shift, other.product(v), -0.5)
        record.products, record.product_points = record.products + rank + 10, record.product_points + k * (rank + 10)
        return values, U, shift, ALPHA / float(v.norm())

    found = sketch()
    while True:
        if problem.loss_of is not squares:
            found = sketch()
        values, U, shift, rate = found
        anchor, mean = W.detach().clone(), gradient(problem.data)
        record.points += n
        for i in torch.split(torch.randperm(n, generator=g), 256):
            now, batch = W.detach().clone(), (x[i], y[i])
            there = gradient(batch)
            W.data.copy_(anchor)
            there = there - gradient(batch) + mean
            W.data.copy_(now - rate * inverse(values, U, shift, there).view_as(W))
            record.points += 2 * len(i)
        record(W)
        if not bool(torch.isfinite(W).all()):
            raise EnoughError


def scikit_learn(solver: str, problem: ConvexProblem, record: Recorder) -> None:
    """From the start with more iterations each time; an iteration counts as a pass, a line search within it does not."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    options = {"solver": solver, "fit_intercept": False, "tol": 1e-14, "random_state": 0}
    x, y = (t.numpy() for t in problem.data)
    rounds = 1
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            if problem.loss_of is squares:
                model = Ridge(alpha=1e-10, max_iter=rounds, **options)
            else:
                strength = 1 / (record.n * problem.l2) if problem.l2 else 1e12
                model = LogisticRegression(C=strength, max_iter=rounds, **options)
            record._spent, record._since = 0.0, time.process_time()
            model.fit(x, y)
        done = record.points == (spent := int(max(model.n_iter_ if model.n_iter_ is not None else [rounds])) * record.n)
        record.points = spent
        record(torch.from_numpy(model.coef_))
        if done:
            return
        rounds = max(rounds + 1, rounds * 3 // 2)


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
    "SketchySVRG, ρ 1e-3": partial(sketchy_svrg, 1e-3),
    "Adam, cosine, 1e-2": partial(adam_cosine, 1e-2, 30),
}
SCIKIT = {f"scikit-learn {s}": s for s in ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga")}
# Those that are neither of second order nor fed with our products: the peers of the target in passes.
FIRST_ORDER = ("torch L-BFGS", "SciPy L-BFGS-B", "SketchySVRG, ρ 1e-3", "Adam, cosine, 1e-2",
               "scikit-learn lbfgs", "scikit-learn sag", "scikit-learn saga")  # fmt: skip
DENSE_NEWTON = ("scikit-learn newton-cholesky",)


def solvers(problem: ConvexProblem) -> dict[str, Solver]:
    """Everything that applies to a problem, but `minimize`."""
    return GENERAL | {name: partial(scikit_learn, s) for name, s in SCIKIT.items() if applies(s, problem)}
