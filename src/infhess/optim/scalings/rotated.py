"""Adam's scaling in rotated coordinates: D = (Q_L ⊗ Q_R) diag(1/(√v̂ + ε)) (Q_L ⊗ Q_R)ᵀ (SOAP, Vyas et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.optim.rate.settings import KRONECKER
from infhess.optim.scalings.diagonal import directions, divided
from infhess.optim.scalings.gradient_scaling import SQUARES, Own, Scaling

# Longer sides are not rotated: the cost per step grows with their square. 512 leaves the input side of MNIST out, and loses.
CAP = 1024
# Memory of the second moments of the sides; of .99 and .95 the latter was ahead.
MEMORY = 0.95
# Steps between two refreshes of the bases, at the least and as a share of the steps made.
BETWEEN, SHARE = 10, 0.1
LEFT, RIGHT = ("left", "left_basis"), ("right", "right_basis")  # second moment and basis of each side


class Sides(NamedTuple):
    """A parameter as a matrix, and which of its sides are rotated."""

    rows: int
    columns: int
    left: bool
    right: bool


def sides(shape: Sequence[int]) -> Sides:
    """The first dimension by all others, as in dense layers and convolutions; vectors and sides of 1 are not rotated."""
    if len(shape) < 2 or 0 in shape:
        return Sides(1, math.prod(shape), False, False)
    rows, columns = shape[0], math.prod(shape[1:])
    return Sides(rows, columns, 1 < rows <= CAP, 1 < columns <= CAP)


class Kronecker(Scaling):
    """Matrices in the eigenbases of the second moments of their rows and columns; vectors as Adam scales them.

    The first gradient of a parameter gives its bases and nothing else: in its own basis a gradient says nothing of v.
    """

    name, rule, beta, eps = "kronecker", KRONECKER, 0.99, 1e-3

    def fresh(self, w: Tensor) -> Own:
        """v of the shape of w, in rotated coordinates; second moment and basis of each side that is rotated."""
        side, found = sides(w.shape), {SQUARES: torch.zeros_like(w, memory_format=torch.contiguous_format)}
        for names, n, kept in ((LEFT, side.rows, side.left), (RIGHT, side.columns, side.right)):
            found |= {name: w.new_zeros(n, n) for name in names} if kept else {}
        return found

    def ready(self, owns: Iterable[Own]) -> bool:
        """Whether any parameter has bases."""
        return any(float(own["step"]) > 0 for own in owns)

    def begin(self, owns: Sequence[Own], grads: Sequence[Tensor]) -> None:
        """Bases of first gradients."""
        for own, g in zip(owns, grads):
            own["step"] += 1
            G = as_matrix(g)
            _gather(own, G, 1.0)
            for (_, basis), Q in zip((LEFT, RIGHT), first_bases(G) if LEFT[1] in own or RIGHT[1] in own else ()):
                if basis in own:
                    own[basis].copy_(Q)

    def ahead(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """0 before the bases are known."""
        count = float(own["step"])
        if not count:
            return torch.zeros_like(x)
        squares = own[SQUARES] if not _rotated(own) else as_matrix(own[SQUARES])
        return back(own, divided(squares, count, beta, eps, forth(own, g), forth(own, x)), x)

    def directions(
        self, owns: Sequence[Own], ages: Sequence[float], beta: float, eps: float, grads: list[Tensor]
    ) -> tuple[list[Tensor], float]:
        """Those of Adam in rotated coordinates, turned back; zero for first gradients."""
        if not min(ages):
            return self._some_new(owns, ages, beta, eps, grads)
        turned = [forth(own, g).view(g.shape) for own, g in zip(owns, grads)]
        found, factor = directions(owns, [age - 1 for age in ages], beta, eps, turned)
        found = [back(own, d, d) for own, d in zip(owns, found)]
        for own, age, g in zip(owns, ages, grads):
            if _rotated(own):
                self._learn(own, int(age) + 1, g)
        return found, factor

    def _some_new(
        self, owns: Sequence[Own], ages: Sequence[float], beta: float, eps: float, grads: list[Tensor]
    ) -> tuple[list[Tensor], float]:
        new, old = ([i for i, age in enumerate(ages) if bool(age) is known] for known in (False, True))
        found, factor = [torch.zeros_like(g) for g in grads], 1.0
        self.begin([owns[i] for i in new], [grads[i] for i in new])
        if old:
            parts, factor = self.directions(
                [owns[i] for i in old], [ages[i] for i in old], beta, eps, [grads[i] for i in old]
            )
            for i, d in zip(old, parts):
                found[i] = d
        return found, factor

    def _learn(self, own: Own, step: int, g: Tensor) -> None:
        """The second moments of both sides, and at times new bases."""
        if step % max(1, int(SHARE * SHARE * step)) == 0:
            _gather(own, as_matrix(g), max(1 - MEMORY, 1 / step))
        if refresh_is_due(step):
            refresh(own)

    def flops(self, shape: Sequence[int]) -> int:
        """Four products of the matrix with a basis, two for each side."""
        side = sides(shape)
        across = side.left * side.rows + side.right * side.columns
        return math.prod(shape) * (6 + 4 * across)


def as_matrix(g: Tensor) -> Tensor:
    """(out, in · k · k)."""
    return g.reshape(g.shape[0], -1) if g.ndim > 1 else g


def _rotated(own: Own) -> bool:
    return LEFT[1] in own or RIGHT[1] in own


def forth(own: Own, g: Tensor) -> Tensor:
    """Q_Lᵀ G Q_R."""
    if not _rotated(own):
        return g
    G = as_matrix(g)
    if LEFT[1] in own:
        G = own[LEFT[1]].T @ G
    return G @ own[RIGHT[1]] if RIGHT[1] in own else G


def back(own: Own, d: Tensor, like: Tensor) -> Tensor:
    """Q_L G Q_Rᵀ, of the shape of `like`."""
    if not _rotated(own):
        return d
    G = as_matrix(d)
    if LEFT[1] in own:
        G = own[LEFT[1]] @ G
    return (G @ own[RIGHT[1]].T if RIGHT[1] in own else G).view(like.shape)


def _gather(own: Own, G: Tensor, weight: float) -> None:
    """L += weight (G Gᵀ − L), R += weight (Gᵀ G − R)."""
    if LEFT[0] in own:
        torch.addmm(own[LEFT[0]], G, G.T, beta=1 - weight, alpha=weight, out=own[LEFT[0]])
    if RIGHT[0] in own:
        torch.addmm(own[RIGHT[0]], G.T, G, beta=1 - weight, alpha=weight, out=own[RIGHT[0]])


def first_bases(G: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Singular vectors of G, left and right, completed to bases, the largest first; none for a side above the cap.

    In double precision: single fails on inputs of low rank, such as images with a border.
    """
    short = (G if G.shape[0] <= G.shape[1] else G.T).to(small_dtype(G.device))
    U = torch.linalg.eigh(short @ short.T).eigenvectors.flip(1)
    long = torch.linalg.qr(short.T @ U, mode="complete").Q if short.shape[1] <= CAP else None
    return (U, long) if G.shape[0] <= G.shape[1] else (long, U)


def refresh_is_due(step: int) -> bool:
    """Every ten steps, and later each time that there are a tenth more."""
    if step <= BETWEEN / SHARE:
        return step % BETWEEN == 0
    return math.floor(math.log(step, 1 + SHARE)) > math.floor(math.log(step - 1, 1 + SHARE))


def refresh(own: Own) -> None:
    """One orthogonal iteration of each basis; v goes with the columns."""
    for dim, (moment, basis) in enumerate((LEFT, RIGHT)):
        if basis in own:
            Q, order = iterated(own[moment], own[basis])
            own[basis].copy_(Q)
            v = as_matrix(own[SQUARES])
            v.copy_(v.index_select(dim, order))


def iterated(S: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """The orthogonal factor of S Q, columns in the order of qᵀSq, the largest first; and that order."""
    P = S @ Q
    order = (Q * P).sum(0).argsort(descending=True)
    return torch.linalg.qr(P[:, order]).Q, order
