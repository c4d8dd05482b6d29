"""What a call is refused for names the function or the class that was called, and signatures are those of the code."""

from __future__ import annotations

import inspect

import pytest

import infhess

CALLED = {name: getattr(infhess, name) for name in infhess.__all__ if name != "__version__"}
FUNCTIONS = [name for name, f in CALLED.items() if inspect.isroutine(f)]
# Classes that a user makes; others are results, errors, or what sources and operators have in common.
MADE = ["CurvatureShaped", "Fisher", "GaussNewton", "Hessian", "Isotropic", "Kronecker", "LowRank", "Preconditioned",
        "Products", "RateFree", "Symmetric", "Tracker"]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS + MADE)
def test_a_misspelt_option_names_what_was_called(name):
    with pytest.raises(TypeError, match=rf"^{name}(\.__init__)?\(\) got an unexpected keyword argument 'rtoll'"):
        CALLED[name](rtoll=0.1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_is_that_of_the_code(name):
    f = CALLED[name]
    signature = inspect.signature(f)
    assert signature == inspect.signature(inspect.unwrap(f))
    assert not hasattr(inspect.unwrap(f), "__signature__")
    assert inspect.Parameter.VAR_KEYWORD not in {p.kind for p in signature.parameters.values()}


def test_what_ends_a_generator_has_its_options():
    for end, steps, more in (("spectrum", "spectrum_rounds", {"by"}), ("infer", "infer_steps", set())):
        own, others = (inspect.signature(CALLED[name]).parameters for name in (end, steps))
        assert set(own) == set(others) | more
        assert all(own[name].default == p.default and own[name].kind == p.kind for name, p in others.items())
