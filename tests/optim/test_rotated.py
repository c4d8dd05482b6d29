"""The rotated scaling: against dense Kronecker products, symmetric and positive, in blocks, and with whatever shape comes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from infhess.optim.scalings import rotated
from infhess.optim.scalings.gradient_scaling import Gradients
from infhess.optim.scalings.rotated import RotatedScaling, first_basis, iterated, refresh_is_due, side
from util import F64, close, randn, spectrum

SCALING, BETA, EPS = RotatedScaling(), 0.9, 0.01
SHAPES = [(6, 8), (8, 2, 3), (4, 3, 2, 2), (1, 6), (6, 1), (7, 4), (5,), ()]


def fresh(*shape, dtype=F64):
    return {"step": torch.zeros(()), **SCALING.fresh(torch.zeros(shape, dtype=dtype))}


def moved(own, shape, steps, dtype=F64):
    """After gradients of some steps."""
    for i in range(steps):
        stepped(own, randn(*shape, seed=i, dtype=dtype))
    return own


def stepped(own, g):
    (d,) = SCALING.directions(Gradients([own], [float(own["step"])], [g.clone()], BETA, EPS))
    return d


def dense(own, shape, g):
    """(Q_L ⊗ Q_R) diag(1/(√v̂ + ε)) (Q_L ⊗ Q_R)ᵀ of the coming step, by np.kron's definition."""
    rows, columns = shape[0], g.numel() // shape[0]
    bases = [
        torch.block_diag(*own[name]) if name in own else torch.eye(n, dtype=F64)
        for name, n in (("left_basis", rows), ("right_basis", columns))
    ]
    Q = torch.kron(*bases)
    v = BETA * own["exp_avg_sq"].reshape(-1) + (1 - BETA) * (Q.T @ g.reshape(-1)).square()
    return Q @ torch.diag(1 / ((v / (1 - BETA ** float(own["step"]))).sqrt() + EPS)) @ Q.T


@pytest.mark.parametrize("block", [1024, 4])
@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1])
def test_ahead_and_the_step_are_the_dense_operator_which_is_symmetric_and_positive(monkeypatch, shape, block):
    monkeypatch.setattr(rotated, "BLOCK", block)
    own, g, x = moved(fresh(*shape), shape, 25), randn(*shape, seed=50), randn(*shape, seed=51)
    D = dense(own, shape, g)
    found = torch.stack(
        [SCALING.ahead(own, BETA, EPS, g, e.view(shape)).reshape(-1) for e in torch.eye(g.numel(), dtype=F64)]
    )
    close(found, D, 1e-12)
    close(found, found.T, 1e-12)
    assert float(torch.linalg.eigvalsh(found).min()) > 0
    close(SCALING.ahead(own, BETA, EPS, g, x).reshape(-1), D @ x.reshape(-1), 1e-12)
    close(stepped(own, g).reshape(-1), D @ g.reshape(-1), 1e-12)


@pytest.mark.parametrize(("shape", "turned"), [((6, 8), ""), ((4, 8), "left"), ((6, 4), "right")])
def test_sides_above_the_cap_are_not_rotated_and_the_rest_is_the_dense_operator(monkeypatch, shape, turned):
    monkeypatch.setattr(rotated, "MOST", (5, 5))
    own, g = moved(fresh(*shape), shape, 12), randn(*shape, seed=50)
    assert {name for name in ("left", "right") if name in own} == {turned} - {""}
    close(SCALING.ahead(own, BETA, EPS, g, g).reshape(-1), dense(own, shape, g) @ g.reshape(-1), 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_gradient_gives_bases_and_no_move(shape):
    own, g = fresh(*shape), randn(*shape, 1)[..., 0]
    assert not SCALING.ready([own])
    assert not SCALING.ahead(own, BETA, EPS, g, g).any()
    assert not stepped(own, g).any()
    assert SCALING.ready([own])
    assert not own["exp_avg_sq"].any()
    for name in own:
        if name.endswith("basis"):
            close(own[name].mT @ own[name], torch.eye(own[name].shape[1], dtype=F64).expand_as(own[name]), 1e-12)
    close(SCALING.ahead(own, BETA, EPS, g, 3 * g), 3 * stepped(own, g), 1e-12)


def test_vectors_and_scalars_are_scaled_as_adam_does():
    own = fresh(5)
    for i in range(4):
        d = stepped(own, randn(5, seed=i))
    v = sum(0.1 * 0.9 ** (3 - i) * randn(5, seed=i).square() for i in (1, 2, 3)) / (1 - 0.9**3)
    close(d, randn(5, seed=3) / (v.sqrt() + EPS), 1e-12)


def test_second_moments_are_moving_averages_that_begin_as_plain_means(monkeypatch):
    own = moved(fresh(3, 4), (3, 4), 5)
    mean = sum(randn(3, 4, seed=i) @ randn(3, 4, seed=i).T for i in range(5)) / 5
    close(own["left"][0], mean, 1e-12)
    own = moved(fresh(3, 4), (3, 4), 60)
    weights = [0.0] * 60
    for i in range(60):
        weight = max(1 - rotated.MEMORY, 1 / (i + 1))
        weights = [(1 - weight) * w for w in weights[:i]] + [weight] + [0.0] * (59 - i)
    right = sum(w * randn(3, 4, seed=i).T @ randn(3, 4, seed=i) for i, w in enumerate(weights))
    close(own["right"][0], right, 1e-10)


def test_orthogonal_iteration_finds_the_eigenvectors_the_largest_first():
    values = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=F64)
    S, Q = spectrum(values.flip(0))[None], torch.linalg.qr(randn(5, 5, seed=4)).Q[None]
    for _ in range(60):
        Q, order = iterated(S, Q)
    close(torch.diagonal((Q.mT @ S @ Q)[0]), values, 1e-8)
    assert order.tolist() == [[0, 1, 2, 3, 4]]


