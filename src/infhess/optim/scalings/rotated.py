"""Adam's scaling in rotated coordinates: D = (Q_L ⊗ Q_R) diag(1/(√v̂ + ε)) (Q_L ⊗ Q_R)ᵀ (SOAP, Vyas et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.optim.rate.settings import KRONECKER
from infhess.optim.scalings.diagonal import counted, directions, divided
from infhess.optim.scalings.gradient_scaling import SQUARES, Gradients, GradientScaling, Own, Share, alone

# Rows and columns are cut into blocks of at most this size, each with its own basis: the cost of a step grows with the block
# size. On an MLP with 784 inputs, 64 × 64 ends as low as 64 × 256 in .6 of the time; rotating only columns ends higher.
BLOCK = 64
# Longer sides are not rotated: this many rows belong to an embedding, whose neighbouring rows have nothing in common.
MOST = (1024, 2**16)
# Relative to the largest entry: orders directions about which the first gradient says nothing.
TILT = 1e-6
# Decay of the second moments of the sides; .95 was better than .99.
MEMORY = 0.95
# Steps between two refreshes of the bases: at least this many, and at least this share of the steps made.
BETWEEN, SHARE = 10, 0.1
LEFT, RIGHT = ("left", "left_basis"), ("right", "right_basis")  # second moment and basis of each side


class Side(NamedTuple):
    """A side of a matrix: number of blocks and length of each; zeros if the side is not rotated."""

    blocks: int
    length: int


def sides(shape: Sequence[int]) -> tuple[Side, Side]:
    """Rows (first dimension) and columns (all others), as in dense layers and convolutions; vectors have no sides."""
    if len(shape) < 2 or 0 in shape:
        return Side(0, 0), Side(0, 0)
    counts = shape[0], math.prod(shape[1:])
    rows, columns = (side(n, BLOCK) if n <= most else Side(0, 0) for n, most in zip(counts, MOST))
    return rows, columns


def side(n: int, longest: int) -> Side:
    """The fewest equal blocks that are short enough; a single block if these would be tiny and the side is not far too long.

    No blocks for sides of length 1, and for long sides that cannot be cut.
    """
    blocks = next(k for k in range(-(-n // longest), n + 1) if n % k == 0)
    if 4 * n < longest * blocks:
        blocks = 1 if n <= 4 * longest else 0
    return Side(blocks, n // blocks) if blocks and n > 1 else Side(0, 0)


class RotatedScaling(GradientScaling):
    """Adam in the eigenbases of the second moments of rows and columns of each matrix; vectors are scaled as by Adam.

    The first gradient of a parameter only sets its bases: in its own eigenbasis a gradient says nothing about v.
    """

    name, rule, beta, eps = "kronecker", KRONECKER, 0.99, 1e-3

    def fresh(self, w: Tensor) -> Own:
        """v in rotated coordinates, in the shape of w; second moment and basis of each rotated side."""
        found = {SQUARES: torch.zeros_like(w, memory_format=torch.contiguous_format)}
        for names, (blocks, n) in zip((LEFT, RIGHT), sides(w.shape)):
            found |= {name: w.new_zeros(blocks, n, n) for name in names} if blocks else {}
        return found

    def needs_whole(self, shape: Sequence[int]) -> bool:
        """Whether any side is rotated."""
        return any(side.blocks for side in sides(shape))

    def ready(self, owns: Iterable[Own]) -> bool:
        """Whether any parameter has bases."""
        return any(float(own["step"]) > 0 for own in owns)

    def begin(self, owns: Sequence[Own], grads: Sequence[Tensor], share: Share = alone) -> None:
        """Compute bases from first gradients."""
        for own, g in zip(owns, grads):
            own["step"] += 1
            G = as_matrix(g)
            _gather(own, G, 1.0)
            for parts, (_, basis) in ((_rows, LEFT), (_columns, RIGHT)):
                if basis in own:
                    (found,) = share(lambda P: (first_basis(P),), parts(G, own[basis]))
                    own[basis].copy_(found)

    def ahead(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """D x; zero before the bases are known."""
        return back(own, self.paired(own, beta, eps, g, x, x)[1])

    def paired(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """In rotated coordinates: dot products are the same there, so nothing has to be rotated back."""
        count = float(own["step"])
        if not count:
            return x, torch.zeros_like(y)
        turned = forth(own, g)
        a = turned if x is g else forth(own, x)
        b = turned if y is g else a if y is x else forth(own, y)
        return a, divided(own[SQUARES], count, beta, eps, turned, b)

    def directions(self, step: Gradients) -> list[Tensor]:
        """Adam's directions in rotated coordinates, rotated back; zero for first gradients."""
        owns, ages, grads = step.owns, step.ages, step.grads
        if not min(ages):
            return self._some_new(step)
        matrices, turned = [i for i, own in enumerate(owns) if _rotated(own)], list(grads)
        for i in matrices:
            turned[i] = forth(owns[i], grads[i])
        found = directions(owns, ages, step.beta, step.eps, turned)  # the first gradient is not in v
        counted(owns)
        for i in matrices:
            found[i] = back(owns[i], found[i])
            self._learn(owns[i], int(ages[i]) + 1, grads[i], step.share)
        return found

    def _some_new(self, step: Gradients) -> list[Tensor]:
        new, old = ([i for i, age in enumerate(step.ages) if bool(age) is known] for known in (False, True))
        found, first = [torch.zeros_like(g) for g in step.grads], step.of(new)
        self.begin(first.owns, first.grads, step.share)
        if old:
            for i, d in zip(old, self.directions(step.of(old))):
                found[i] = d
        return found

    def _learn(self, own: Own, step: int, g: Tensor, share: Share) -> None:
        """Update the second moments of both sides, and refresh the bases when due."""
        if step % max(1, int(SHARE * SHARE * step)) == 0:
            _gather(own, as_matrix(g), max(1 - MEMORY, 1 / step))
        if refresh_is_due(step):
            refresh(own, share)


