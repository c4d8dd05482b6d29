"""Autocast around a call changes nothing: our own algebra is in full precision, and autocast inside a loss is the loss's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess import Hessian, Products, condition, infer, infer_steps, spectrum, spectrum_rounds
from util import orthogonal, randn

SINGLE = torch.float32


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def on():
    return torch.is_autocast_enabled("cpu")


def same(a, b):
    assert a.dtype == b.dtype
    assert torch.equal(a, b), float((a - b).abs().max())


def test_posteriors_and_operators_are_the_same_within_autocast():
    B = orthogonal(30) * torch.logspace(0, 3, 30, dtype=torch.float64) @ orthogonal(30).mT
    S = randn(30, 5, dtype=SINGLE)
    v, V = randn(30, seed=3, dtype=SINGLE), randn(30, 3, seed=4, dtype=SINGLE)
    Y, y = B.to(SINGLE) @ S, B.to(SINGLE) @ v
    priors = [
        infhess.Isotropic(1.0, 2.0, 0.1),
        infhess.Symmetric(1.0, 2.0, 0.1),
        infhess.CurvatureShaped(0.1),
        infhess.Kronecker(randn(30, 30), torch.linspace(1, 2, 30), noise_left=0.1),
    ]

    def results(prior):
        posterior = condition(prior, S, Y).extend(v, y)
        mean = posterior.mean
        yield from (posterior.variance(v, v), posterior.sample(V, torch.Generator().manual_seed(0)))
        yield from (*posterior.eigh(3), *posterior.svd(3), mean @ V, mean.solve(v, 1.0), mean.dense(), mean.T @ v)
        if not isinstance(prior, infhess.CurvatureShaped):
            yield posterior.log_evidence()

    for prior in priors:
        expected = list(results(prior))
        with autocast():
            for a, b in zip(results(prior), expected, strict=True):
                same(a, b)


def test_powers_inverses_and_preconditioners_are_the_same_within_autocast():
    U = randn(40, 3, dtype=SINGLE)
    posterior = condition(infhess.CurvatureShaped(0.1), U, U * torch.tensor([9.0, 4.0, 1.0]))
    v = randn(40, seed=1, dtype=SINGLE)

    def results():
        for d in (2.0, torch.linspace(1, 2, 40)):
            A = infhess.LowRank(d, U)
            yield from (A @ v, A.inverse() @ v, A.power(0.5) @ v, A.solve(v), A.eigh(2).values, A.svd(2).values)
        yield infhess.preconditioner(posterior).dense()
        yield infhess.paper_preconditioner(posterior, 2).dense()

    expected = list(results())
    with autocast():
        for a, b in zip(results(), expected, strict=True):
            same(a, b)


@pytest.mark.parametrize("method", ["curvature", "paper"])
def test_inference_is_the_same_within_autocast(method):
    A = (orthogonal(20) * torch.logspace(0, 3, 20, dtype=torch.float64) @ orthogonal(20).mT).to(SINGLE)

    def source():
        return Products(A, generator=torch.Generator().manual_seed(0))

    expected = infer(source(), 6, method=method).mean.dense()
    with autocast():
        same(infer(source(), 6, method=method).mean.dense(), expected)
        posteriors = [state.posterior for state in infer_steps(source(), 6, method=method) if on()]
        assert len(posteriors) == 6
        same(posteriors[-1].mean.dense(), expected)


def least_squares(condition_number, n=256, d=20):
    """loss, parameters and data of a least-squares problem in single precision whose optimum has the loss 0."""
    scale = torch.logspace(0, -0.5, d, dtype=torch.float64) ** torch.log10(torch.tensor(condition_number)).double()
    X = (randn(n, d) * scale @ orthogonal(d)).to(SINGLE)
    y = X @ randn(d, seed=1, dtype=SINGLE)
    w = nn.Parameter(torch.zeros(d))
    return (lambda b: (b[0] @ w - b[1]).square().mean()), w, (X, y)


def test_spectra_are_the_same_within_autocast():
    loss, w, data = least_squares(100.0)
    batches = list(zip(*(t.split(16) for t in data)))

    def results():
        for found in spectrum_rounds(Hessian(loss, [w], batches), 3, 0.05):
            yield from (found.values, found.std, *found.interval(), found.vectors)
        along = found.along(batches)
        yield from (along.values, *along.interval(), infhess.trace(Hessian(loss, [w], batches)).value)
        yield spectrum(Hessian(loss, [w], batches), 2).values

    expected = list(results())
    with autocast():
        for a, b in zip(results(), expected, strict=True):
            same(torch.as_tensor(a), torch.as_tensor(b))


def trained(make, inside, steps=60, update=False):
    """The loss that an optimizer ends at; `inside` is what its calls are made in."""
    loss, w, data = least_squares(2000.0)
    opt = make([w])
    if update:
        with inside():
            opt.update(loss, list(zip(*(t.split(64) for t in data))))
    for _ in range(steps):
        opt.zero_grad()
        loss(data).backward()
        with inside():
            if not update:
                opt.observe(loss, data)
            opt.step()
    return w.detach().clone(), float(loss(data).detach())


def sgd(params):
    return infhess.Preconditioned(torch.optim.SGD(params, lr=0.1))


def adam(params):
    return infhess.Preconditioned(torch.optim.Adam(params, lr=0.1))


@pytest.mark.parametrize("update", [False, True], ids=["observe", "update"])
@pytest.mark.parametrize("make", [sgd, adam])
def test_training_is_the_same_within_autocast(make, update):
    (w, _), (v, _) = (trained(make, inside, update=update) for inside in (torch.enable_grad, autocast))
    same(v, w)


def test_self_driving_sgd_converges_within_autocast():
    assert trained(sgd, autocast, 300)[1] < 1e-9


def test_rate_free_is_the_same_within_autocast():
    (w, _), (v, _) = (trained(infhess.RateFree, inside, 100) for inside in (torch.enable_grad, autocast))
    same(v, w)


# ---- what is the user's own


def test_autocast_inside_the_loss_is_kept():
    _, w, (X, y) = least_squares(10.0)
    dtypes = []

    def cast(b):
        with autocast():
            out = b[0] @ w
        dtypes.append(out.dtype)
        return (out.float() - b[1]).square().mean()

    def calls():
        Hessian(cast, [w], [(X, y)]).matvec(torch.ones(20))
        infhess.Preconditioned(torch.optim.SGD([w], lr=0.1)).update(cast, [(X, y)])

    calls()
    with autocast():
        calls()
    assert set(dtypes) == {torch.bfloat16}


@pytest.mark.parametrize("make", [sgd, infhess.RateFree])
def test_a_closure_runs_under_the_autocast_of_its_caller(make):
    loss, w, data = least_squares(10.0)
    opt, seen = make([w]), []
    loss(data).backward()
    opt.observe(loss, data)
    opt.step()  # the first gradient may be for the scaling alone
    opt.observe(loss, data)

    def closure():
        seen.append((on(), torch.get_autocast_dtype("cpu")))
        return loss(data)

    with autocast():
        opt.step(closure)
    with torch.autocast("cpu", dtype=torch.float16):
        opt.step(closure=closure)
    opt.step(closure)
    assert [s for s in seen if s[0]] == [(True, torch.bfloat16), (True, torch.float16)]
    assert len(seen) == 3


def test_the_body_of_averaged_is_the_callers():
    w = nn.Parameter(torch.zeros(2))
    opt = infhess.RateFree([w])
    with autocast(), opt.averaged():
        assert on()
