"""The guard against autocast, and that every public entry has it."""

from __future__ import annotations

import inspect
from functools import cached_property

import pytest
import torch

import infhess
from infhess._precision import full_precision


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def on():
    return torch.is_autocast_enabled("cpu")


# ---- the guard


def test_functions_methods_and_generators_run_without_autocast_and_bodies_with_it():
    seen = []

    @full_precision
    def steps():
        try:
            for i in range(2):
                seen.append(on())
                got = yield i
                seen.append((got, on()))
        finally:
            seen.append(on())

    with autocast():
        generator = steps()
        assert next(generator) == 0
        assert on()
        assert generator.send("sent") == 1
        generator.close()
        assert full_precision(on)() is False
        assert on()
    assert seen == [False, ("sent", False), False, False]


def test_errors_reach_a_generator_and_leave_it():
    @full_precision
    def steps():
        with pytest.raises(KeyError):
            yield 1
        raise ValueError("out")

    with autocast():
        generator = steps()
        next(generator)
        with pytest.raises(ValueError, match="out"):
            generator.throw(KeyError())
        assert on()


def test_a_generator_gives_its_return_value():
    @full_precision
    def inner():
        yield 1
        return "end"

    def outer():
        assert (yield from inner()) == "end"

    assert list(outer()) == [1]


def test_autocast_that_is_entered_between_steps_is_off_within_them():
    @full_precision
    def steps():
        while True:
            yield on()

    generator = steps()
    assert next(generator) is False
    with autocast():
        assert next(generator) is False


# ---- every public entry

# What does no algebra of its own: it reads and keeps values, is in double precision throughout (which autocast leaves alone),
# or hands on to something that is guarded.
PLAIN = {
    "IsotropicPosterior.r", "SymmetricPosterior.tau", "Dense.T", "BlockDiagonal.T", "DiagonalRoot.T", "load",
    "Posterior.shape", "Posterior.S", "Posterior.Y", "Posterior.save",
    "Posterior.as_dict", "Posterior.to_pandas", "Posterior.plot",
    "Hessian.at", "Hessian.fresh", "GaussNewton.at", "GaussNewton.fresh", "Fisher.at", "Fisher.fresh", "select",
    *(f"Layer.{name}" for name in
      ("products", "data_points", "lifted", "matvec", "gradient", "fresh", "question", "fresh_products")),
    "Diagonal.interval", "BatchProducts.draw", "BatchProducts.seed",
    "Operator.dtype", "Operator.device", "Operator.power", "Operator.to_scipy", "Operator.to_curvlinops",
    "Operator.to_linear_operator", "LowRank.T", "LowRank.core_size",
    "Spectrum.interval", "Spectrum.upper", "Rate.interval", "RateReport.as_dict", "Report.as_dict",
    "Wrapper.add_param_group", "Wrapper.reset", "Wrapper.allocate", "Wrapper.state_dict", "CurvatureOptimizer.load_state_dict",
    "CurvatureOptimizer.profile_hook_step",  # what it returns calls a guarded step
    "Preconditioned.reset", "CurvatureOptimizer.zero_grad",
    "BatchProducts.note", "Density.as_dict", "Density.to_pandas", "Share.as_dict",
    "Density.cdf", "Density.interval", "Density.plot", "Share.interval",
    "Minimum.gap_upper", "Minimum.plot", "BatchProducts.count_products",
    "Along.interval", "Estimate.interval", "Estimate.upper", "BatchProducts.points_of",
    # sources of the optimizer alone, which is guarded
    *(f"{source}.{name}" for source in ("Pool", "Blockwise", "ScaledSource") for name in
      ("gradient", "matvec", "product_and_gradient", "spread")),

    "Moment.limit", "ValuesFace.as_dict", "Rows.to_pandas", "Rows.plot", "Spectrum.as_dict", "Estimate.as_dict",
    "Report.to_pandas", "Report.plot", "RateReport.plot", "Tracker.as_dict", "Tracker.to_pandas", "Tracker.plot",

    "RateFree.rate", "AveragingOptimizer.add_param_group", "AveragingOptimizer.state_dict",
    # training runs within, under its own autocast
    "RateFree.watch", "Preconditioned.watch", "Rate.times",
    *(f"JoiningOptimizer.join_{name}" for name in ("hook", "device", "process_group")),
    "TrainedHessian.at", "TrainedHessian.fresh", "TrainedHessian.points_of",
}  # fmt: skip


def function_of(member):
    """The function behind a method, a property or a plain function; None for anything else."""
    for kind, name in ((property, "fget"), (cached_property, "func"), (staticmethod, "__func__")):
        member = getattr(member, name) if isinstance(member, kind) else member
    return member if inspect.isfunction(member) else None


def is_guarded(f):
    return getattr(f, "full_precision", False) or (hasattr(f, "__wrapped__") and is_guarded(f.__wrapped__))


def subclasses(cls):
    return [cls, *(s for sub in cls.__subclasses__() if sub.__module__.startswith("infhess") for s in subclasses(sub))]


def entries():
    """(name, function) of all that a user may call: functions, and public members of classes and of their subclasses."""
    for name in infhess.__all__:
        exported = getattr(infhess, name)
        if inspect.isfunction(exported):
            yield name, exported
        kinds = {c for s in subclasses(exported) for c in s.__mro__} if inspect.isclass(exported) else set()
        for cls in (c for c in kinds if c.__module__.startswith("infhess")):
            for member, value in vars(cls).items():
                f, public = function_of(value), not member.startswith("_") or member == "__matmul__"
                if f is not None and public and not getattr(f, "__isabstractmethod__", False):
                    yield f"{cls.__name__}.{member}", f


def test_every_public_entry_is_guarded():
    bare = {name for name, f in entries() if not is_guarded(f)} - PLAIN
    assert not bare, f"decorate with full_precision, or list as plain: {sorted(bare)}"


def test_autocast_of_an_accelerator_is_off_too():
    torch.set_autocast_enabled("cuda", True)
    try:
        seen = full_precision(lambda: torch.is_autocast_enabled("cuda"))()
        assert seen is False
        assert torch.is_autocast_enabled("cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
