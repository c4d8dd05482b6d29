"""The top of a spectrum with other tools: all from one mini-batch, or from a pooled one."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from infhess.posterior import CurvatureShaped, condition
from infhess.spectra import spectrum
from infhess_bench.problems import CurvatureProblem, Shuffled, seeded

TOP, INFHESS = 5, "infhess"
DIRECTIONS = 16  # 2 · TOP + 6: those of infhess, and of a pooled Lanczos run at equal work


class Found(NamedTuple):
    """Top eigenvalues (descending), their vectors (N, ≤ TOP), products × points and distinct points read."""

    values: Tensor
    vectors: Tensor
    work: int
    points: int


class AsModule(nn.Module):
    """A problem as an nn.Module, for other tools."""

    def __init__(self, problem: CurvatureProblem) -> None:
        super().__init__()
        self.w, self.model = nn.Parameter(problem.w.clone()), problem.model

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for a batch of inputs."""
        return self.model(self.w, x)


def one_batch(problem: CurvatureProblem, size: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A mini-batch, as from a loader; all of the data if that is less."""
    return next(iter(Shuffled((problem.x, problem.y), min(size, len(problem.x)), g)))


def infhess(problem: CurvatureProblem, batch: int, products: int, g: torch.Generator) -> Found:
    """16 directions, each averaged over `products`/16 fresh batches."""
    source = problem.source(batch, g)
    found = spectrum(source, TOP, points=batch * products // DIRECTIONS, directions=DIRECTIONS, generator=g)
    return Found(found.values, found.vectors, found.data_points, found.data_points)


def eigsh_on(problem: CurvatureProblem, size: int, steps: int, g: torch.Generator) -> Found:
    """SciPy's eigsh on a curvlinops operator of one batch, stopped after `steps` products."""
    from curvlinops import GGNLinearOperator, HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    data, net = one_batch(problem, size, g), AsModule(problem)
    kind = GGNLinearOperator if problem.matrix == "gauss-newton" else HessianLinearOperator
    operator = kind(net, problem.loss, [net.w], [data], check_deterministic=False).to_scipy()
    taken = 0

    def product(v: Any) -> Any:
        nonlocal taken
        taken += 1
        return operator @ v

    counted = LinearOperator(operator.shape, matvec=product, dtype=operator.dtype)
    start = torch.randn(len(problem.w), generator=g, dtype=torch.float64).numpy()
    # One Arnoldi factorisation of `steps` − 1 vectors without restart: the state after that many products.
    values, vectors = eigsh(counted, k=TOP, which="LA", v0=start, ncv=steps - 1, maxiter=1, tol=10.0)
    return _found(torch.from_numpy(values), torch.from_numpy(vectors), taken * len(data[0]), len(data[0]))


def nystrom_one_batch(problem: CurvatureProblem, batch: int, products: int, g: torch.Generator) -> Found:
    """Random directions, all products on one batch."""
    data = one_batch(problem, batch, g)
    local = problem.source(batch, g).at(data, 0)
    S = torch.randn(len(problem.w), products, generator=g, dtype=torch.float64)
    posterior = condition(CurvatureShaped(0.0), S, torch.stack([local.product(s) for s in S.mT], 1))
    pairs = posterior.mean.eigh(TOP)
    return Found(pairs.values, pairs.vectors, products * len(data[0]), len(data[0]))


def hessian_eigenthings(problem: CurvatureProblem, batch: int, products: int, g: torch.Generator) -> Found:
    """Lanczos of hessian-eigenthings on one batch."""
    from hessian_eigenthings import HessianOperator, lanczos

    data = one_batch(problem, batch, g)
    operator = HessianOperator(AsModule(problem), [data], lambda net, b: problem.loss(net(b[0]), b[1]))
    result = lanczos(operator, k=TOP, max_iter=products, which="LA", seed=int(torch.randint(2**31, (), generator=g)))
    vectors = torch.as_tensor(result.eigenvectors)
    vectors = vectors.mT if vectors.shape[0] == len(result.eigenvalues) else vectors
    return _found(torch.as_tensor(result.eigenvalues), vectors, products * len(data[0]), len(data[0]))


def pyhessian(problem: CurvatureProblem, batch: int, products: int, g: torch.Generator) -> Found:
    """PyHessian's power iterations with deflation on one batch, a fifth of the products for each eigenvalue."""
    from pyhessian import hessian

    data = one_batch(problem, batch, g)
    with seeded(int(torch.randint(2**31, (), generator=g))), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls backward(create_graph=True), at which torch warns each time
        tool = hessian(AsModule(problem), problem.loss, data=data, cuda=False)
        values, vectors = tool.eigenvalues(maxIter=max(1, products // TOP), tol=0.0, top_n=TOP)
    columns = torch.stack([torch.cat([p.reshape(-1) for p in v]).detach() for v in vectors], 1)
    return _found(torch.tensor(values, dtype=torch.float64), columns, products * len(data[0]), len(data[0]))


def _found(values: Tensor, vectors: Tensor, work: int, points: int) -> Found:
    order = torch.argsort(values.real.double(), descending=True)[:TOP]
    return Found(values.real.double()[order], vectors.real.double()[:, order], work, points)


Eigensolver = Callable[[CurvatureProblem, int, int, torch.Generator], Found]
EIGENSOLVERS: dict[str, tuple[Eigensolver, str | None]] = {
    INFHESS: (infhess, None),
    "Lanczos, one batch": (eigsh_on, "curvlinops"),
    # 16 products on a batch that is `products`/16 times as large: equal work.
    "Lanczos, pooled batch": (lambda p, n, m, g: eigsh_on(p, n * m // DIRECTIONS, DIRECTIONS, g), "curvlinops"),
    # 16 products on all the data that infhess reads.
    "Lanczos, same data (16 × the work)": (lambda p, n, m, g: eigsh_on(p, n * m, DIRECTIONS, g), "curvlinops"),
    "Nyström, one batch": (nystrom_one_batch, None),
    "hessian-eigenthings": (hessian_eigenthings, "hessian_eigenthings"),
    "PyHessian": (pyhessian, "pyhessian"),
}


def missing() -> dict[str, str]:
    """Methods whose package is not installed, with the package's name."""
    needed = {name: package for name, (_, package) in EIGENSOLVERS.items() if package}
    return {name: package for name, package in needed.items() if not importlib.util.find_spec(package)}
