"""Golden runs of what returns a result: `minimize`, curvature with error bars, posteriors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from golden_nets import Batch, batch, convolutions, linear, loss_of, mlp
from golden_training import Shown
from torch import Tensor, nn
from torch.nn import functional as F

import infhess

F32, F64 = torch.float32, torch.float64
LEVEL = 0.9


def generator(seed: int = 0) -> torch.Generator:
    """Random numbers of a run."""
    return torch.Generator().manual_seed(seed)


# ---- minimize


def points(n: int, d: int, dtype: torch.dtype, seed: int = 5) -> Tensor:
    """Features on different scales."""
    x = torch.randn(n, d, generator=generator(seed), dtype=F64) * torch.logspace(0, -1.5, d, dtype=F64)
    return x.to(dtype)


def split(x: Tensor, y: Tensor, size: int) -> list[Batch]:
    """Batches in the given order."""
    return list(zip(x.split(size), y.split(size)))


def least_squares(outputs: int = 1, d: int = 12) -> tuple[nn.Module, Callable[[Batch], Tensor], list[Batch]]:
    """Ridge regression in double precision, of one output or many."""
    x, model = points(600, d, F64), nn.Linear(d, outputs).to(F64)
    y = x @ torch.randn(d, outputs, generator=generator(6), dtype=F64) + 0.1 * points(600, outputs, F64, 7)

    def loss(data: Batch) -> Tensor:
        return (model(data[0]) - data[1]).square().mean() + 1e-3 * model.weight.square().sum()

    return model, loss, split(x, y, 64)


def logistic(
    dtype: torch.dtype = F64, n: int = 600, d: int = 12
) -> tuple[nn.Module, Callable[[Batch], Tensor], list[Batch]]:
    """Logistic regression."""
    x, model = points(n, d, dtype), nn.Linear(d, 1).to(dtype)
    y = (x.sum(1) + 0.3 * points(n, 1, dtype, 8)[:, 0] > 0).to(dtype)

    def loss(data: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(data[0])[:, 0], data[1]) + 1e-3 * model.weight.square().sum()

    return model, loss, split(x, y, 64)


def softmax() -> tuple[nn.Module, Callable[[Batch], Tensor], list[Batch]]:
    """Softmax regression in single precision."""
    model = linear()
    return model, loss_of(model, 1e-2), [batch(t, F32, 64) for t in range(10)]


def poisson() -> tuple[nn.Module, Callable[[Batch], Tensor], list[Batch]]:
    """Poisson regression with a log link."""
    x, model = points(500, 6, F64), nn.Linear(6, 1).to(F64)
    y = torch.poisson(x.sum(1).clamp(max=2).exp(), generator=generator(9))

    def loss(data: Batch) -> Tensor:
        return F.poisson_nll_loss(model(data[0])[:, 0], data[1]) + 1e-3 * model.weight.square().sum()

    return model, loss, split(x, y, 50)


def minimized(problem: Callable[[], Any], **options: Any) -> Shown:
    """The result, its bound, and the weights after each pass and at the end."""
    model, loss, batches = problem()
    passes: list[dict[str, Any]] = []
    told = partial(_pass, passes, model)
    result = infhess.minimize(loss, model.parameters(), batches, callback=told, generator=generator(), **options)
    yield from enumerate(passes, 1)
    yield "result", {"result": result, "upper": result.gap_upper(LEVEL), "weights": model.state_dict()}


def _pass(passes: list[dict[str, Any]], model: nn.Module, row: dict[str, Any]) -> None:
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    passes.append({"row": dict(row), "weights": weights})


# ---- curvature with error bars


def source(
    kind: str = "Hessian", net: Callable[[], nn.Module] = mlp, batches: int = 24, dtype: torch.dtype = F32
) -> Any:
    """A source at the start of a net's training; or a matrix, whose products are exact."""
    if kind == "matrix":
        return matrix(60, dtype)
    model, stream = net().to(dtype), [batch(t, dtype, 32) for t in range(batches)]
    if kind == "Hessian":
        return infhess.Hessian(loss_of(model), dict(model.named_parameters()), stream)
    if kind == "GaussNewton":
        return infhess.GaussNewton(model, F.cross_entropy, model.named_parameters(), stream)
    options = {"generator": generator(3)} if kind == "mc" else {}
    return infhess.Fisher(model, F.cross_entropy, model.named_parameters(), stream, kind=kind, **options)