def test_squares_go_with_the_columns_that_a_refresh_sorts():
    """Exact eigenvectors in the wrong order: D is the same before and after."""
    own = moved(fresh(3, 4), (3, 4), 3)
    order = torch.tensor([2, 0, 3, 1])
    Q = torch.linalg.qr(randn(4, 4, seed=9)).Q
    values = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=F64)
    own["right"][0] = (Q * values) @ Q.T
    own["right_basis"][0] = Q[:, order]
    own["left"][0], own["left_basis"][0] = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=F64)), torch.eye(3, dtype=F64)
    g = randn(3, 4, seed=20)
    before = dense(own, (3, 4), g)
    rotated.refresh(own)
    close(dense(own, (3, 4), g), before, 1e-10)
    close(own["right_basis"][0].abs(), Q.abs(), 1e-10)


def test_first_bases_are_singular_vectors_also_of_a_gradient_of_low_rank():
    G = randn(6, 2) @ randn(2, 4, seed=1)
    U, _, V = torch.linalg.svd(G)
    left, right = first_basis(G[None])[0], first_basis(G.T[None])[0]
    close((left[:, :2].T @ U[:, :2]).abs(), torch.eye(2, dtype=F64), 1e-5)
    close((right[:, :2].T @ V[:2].T).abs(), torch.eye(2, dtype=F64), 1e-5)
    for Q in (left, right, first_basis(torch.zeros(1, 5, 3))[0], first_basis(torch.zeros(1, 3, 5))[0]):
        close(Q.T @ Q, torch.eye(len(Q), dtype=F64), 1e-12)


def test_bases_are_refreshed_every_ten_steps_and_later_every_tenth_of_all():
    due = [t for t in range(1, 100_000) if refresh_is_due(t)]
    assert due[:10] == list(range(10, 101, 10))
    assert all(0.08 * a <= b - a <= 0.12 * a + 1 for a, b in pairwise(due[10:]))
    assert len(due) < 90


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, (0, 0)),
        (2, (1, 2)),
        (64, (1, 64)),
        (66, (2, 33)),
        (77, (1, 77)),
        (128, (2, 64)),
        (192, (3, 64)),
        (509, (0, 0)),
    ],
)
def test_long_sides_are_cut_into_equal_blocks_unless_they_are_tiny_and_sides_of_one_are_left_alone(n, expected):
    assert tuple(side(n, 64)) == expected


def test_an_embedding_is_rotated_by_its_columns_alone():
    assert SCALING.shapes(torch.empty(30_000, 48)).keys() == {"exp_avg_sq", "right", "right_basis"}


def numbers(shape):
    """Number of state entries for a parameter of this shape."""
    return sum(map(math.prod, SCALING.shapes(torch.empty(shape)).values()))


def test_state_has_the_shapes_and_the_size_that_are_told():
    for shape in SHAPES:
        own = fresh(*shape)
        own.pop("step")
        assert {name: tuple(t.shape) for name, t in own.items()} == SCALING.shapes(torch.zeros(shape))
        assert numbers(shape) == sum(t.numel() for t in own.values())
    for rows, columns in (
        (512, 1152),
        (10, 784),
        (97, 131),
        (64, 64),
    ):  # z and x beside; SOAP: two moments, two pairs of matrices
        soap = 2 * rows * columns + 2 * rows**2 + 2 * columns**2
        assert 2 * rows * columns + numbers((rows, columns)) <= soap + rows * columns
    assert numbers((6, 8)) == 48 + 2 * 36 + 2 * 64


def test_parameters_of_different_age_are_each_scaled_by_their_own_and_new_ones_do_not_move():
    shapes = [(3, 4), (4, 2), (5,)]
    alone = [moved(fresh(*shape), shape, 4) for shape in shapes[:2]]
    owns = [moved(fresh(*shape), shape, 4) for shape in shapes[:2]] + [fresh(5)]
    stepped(alone[0], randn(3, 4, seed=7))
    stepped(owns[0], randn(3, 4, seed=7))
    grads = [randn(*shape, seed=8) for shape in shapes]
    found = SCALING.directions(Gradients(owns, [5.0, 4.0, 0.0], [g.clone() for g in grads], BETA, EPS))
    for d, own, g in zip(found, alone, grads):
        close(d, stepped(own, g), 1e-12)
    assert not found[2].any()
    assert [float(own["step"]) for own in owns] == [6, 5, 1]


def test_rounding_does_not_choose_a_basis_where_a_gradient_says_nothing():
    """Two sums of the same points in another order: null spaces have the same basis."""
    X, Y = randn(16, 40), randn(40, 6, seed=1)
    first, second = (
        first_basis((X[:, order] @ Y[order])[None])[0] for order in (torch.arange(40), torch.arange(39, -1, -1))
    )
    assert not torch.equal(X @ Y, X.flip(1) @ Y.flip(0))
    close((first.T @ second).abs(), torch.eye(16, dtype=F64), 1e-6)
