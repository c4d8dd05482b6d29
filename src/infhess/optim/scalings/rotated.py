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

# Sides longer than this are cut into equal blocks, each with a basis of its own.
BLOCK = 1024
# Sides longer than this are not rotated.
CAP = 1 << 16
# Which sides.
USE = (True, True)
# Memory of the second moments of the sides; of .99 and .95 the latter was ahead.
MEMORY = 0.95
# Steps between two refreshes of the bases, at the least and as a share of the steps made.
BETWEEN, SHARE = 10, 0.1
LEFT, RIGHT = ("left", "left_basis"), ("right", "right_basis")  # second moment and basis of each side


class Side(NamedTuple):
    """A side of a matrix: so many blocks, of this length each; none where it is not rotated."""

    blocks: int
    length: int


def sides(shape: Sequence[int]) -> tuple[Side, Side]:
    """Rows, the first dimension, and columns, all others, as in dense layers and convolutions; vectors have none."""
    if len(shape) < 2 or 0 in shape:
        return Side(0, 0), Side(0, 0)
    rows, columns = shape[0], math.prod(shape[1:])
    return side(rows) if USE[0] else Side(0, 0), side(columns) if USE[1] else Side(0, 0)


def side(n: int) -> Side:
    """The fewest equal blocks that are short enough; none for sides of 1, and for those that cannot be cut."""
    least = -(-n // BLOCK)
    blocks = next((k for k in range(least, 2 * least) if n % k == 0), 0) if 1 < n <= CAP else 0
    return Side(blocks, n // blocks) if blocks else Side(0, 0)


class Kronecker(Scaling):
    """Matrices in the eigenbases of the second moments of their rows and columns; vectors as Adam scales them.

    The first gradient of a parameter gives its bases and nothing else: in its own basis a gradient says nothing of v.
    """

    name, rule, beta, eps, whole = "kronecker", KRONECKER, 0.99, 1e-3, True

    def fresh(self, w: Tensor) -> Own:
        """v of the shape of w, in rotated coordinates; second moment and basis of each side that is rotated."""
        found = {SQUARES: torch.zeros_like(w, memory_format=torch.contiguous_format)}
        for names, (blocks, n) in zip((LEFT, RIGHT), sides(w.shape)):
            found |= {name: w.new_zeros(blocks, n, n) for name in names} if blocks else {}
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
            for parts, (_, basis) in ((_rows, LEFT), (_columns, RIGHT)):
                if basis in own:
                    own[basis].copy_(first_basis(parts(G, own[basis])))

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
        return math.prod(shape) * (6 + 4 * sum(side.length for side in sides(shape)))


def as_matrix(g: Tensor) -> Tensor:
    """(out, in · k · k)."""
    return g.reshape(g.shape[0], -1) if g.ndim > 1 else g


def _rotated(own: Own) -> bool:
    return LEFT[1] in own or RIGHT[1] in own


def _rows(G: Tensor, basis: Tensor) -> Tensor:
    """Blocks of rows, (k, b, columns)."""
    return G.view(basis.shape[0], basis.shape[1], -1)


def _columns(G: Tensor, basis: Tensor) -> Tensor:
    """Blocks of columns, turned: (k, b, rows)."""
    return G.view(-1, basis.shape[0], basis.shape[1]).permute(1, 2, 0)


def forth(own: Own, g: Tensor) -> Tensor:
    """Q_Lᵀ G Q_R."""
    return _turned(as_matrix(g), own.get(LEFT[1]), own.get(RIGHT[1]), inverse=False)


def back(own: Own, d: Tensor, like: Tensor) -> Tensor:
    """Q_L G Q_Rᵀ, of the shape of `like`."""
    return _turned(as_matrix(d), own.get(LEFT[1]), own.get(RIGHT[1]), inverse=True).view(like.shape)


def _turned(G: Tensor, left: Tensor | None, right: Tensor | None, *, inverse: bool) -> Tensor:
    if left is not None:
        G = _matmul(left if inverse else left.mT, _rows(G, left)).view(G.shape)
    if right is None:
        return G
    if len(right) == 1:
        return G @ (right[0].T if inverse else right[0])
    parts = G.view(len(G), len(right), -1).transpose(0, 1)
    return torch.bmm(parts, right.mT if inverse else right).transpose(0, 1).reshape(G.shape)


def _matmul(A: Tensor, B: Tensor) -> Tensor:
    return torch.bmm(A, B) if len(A) > 1 else A[0] @ B[0]


def _gather(own: Own, G: Tensor, weight: float) -> None:
    """L += weight (G Gᵀ − L), R += weight (Gᵀ G − R), block by block."""
    for parts, (moment, basis) in ((_rows, LEFT), (_columns, RIGHT)):
        if basis in own:
            P = parts(G, own[basis])
            torch.baddbmm(own[moment], P, P.mT, beta=1 - weight, alpha=weight, out=own[moment])


def first_basis(P: Tensor) -> Tensor:
    """Left singular vectors of each block (k, b, n), completed to a basis, the largest first.

    In double precision: single fails on inputs of low rank, such as images with a border.
    """
    P = P.to(small_dtype(P.device))
    if P.shape[1] <= P.shape[2]:
        return torch.linalg.eigh(P @ P.mT).eigenvectors.flip(2)
    V = torch.linalg.eigh(P.mT @ P).eigenvectors.flip(2)
    return torch.linalg.qr(P @ V, mode="complete").Q


def refresh_is_due(step: int) -> bool:
    """Every ten steps, and later each time that there are a tenth more."""
    if step <= BETWEEN / SHARE:
        return step % BETWEEN == 0
    return math.floor(math.log(step, 1 + SHARE)) > math.floor(math.log(step - 1, 1 + SHARE))


def refresh(own: Own) -> None:
    """One orthogonal iteration of each basis; v goes with the columns."""
    for parts, (moment, basis) in ((_rows, LEFT), (_columns, RIGHT)):
        if basis in own:
            own[basis][:], order = iterated(own[moment], own[basis])
            v = parts(as_matrix(own[SQUARES]), own[basis])
            v.copy_(v.gather(1, order[:, :, None].expand_as(v)))


def iterated(S: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """The orthogonal factor of S Q, columns in the order of qᵀSq, the largest first; and that order; for each block."""
    P = S @ Q
    order = (Q * P).sum(1).argsort(dim=1, descending=True)
    return torch.linalg.qr(P.gather(2, order[:, None].expand_as(P))).Q, order