def with_bounds(found: Any, **more: Any) -> dict[str, Any]:
    """A result and its intervals; those of each layer."""
    if isinstance(found, dict):
        return {name: with_bounds(part) for name, part in found.items()}
    bounds = {"interval": found.interval(LEVEL)} | ({"upper": found.upper(LEVEL)} if hasattr(found, "upper") else {})
    return {"found": found, **bounds, **more}


def spectrum(
    kind: str = "Hessian", net: Callable[[], nn.Module] = mlp, dtype: torch.dtype = F32, **options: Any
) -> Shown:
    """The top of a spectrum; for the whole matrix also along its vectors on fresh data."""
    found = infhess.spectrum(source(kind, net, dtype=dtype), 3, generator=generator(), **options)
    yield "result", {"spectrum": with_bounds(found)}
    if not isinstance(found, dict) and kind != "matrix":
        yield "along", {"along": with_bounds(found.along([batch(500 + t, dtype, 32) for t in range(16)], points=256))}


def rounds() -> Shown:
    """The estimate after each round."""
    for i, found in enumerate(infhess.spectrum_rounds(source(batches=96), 2, 0.05, generator=generator()), 1):
        yield i, {"spectrum": with_bounds(found)}


def estimated(function: Callable[..., Any], kind: str = "Hessian", batches: int = 48, **options: Any) -> Shown:
    """`trace`, `largest` or `diagonal`."""
    yield "result", {"estimate": with_bounds(function(source(kind, batches=batches), generator=generator(), **options))}


def density(kind: str = "Hessian", **options: Any) -> Shown:
    """A density and its bounds."""
    found = infhess.density(source(kind), generator=generator(), **options)
    x = torch.linspace(-1, 3, 41, dtype=F64)
    bounds = {"cdf": found.cdf(x), "interval": found.interval(x, LEVEL), "joint": found.interval(x, LEVEL, joint=True)}
    shares = {name: getattr(found, name).interval(LEVEL) for name in ("negative", "near_zero")}
    yield "result", {"density": found, **bounds, **shares}


def tracked() -> Shown:
    """A tracker while the net trains by SGD."""
    model, stream = mlp(), [batch(t, F32, 32) for t in range(24)]
    loss = loss_of(model)
    tracker = infhess.Tracker(infhess.Hessian(loss, model.parameters(), stream), 2, generator=generator())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for t in range(8):
        yield t, {"spectrum": with_bounds(tracker.update(rate=0.05)), "moment": tracker.history[-1]}
        for i in range(4):
            opt.zero_grad()
            loss(stream[4 * (t % 6) + i]).backward()
            opt.step()


# ---- posteriors

PRIORS: dict[str, Callable[[int], Any]] = {
    "Isotropic": lambda n: infhess.Isotropic(mean=0.5, scale=2.0, noise=0.1),
    "Symmetric": lambda n: infhess.Symmetric(mean=0.5, scale=2.0, noise=0.1),
    "CurvatureShaped": lambda n: infhess.CurvatureShaped(),
    "Kronecker": lambda n: infhess.Kronecker(
        mean=0.5, left=torch.linspace(1, 2, n), noise_left=0.1 * torch.linspace(1, 3, n), noise_right=1.0
    ),
}


def posterior_of(found: Any, size: int) -> dict[str, Any]:
    """All that a posterior over a symmetric matrix shows."""
    v = torch.linspace(-1, 1, size, dtype=found.S.dtype)
    V, pairs = torch.stack([v, v.square()], 1), found.eigh(3)
    shown = {
        "S": found.S,
        "Y": found.Y,
        "mean": found.mean.dense(),
        "applied": found.mean @ v,
        "transposed": found.mean.T @ v,
    }
    more = {
        "solved": found.mean.solve(v, damping=0.5),
        "variance": found.variance(V, V),
        "sample": found.sample(V, generator()),
    }
    reduced = found.svd(2)
    return shown | more | {"eigh": pairs, "svd": reduced}


def matrix(size: int, dtype: torch.dtype = F32) -> Tensor:
    """A symmetric matrix with eigenvalues from 4 down to 0.04."""
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator(11), dtype=F64)).Q
    return (Q * torch.logspace(0.6, -1.4, size, dtype=F64) @ Q.mT).to(dtype)


