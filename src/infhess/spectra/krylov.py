"""A Krylov space: few directions, each product averaged over fresh data, with its spread over that data."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess._checks import column_norms, finite
from infhess.curvature import Source
from infhess.curvature.chunked_products import ChunkedProducts
from infhess.curvature.frozen import Whole
from infhess.spectra.held import CHUNKS, Deviations, room_for


class Krylov:
    """q₁ is given; q_{j+1} is the mean product of q_j over C chunks of fresh data, orthogonalised against earlier directions.

    T^c_ij = q_iᵀ y_j^c in double precision. Entries with i > j are computed later, from the deviations y_j^c − ȳ_j, which are
    kept. weights[j] is the share of each chunk in the points of direction j, population_factor[j] its factor 1 − M/n.
    """

    def __init__(
        self, start: Tensor, most: int, least: int = 1, memory: int | None = None, *, exact: bool = False
    ) -> None:
        room = room_for(start, min(least, most), most, memory, exact)
        most = room.most
        self.Q = start.new_zeros(most + 1, len(start))
        self.Q[0] = start / torch.linalg.vector_norm(start)
        self._deviations, self._exact = Deviations(room), exact
        self._T = torch.zeros(CHUNKS, most, most, dtype=torch.float64, device=start.device)
        self._below = 0  # rows of T whose entries below the diagonal are known
        self.weights = torch.zeros(most, CHUNKS, dtype=torch.float64, device=start.device)
        self.population_factor = torch.ones(most, dtype=torch.float64, device=start.device)
        self.beta = 0.0  # |ȳ_p − QQᵀȳ_p| of the newest direction
        self.residual = 0.0  # its square without the noise
        self.points: list[int] = []
        self.noise_is_known = True

    def __len__(self) -> int:
        return len(self._deviations)

    @property
    def eps(self) -> float:
        """The rounding error of the directions."""
        return torch.finfo(self.Q.dtype).eps

    @property
    def bytes(self) -> int:
        """Bytes of directions and deviations."""
        return (len(self) + 1) * self.Q[0].numel() * self.Q.element_size() + self._deviations.bytes

    def close(self) -> None:
        """Delete files on disk; T, weights and Q remain."""
        self._deviations.close()

    @property
    def T(self) -> Tensor:
        """T^c (C, most, most), zero beyond the directions so far."""
        self.fill()
        return self._T

    def fill(self) -> None:
        """Compute T below the diagonal on demand: each deviation is read once for all directions since."""
        p, done = len(self), self._below
        for i in range(p - 1) if done < p and not self._exact else ():
            first = max(i + 1, done)
            found = self._deviations.along(i, self.Q[first:p])  # C chunks, or fewer
            self._T[: len(found), first:p, i] += found.to(self._T)
        self._below = p

    @property
    def most(self) -> int:
        """Number of directions that fit."""
        return len(self.Q) - 1

    @property
    def direction(self) -> Tensor:
        """The newest direction."""
        return self.Q[len(self)]

    def multiply(self, source: Source, points: int, batches: int, held: Whole | None = None) -> bool:
        """Multiply the newest direction with fresh data, or with all of the data; False if there is no further direction."""
        if held is not None:
            exact = ChunkedProducts(held.product(self.direction)[None, None], torch.ones(1, dtype=torch.float64), 0.0)
            return self.take(exact, held.points)
        before = source.data_points
        draw = source.fresh_products([self.direction], points, CHUNKS, batches)
        return self.take(draw, source.data_points - before)

    def take(self, draw: ChunkedProducts, points: int) -> bool:
        """Record the products of the newest direction with fresh data of this many points; False if no further one fits."""
        j = len(self)
        Y, w = draw.products[:, 0], draw.weights.to(self.weights)
        if not bool(finite(Y.mT).all()):
            raise ValueError(f"product {j} holds NaN or infinity; is the loss finite at these parameters?")
        C = len(w)  # fewer than CHUNKS if the data has fewer points
        self.weights[j, :C], self.population_factor[j] = w, draw.population_factor
        self.noise_is_known &= draw.noise_is_known
        self.points.append(points)
        mean = w.to(Y) @ Y if C > 1 else Y[0].clone()
        deviation = Y.sub_(mean) if C > 1 else Y[:0]  # in place: C copies of the parameters are large
        along, inside = self.Q[: j + 1] @ mean, deviation @ self.Q[: j + 1].mT
        self._T[:, : j + 1, j] = along.to(self._T)
        self._T[: len(inside), : j + 1, j] += inside.to(self._T)
        self._deviations.append(deviation)
        squares = column_norms(deviation.mT).to(w).square() - inside.to(w).square().sum(1)
        return self._next(j, mean, along, float(mean_variance(squares, w)) if C > 1 else 0.0)

    def _next(self, j: int, mean: Tensor, along: Tensor, noise: float) -> bool:
        """β and the next direction, from a mean product and its coefficients along the directions so far."""
        Q, eps = self.Q[: j + 1], torch.finfo(mean.dtype).eps
        size = float(column_norms(mean))
        rest = _off(torch.addmv(mean, Q.mT, along, alpha=-1), Q)  # twice is enough
        self.beta = float(column_norms(rest))
        self.residual = self.beta**2 - noise
        if j + 1 >= min(self.most, len(mean)):
            return False
        if self.beta <= 1e2 * eps * size:
            # The space is invariant: continue from a random direction outside, or eigenvalues would be missed.
            self.beta = self.residual = 0.0
            fresh = torch.randn(len(mean), generator=torch.Generator().manual_seed(7919 * (j + 1)), dtype=torch.float64)
            rest = _off(_off(fresh.to(mean), Q), Q)
        torch.div(rest, column_norms(rest), out=self.Q[j + 1])
        self._T[:, j + 1, j] = self.beta  # ȳ_j lies in the span up to q_{j+1}, with coefficient β along it
        return True


def _off(v: Tensor, Q: Tensor) -> Tensor:
    """v orthogonalised against the rows of Q."""
    return torch.addmv(v, Q.mT, Q @ v, alpha=-1)


def mean_variance(squares: Tensor, w: Tensor) -> Tensor:
    """The variance of a weighted mean, from squared deviations: Σ w_c² d_c² / (1 − Σ w_c²); one chunk alone shows none."""
    free = (1 - w.square().sum()).clamp(min=torch.finfo(w.dtype).tiny)
    return (squares * w.square()).sum(-1) / free