def as_matrix(g: Tensor) -> Tensor:
    """The gradient as a matrix, (out, in · k · k)."""
    return g.contiguous().flatten(1) if g.ndim > 1 else g


def _rotated(own: Own) -> bool:
    return LEFT[1] in own or RIGHT[1] in own


def _rows(G: Tensor, basis: Tensor) -> Tensor:
    """Blocks of rows, shape (k, b, columns)."""
    return G.view(basis.shape[0], basis.shape[1], -1)


def _columns(G: Tensor, basis: Tensor) -> Tensor:
    """Blocks of columns, transposed: (k, b, rows)."""
    return G.view(-1, basis.shape[0], basis.shape[1]).permute(1, 2, 0)


def forth(own: Own, g: Tensor) -> Tensor:
    """Q_Lᵀ G Q_R, in the shape of g."""
    return _turned(g, own.get(LEFT[1]), own.get(RIGHT[1]), inverse=False)


def back(own: Own, d: Tensor) -> Tensor:
    """Q_L G Q_Rᵀ, in the shape of d."""
    return _turned(d, own.get(LEFT[1]), own.get(RIGHT[1]), inverse=True)


def _turned(g: Tensor, left: Tensor | None, right: Tensor | None, *, inverse: bool) -> Tensor:
    G = as_matrix(g)
    if left is not None:
        G = _rows_turned(G, left if inverse else left.mT)
    if right is not None:
        G = _columns_turned(G, right.mT if inverse else right)
    return G if G.shape == g.shape else G.view(g.shape)


def _rows_turned(G: Tensor, Q: Tensor) -> Tensor:
    """Q G, block by block."""
    return Q[0] @ G if Q.shape[0] == 1 else torch.bmm(Q, _rows(G, Q)).view(G.shape)


def _columns_turned(G: Tensor, Q: Tensor) -> Tensor:
    """G Q, block by block, written in place of the result: copying the blocks would take as long as the product."""
    rows, blocks = G.shape[0], Q.shape[0]
    if blocks == 1:
        return G @ Q[0]
    found = torch.empty_like(G)
    before, after = (X.view(rows, blocks, -1).transpose(0, 1) for X in (G, found))
    torch.bmm(before, Q, out=after)
    return found


def _gather(own: Own, G: Tensor, weight: float) -> None:
    """L += weight (G Gᵀ − L), R += weight (Gᵀ G − R), block by block."""
    for parts, (moment, basis) in ((_rows, LEFT), (_columns, RIGHT)):
        if basis in own:
            P = parts(G, own[basis])
            torch.baddbmm(own[moment], P, P.mT, beta=1 - weight, alpha=weight, out=own[moment])


def first_basis(P: Tensor) -> Tensor:
    """Eigenvectors of P Pᵀ for each block (k, b, n), largest eigenvalue first.

    In double precision: single precision fails on inputs of low rank, such as images with a border. Where P has no preference,
    a diagonal that rises by a millionth of the largest entry decides, not rounding, so that equal gradients have equal bases.
    """
    P = P.to(small_dtype(P.device))
    S = P @ P.mT
    rising = torch.linspace(0.0, TILT, S.shape[1], dtype=S.dtype, device=S.device)
    tilted = S + torch.diag_embed(S.diagonal(dim1=1, dim2=2).amax(1, keepdim=True) * rising)
    vectors: Tensor = torch.linalg.eigh(tilted).eigenvectors
    return vectors.flip(2)


def refresh_is_due(step: int) -> bool:
    """Every ten steps, and later whenever the number of steps has grown by a tenth."""
    if step <= BETWEEN / SHARE:
        return step % BETWEEN == 0
    return math.floor(math.log(step, 1 + SHARE)) > math.floor(math.log(step - 1, 1 + SHARE))


def refresh(own: Own, share: Share = alone) -> None:
    """One orthogonal iteration of each basis; v is permuted with the columns."""
    for parts, (moment, basis) in ((_rows, LEFT), (_columns, RIGHT)):
        if basis in own:
            own[basis][:], order = share(iterated, own[moment], own[basis])
            v = parts(as_matrix(own[SQUARES]), own[basis])
            v.copy_(v.gather(1, order[:, :, None].expand_as(v)))


def iterated(S: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """For each block, the orthogonal factor of S Q with columns sorted by qᵀSq, largest first; and that order."""
    P = S @ Q
    order = (Q * P).sum(1).argsort(dim=1, descending=True)
    return torch.linalg.qr(P.gather(2, order[:, None].expand_as(P))).Q, order
