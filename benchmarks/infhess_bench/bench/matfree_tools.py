"""The same measurements with matfree: the net is written in JAX, and everything around a product is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

from infhess_bench.bench.timed_nets import TOP, Timed
from infhess_bench.bench.timed_tools import Found, seed_of, steps


def weights_of(net: Timed) -> tuple[Any, Callable[[Any], Any]]:
    """The weights as a flat JAX vector, and the function that restores matrices and biases."""
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    layers = [m for m in net.model if isinstance(m, nn.Linear)]
    held = [(jnp.asarray(m.weight.detach().numpy()), jnp.asarray(m.bias.detach().numpy())) for m in layers]
    return ravel_pytree(held)


def product_of(net: Timed) -> Callable[..., Any]:
    """(v, w, x, y) ↦ H v of the mean cross-entropy, forward over reverse."""
    import jax
    import jax.numpy as jnp

    unravel = weights_of(net)[1]

    def loss(w: Any, x: Any, y: Any) -> Any:
        *hidden, (A, b) = unravel(w)
        for B, c in hidden:
            x = jax.nn.relu(x @ B.T + c)
        logits = x @ A.T + b
        return jnp.mean(jax.nn.logsumexp(logits, 1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0])

    def product(v: Any, w: Any, x: Any, y: Any) -> Any:
        return jax.jvp(lambda at: jax.grad(loss)(at, x, y), (w,), (v,))[1]

    return product


@lru_cache(maxsize=8)
def compiled(net: Timed, kind: str, number: int) -> Callable[..., Any]:
    """(key, w, x, y) ↦ Lanczos eigenvalues and the first components of their vectors; or a trace by XTrace."""
    import jax
    from matfree import decomp, stochtrace

    product, like = product_of(net), weights_of(net)[0]
    if kind == "trace":
        sampler = stochtrace.sampler_signs(like, num=number)
        estimate = stochtrace.estimator_leave_one_out(stochtrace.leave_one_out_xtrace(), sampler)
        return jax.jit(partial(estimate, product))
    tridiagonal = decomp.tridiag_sym(number)

    def eigenpairs(key: Any, w: Any, x: Any, y: Any) -> Any:
        T = tridiagonal(product, jax.random.normal(key, like.shape), w, x, y)[1]
        values, S = jax.numpy.linalg.eigh(T)
        return values, S[0] ** 2

    return jax.jit(eigenpairs)


def _data(net: Timed, points: int, g: torch.Generator) -> tuple[Any, Any]:
    import jax.numpy as jnp

    x, y = net.subset(points, g)
    return jnp.asarray(x.flatten(1).numpy()), jnp.asarray(y.int().numpy())


def _call(net: Timed, kind: str, number: int, data: tuple[Any, Any], g: torch.Generator) -> Any:
    import jax

    found = compiled(net, kind, number)(jax.random.PRNGKey(seed_of(g)), weights_of(net)[0], *data)
    return jax.block_until_ready(found)  # type: ignore[no-untyped-call]


def top(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """Lanczos with full orthogonalisation."""
    values, _ = _call(net, "lanczos", products, _data(net, points, g), g)
    return Found(torch.tensor(values.tolist()).flip(0)[:TOP], products, points)


def trace(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """XTrace, with half of the products for its sketch."""
    return Found(float(_call(net, "trace", products // 2, _data(net, points, g), g)), products, points)


def density(net: Timed, points: int, starts: int, m: int, g: torch.Generator) -> Found:
    """Lanczos nodes and weights, one start after the other."""
    data = _data(net, points, g)
    pairs = [_call(net, "lanczos", m, data, g) for _ in range(starts)]
    values, weights = (torch.tensor([part.tolist() for part in side]).double() for side in zip(*pairs))
    return Found(steps(values.flatten(), weights.flatten()), starts * m, points)
