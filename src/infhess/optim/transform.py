"""P² on the gradients of a step, parameter by parameter: passes over memory, and no number leaves the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infhess.curvature.flat import real

Own = dict[str, Tensor]


def preconditioned(
    grads: Sequence[Tensor | None], own: Sequence[Own], blocks: Sequence[Sequence[int]]
) -> tuple[list[Tensor | None], list[Tensor]]:
    """R⁻¹ (I − U diag(gain) Uᵀ) R g for each block, new tensors; and UᵀRg of each block.

    A parameter without a gradient is left out, and one whose shape has changed keeps its gradient as it is.
    """
    out, seen = list(grads), []
    for block in blocks:
        live = {i: _rows(grads[i], own[i]) for i in block if fits(grads[i], own[i])}  # type: ignore[arg-type]
        first = own[block[0]]
        c = first["gain"].new_zeros(first["gain"].shape)
        for i, g in live.items():
            c = c + (_matrix(own[i]) @ _times_root(g, own[i])).to(c)
        for i, g in live.items():
            out[i] = _like(_less(g, own[i], (own[i]["gain"].to(c.device) * c).to(g)), grads[i])  # type: ignore[arg-type]
        seen.append(c)
    return out, seen


def fits(grad: Tensor | None, own: Own) -> bool:
    """Whether there is a gradient of the shape that the directions were made for."""
    return grad is not None and real(grad).shape == own["basis"].shape[1:]


def _rows(grad: Tensor, own: Own) -> Tensor:
    return real(grad).reshape(-1).to(own["basis"].dtype)


def _matrix(own: Own) -> Tensor:
    """Uᵀ of this parameter, (k, n)."""
    return own["basis"].reshape(len(own["basis"]), -1)


def _times_root(g: Tensor, own: Own) -> Tensor:
    return g * own["root"].reshape(-1) if "root" in own else g


def _less(g: Tensor, own: Own, coefficients: Tensor) -> Tensor:
    if "root" in own:
        return g - (_matrix(own).mT @ coefficients) / own["root"].reshape(-1)
    return torch.addmv(g, _matrix(own).mT, coefficients, alpha=-1.0)


def _like(flat: Tensor, grad: Tensor) -> Tensor:
    if grad.is_complex():
        return torch.view_as_complex(flat.view(*grad.shape, 2).to(grad.real.dtype))
    shaped = flat.view(grad.shape)
    # Fused kernels walk through memory: the strides are to be those of the gradient.
    return shaped.to(grad.dtype) if grad.is_contiguous() else torch.empty_like(grad).copy_(shaped)


def shortened(grads: Sequence[Tensor | None], rates: Sequence[float | Tensor], limit: float) -> list[Tensor | None]:
    """The gradients, all divided by one number where the step Σ (rate·|g|)² would be longer than the limit."""
    live = [i for i, g in enumerate(grads) if g is not None]
    if not live:
        return list(grads)
    widest = torch.promote_types(real(grads[live[0]]).dtype, torch.float32)  # type: ignore[arg-type]
    norms = torch._foreach_norm([real(grads[i]) for i in live], 2, widest)  # type: ignore[arg-type]
    device = norms[0].device
    lengths = torch.stack([norm.to(device) * rates[i] for norm, i in zip(norms, live)])
    shrink = (limit / torch.linalg.vector_norm(lengths)).clamp(max=1.0)
    out = list(grads)
    for i in live:
        g = grads[i]
        out[i] = None if g is None else g * shrink.to(g.device, real(g).dtype)
    return out
