"""Mistakes that are made at the front doors: each gets one sentence there, before anything is computed or changed."""

from __future__ import annotations

import math
import re
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import infhess
from infhess import Fisher, GaussNewton, Hessian, Preconditioned, Products, RateFree, density, largest, spectrum
from infhess._checks import count, finite_number, share
from util import randn

X, Y = randn(16, 3, dtype=torch.float32), torch.arange(16) % 2
BATCHES = list(zip(X.split(4), Y.split(4)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


NET = Net()


def loss(batch):
    return F.cross_entropy(NET(batch[0]), batch[1])


def preconditioned():
    return Preconditioned(torch.optim.SGD(NET.parameters(), lr=0.1))


# Every door that takes loss(batch).
DOORS = {
    "Hessian": lambda f: Hessian(f, NET.parameters(), BATCHES),
    "minimize": lambda f: infhess.minimize(f, list(NET.parameters()), BATCHES),
    "RateFree.observe": lambda f: RateFree(NET.parameters()).observe(f, BATCHES[0]),
    "Preconditioned.observe": lambda f: preconditioned().observe(f, BATCHES[0]),
    "Preconditioned.update": lambda f: preconditioned().update(f, BATCHES),
}
NO_LOSS = {
    "a number": (3, "got int;"),
    "a module": (NET, "got a module (Net);"),
    "a loss module": (nn.CrossEntropyLoss(), "got a module (CrossEntropyLoss);"),
    "a loss of outputs and targets": (F.cross_entropy, "got a function of (input, target);"),
    "of nothing": (lambda: NET(X).mean(), "got a function of ();"),
    "with a keyword that is missing": (
        lambda batch, *, scale: scale * loss(batch),
        "got a function of (batch, scale);",
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", NO_LOSS)
def test_what_is_no_loss_of_a_batch_is_told_how_to_write_one(door, name):
    f, got = NO_LOSS[name]
    said = rf"^loss: expected a callable loss\(batch\) -> scalar, {re.escape(got)} write lambda batch: "
    with pytest.raises(TypeError, match=said) as error:
        DOORS[door](f)
    assert len(error.traceback) < 10  # at the door, not in a pass through the model


class Callable:
    def __call__(self, batch):
        return loss(batch)

    def method(self, batch, scale=1.0):
        return scale * loss(batch)


@torch.no_grad()
def decorated(batch):
    with torch.enable_grad():
        return loss(batch)


GOOD = {
    "lambda": lambda batch: loss(batch),
    "object": Callable(),
    "method": Callable().method,
    "partial": partial(lambda scale, batch: scale * loss(batch), 2.0),
    "decorated": decorated,
    "any arguments": lambda *batches, **options: loss(*batches),
    "defaults": lambda batch, scale=1.0, *, shift=0.0: scale * loss(batch) + shift,
}


@pytest.mark.parametrize("name", GOOD)
def test_whatever_takes_a_batch_is_a_loss(name):
    assert bool(Hessian(GOOD[name], NET.parameters(), BATCHES).gradient().isfinite().all())


def test_a_type_error_of_the_users_own_is_left_as_it_is():
    def broken(batch):
        return loss(batch) + len(3)

    for door in DOORS:
        make = (
            Hessian(broken, NET.parameters(), BATCHES).gradient if door == "Hessian" else partial(DOORS[door], broken)
        )
        with pytest.raises(TypeError, match=r"^object of type 'int' has no len\(\)$"):
            make()


VALUES = {
    "item": (lambda b: loss(b).item(), r"got float; return the tensor itself, without \.item\(\)"),
    "numpy's number": (
        lambda b: loss(b).detach().numpy()[()],
        r"got float32; return the tensor itself, without \.item\(\)",
    ),
    "nothing": (lambda b: None, r"got NoneType; return the mean loss of the batch as a tensor"),
    "a pair": (lambda b: (loss(b), 1), r"got tuple; return the mean loss of the batch as a tensor"),
    "no reduction": (
        lambda b: F.cross_entropy(NET(b[0]), b[1], reduction="none"),
        r'got shape \(4,\); take the mean over the batch: loss\.mean\(\), or reduction="mean"',
    ),
    "a whole number": (lambda b: b[1].sum(), r"got dtype torch\.int64; return the mean loss in a real"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_no_scalar_tensor_is_told_what_to_return(name):
    f, said = VALUES[name]
    said = rf"^loss: expected a scalar tensor for a batch, {said}"
    with pytest.raises(TypeError, match=said):
        Hessian(f, NET.parameters(), BATCHES).gradient()
    with pytest.raises(TypeError, match=said):
        Hessian(f, NET.parameters(), BATCHES, products="difference").gradient()
    with pytest.raises(TypeError, match=said):
        DOORS["minimize"](f)
    with pytest.raises(TypeError, match=said):
        Preconditioned(torch.optim.SGD(NET.parameters(), lr=0.1, maximize=True)).update(f, BATCHES)


ce, mapping = nn.CrossEntropyLoss(), [{"x": x, "labels": y} for x, y in BATCHES]
NO_MODEL = {
    "a loss of a batch": (lambda: GaussNewton(NET, loss, NET.parameters(), BATCHES), "loss", "loss(outputs, targets)"),
    "no loss": (lambda: GaussNewton(NET, None, NET.parameters(), BATCHES), "loss", "loss(outputs, targets)"),
    "swapped": (lambda: Fisher(ce, NET, NET.parameters(), BATCHES), "loss", "loss(outputs, targets)"),
    "no model": (lambda: Fisher(3, ce, NET.parameters(), BATCHES), "model", "model(inputs)"),
    "a model of two": (
        lambda: GaussNewton(lambda x, mask: NET(x), ce, NET.parameters(), BATCHES).gradient(), "model", "model(inputs)",
    ),
    "pair": (lambda: GaussNewton(NET, ce, NET.parameters(), BATCHES, pair=lambda x, y: (x, y)), "pair", "pair(batch)"),
    "sample": (
        lambda: Fisher(NET, ce, NET.parameters(), BATCHES, "mc", sample=lambda f, y: y), "sample", "sample(outputs)",
    ),
    "matvec": (lambda: Products(lambda: 1.0, size=3), "matvec", "matvec(s)"),
    "gradient": (lambda: Products(lambda s: s, lambda s: s, 3), "gradient", "gradient()"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_MODEL)
def test_models_pairs_and_products_are_checked_in_the_same_way(name):
    make, what, form = NO_MODEL[name]
    with pytest.raises(TypeError, match=rf"^{what}: expected a callable {re.escape(form)} -> .*, got .*; "):
        make()


def test_a_model_that_takes_entries_by_name_may_take_several():
    source = GaussNewton(lambda x: NET(x), ce, NET.parameters(), mapping)
    assert bool(source.gradient().isfinite().all())
    two = [{"x": x, "scale": torch.ones(4, 1), "labels": y} for x, y in BATCHES]
    assert bool(GaussNewton(lambda x, scale: NET(scale * x), ce, NET.parameters(), two).gradient().isfinite().all())


def test_a_type_error_within_a_function_of_torch_vectors_is_the_one_that_is_raised():
    def broken(s):
        return torch.linalg.vector_norm(s.clone(), dim="x")

    with pytest.raises(TypeError, match="vector_norm"):
        Products(broken, size=3).matvec(torch.ones(3))


def test_so_is_an_error_within_a_function_of_numpy_vectors():
    def broken(s):
        if isinstance(s, torch.Tensor):
            raise TypeError("not a vector of NumPy")
        raise ValueError("of the user's own")

    with pytest.raises(ValueError, match="of the user's own"):
        Products(broken, size=3).matvec(torch.ones(3))


@pytest.mark.parametrize("batches", [X, {"x": X}, nn.Sequential(NET), "data.csv", 3], ids=lambda b: type(b).__name__)
def test_what_is_no_iterable_of_batches_is_refused_at_once(batches):
    with pytest.raises(TypeError, match=rf"batches: expected an iterable of batches.*got {type(batches).__name__}"):
        Hessian(loss, NET.parameters(), batches)


@pytest.mark.parametrize("source", [NET, loss], ids=["module", "loss"])
def test_a_loss_or_a_model_in_the_place_of_a_source_is_told_of_both_ways(source):
    with pytest.raises(TypeError, match=r"Products\(function, size=N\), or a loss: Hessian\(loss"):
        spectrum(source, 1)


# ---- numbers

A = torch.eye(4)
PER_CENT = {
    "spectrum": lambda rtol: spectrum(A, 1, rtol),
    "spectrum_rounds": lambda rtol: infhess.spectrum_rounds(A, 1, rtol),
    "largest": lambda rtol: largest(A, rtol),
    "Tracker": lambda rtol: infhess.Tracker(A, rtol=rtol),
    "by layer": lambda rtol: spectrum(Hessian(loss, NET.named_parameters(), BATCHES), 1, rtol, by="layer"),
    "density": lambda atol: density(A, atol=atol),
}


@pytest.mark.parametrize("name", PER_CENT)
@pytest.mark.parametrize("tolerance", [1, 10, 95.0])
def test_per_cent_are_refused(name, tolerance):
    said = rf"^[ra]tol: expected a number above 0 and below 1, got {tolerance:g}; 0\.1 means ten per cent$"
    with pytest.raises(ValueError, match=said):
        PER_CENT[name](tolerance)
    PER_CENT[name](0.999)


def test_density_checks_its_numbers_before_it_multiplies():
    source = Products(A)
    for options in ({"zero": -1.0}, {"points": 0}, {"directions": 0}, {"starts": 2.5}, {"budget": 0}):
        with pytest.raises((ValueError, TypeError), match=f"^{next(iter(options))}: expected"):
            density(source, **options)
    assert source.products == 0


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), st.decimals(),
    st.fractions(), st.lists(st.floats(), max_size=50), st.builds(torch.tensor, st.floats(width=32)),
    st.builds(torch.zeros, st.integers(0, 99)), st.builds(object),
    st.sampled_from([torch.tensor(2), nn.Linear(2, 2), X.numpy(), b"1", 10**400]),
)  # fmt: skip


def refusal(check, x):
    """What the check gives and None, or None and what it says."""
    try:
        return check(x), None
    except (TypeError, ValueError) as error:
        return None, str(error)


@given(ANYTHING)
def test_any_object_is_a_whole_number_or_refused_in_one_line(x):
    k, said = refusal(lambda x: count(x, "k", 10), x)
    if said is None:
        assert type(k) is int
        assert k == x
        assert 1 <= k <= 10
    else:
        assert re.fullmatch(r"k: expected (a whole number|1 to 10), got .{1,60}", said)


@given(ANYTHING, st.sampled_from([finite_number, share]))
def test_any_object_is_a_number_or_refused_in_one_line(x, check):
    value, said = refusal(lambda x: check(x, "rtol"), x)
    if said is None:
        assert type(value) is float
        assert math.isfinite(value)
        assert not isinstance(x, str | bytes)
        assert check is finite_number or 0 < value < 1
    else:
        assert re.fullmatch(r"rtol: expected [^\n]*, got [^\n]{1,100}", said)


def test_what_came_is_said():
    for k, got in ((2.5, "2.5"), ("2", "'2'"), (None, "None"), (torch.ones(2, 2), "Tensor"), (True, "True")):
        with pytest.raises(TypeError, match=rf"^k: expected a whole number, got {re.escape(got)}$"):
            spectrum(A, k)