def conditioned(prior: str, size: int = 12) -> Shown:
    """A posterior from seven noisy products, and one more."""
    B, g = matrix(size), generator(12)
    S = torch.randn(size, 8, generator=g)
    Y = B @ S + 0.05 * torch.randn(size, 8, generator=g)
    found = infhess.condition(PRIORS[prior](size), S[:, :7], Y[:, :7])
    yield 7, posterior_of(found, size) | _evidence(prior, found)
    found = found.extend(S[:, 7], Y[:, 7])
    yield 8, posterior_of(found, size) | _evidence(prior, found)


def _evidence(prior: str, found: Any) -> dict[str, Any]:
    return {} if prior == "CurvatureShaped" else {"evidence": found.log_evidence()}


def inferred(method: str = "curvature", prior: str | None = None) -> Shown:
    """Algorithm 1 on the curvature of a net, step by step, and the posterior that it ends with."""
    made, size = source(batches=60), 83
    options = {} if prior is None else {"prior": PRIORS[prior](size)}
    for state in infhess.infer_steps(made, 8, method=method, generator=generator(), **options):
        yield state.step, {"direction": state.direction, "product": state.product, "products": state.products}
    yield "result", posterior_of(state.posterior, size)


def preconditioners() -> Shown:
    """P² of a posterior, by the library's rule and the paper's."""
    found = infhess.infer(source(batches=60), steps=8, generator=generator())
    v = torch.linspace(-1, 1, 83)
    yield "curvature", {"applied": infhess.preconditioner(found, rank=4) @ v}
    found = infhess.infer(source(batches=60), steps=8, method="paper", generator=generator())
    yield "paper", {"applied": infhess.paper_preconditioner(found, rank=4) @ v}


def _cases() -> Iterator[tuple[str, str, Callable[[], Shown]]]:
    problems: dict[str, Callable[[], Shown]] = {
        "logistic": partial(minimized, logistic),
        "logistic-single-precision": partial(minimized, partial(logistic, F32), gap=1e-4),
        "least-squares": partial(minimized, least_squares),
        "softmax": partial(minimized, softmax),
        "poisson": partial(minimized, poisson),
        "pool": partial(minimized, partial(logistic, n=2000, d=300)),
        "sample-kept": partial(minimized, partial(logistic, n=1500, d=100), memory=600e3, passes=12),
        "little-memory": partial(minimized, partial(logistic, n=400, d=100), memory=150e3, passes=20),
        "many-outputs": partial(minimized, partial(least_squares, 20)),
        "many-outputs-little-memory": partial(minimized, partial(least_squares, 40, 40), memory=300e3, passes=20),
        "one-pass": partial(minimized, logistic, passes=1),
    }
    spectra: dict[str, Callable[[], Shown]] = {
        "whole": spectrum,
        "double": partial(spectrum, dtype=F64),
        "layers": partial(spectrum, by="layer"),
        "memory": partial(spectrum, memory=4000),
        "convolutions": partial(spectrum, net=convolutions),
        "rounds": rounds,
        "largest": partial(estimated, infhess.largest),
        **{kind: partial(spectrum, kind) for kind in ("GaussNewton", "empirical", "mc", "matrix")},
    }
    traces: dict[str, Callable[[], Shown]] = {
        "whole": partial(estimated, infhess.trace),
        "layers": partial(estimated, infhess.trace, by="layer"),
        "signs": partial(estimated, infhess.trace, sketch=0),
        "GaussNewton": partial(estimated, infhess.trace, "GaussNewton"),
        "diagonal": partial(estimated, infhess.diagonal),
    }
    yield from (("minimize", f"minimize-{name}", run) for name, run in problems.items())
    yield from (("spectrum", f"spectrum-{name}", run) for name, run in spectra.items())
    yield from (("trace", f"trace-{name}", run) for name, run in traces.items())
    yield "density", "density-all-eigenvalues", density
    yield "density", "density-part-of-the-data", partial(density, points=128, starts=4, directions=16)
    yield "density", "density-matrix", partial(density, "matrix")
    yield "tracker", "tracker", tracked
    yield from (("inference", f"condition-{prior}", partial(conditioned, prior)) for prior in PRIORS)
    yield "inference", "infer-default", inferred
    yield from (("inference", f"infer-{prior}", partial(inferred, prior=prior)) for prior in PRIORS)
    yield "inference", "infer-paper", partial(inferred, "paper")
    yield "inference", "infer-paper-Isotropic", partial(inferred, "paper", "Isotropic")
    yield "inference", "preconditioners", preconditioners


# name: (rule, run)
RESULTS: dict[str, tuple[str, Callable[[], Shown]]] = {name: (rule, run) for rule, name, run in _cases()}
