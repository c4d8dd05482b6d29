"""Batches of any shape: what is data of points is sliced and joined, what is the same for all points is passed through."""

from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from infhess import Hessian, Preconditioned, spectrum
from infhess.curvature.batches import concat, size_of, slice_of, sliced
from util import F64, close, randn


class Encoding(UserDict):
    """As transformers' BatchEncoding: a UserDict whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


@dataclasses.dataclass
class Record:
    x: Any
    y: Any
    count: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any
    made: list = dataclasses.field(default_factory=list, init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    x: Any
    y: Any


Named = namedtuple("Named", "x y")
KINDS = {
    "dict": lambda x, y: {"x": x, "y": y},
    "BatchEncoding": lambda x, y: Encoding({"x": x, "y": y}),
    "dataclass": Record,
    "frozen dataclass": Frozen,
    "dataclass with slots": Slots,
    "namedtuple": Named,
    "dataclass in a tuple": lambda x, y: (Record(x, None), {"y": y}),
}


def flat(batch):
    """x and y, wherever they are."""
    if isinstance(batch, tuple) and not hasattr(batch, "_fields"):
        return batch[0].x, batch[1]["y"]
    return (batch["x"], batch["y"]) if isinstance(batch, dict | UserDict) else (batch.x, batch.y)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_joined_are_the_batch(kind):
    x, y = randn(10, 3), randn(10, seed=1)
    batch = KINDS[kind](x, y)
    parts = sliced([batch], 4)
    assert [size_of(p) for p in parts] == [2, 3, 2, 3]
    assert all(type(p) is type(batch) for p in parts)
    for a, b in zip(flat(concat(parts)), (x, y)):
        close(a, b, atol=0)
    for a, b in zip(flat(slice_of(batch, 2, 5)), (x[2:5], y[2:5])):
        close(a, b, atol=0)
    assert flat(batch)[0] is x


def language_batch(n, T=4, seed=0, items=7):
    g = torch.Generator().manual_seed(seed)
    return Encoding(
        input_ids=torch.randint(9, (n, T), generator=g),
        labels=torch.randint(9, (n, T), generator=g),
        position_ids=torch.arange(T)[None],
        num_items_in_batch=torch.tensor(items),
        names=[f"{seed}-{i}" for i in range(n)],
    )


@pytest.mark.parametrize("n", [1, 2, 8])
def test_what_is_no_data_of_points_is_passed_through(n):
    batch = language_batch(n)
    assert size_of(batch) == n
    for part in sliced([batch], n):
        assert size_of(part) == 1
        assert tuple(part["position_ids"].shape) == (1, 4)
        assert int(part["num_items_in_batch"]) == 7
        assert len(part["names"]) == 1


def test_what_is_the_same_in_all_batches_is_kept_when_they_are_joined():
    whole = concat([language_batch(3), language_batch(5, seed=1), language_batch(1, seed=2)])
    assert size_of(whole) == 9
    assert tuple(whole["position_ids"].shape) == (1, 4)
    assert whole["num_items_in_batch"].ndim == 0
    assert whole["names"][3] == "1-0"


def test_batches_of_one_point_are_joined():
    whole = concat([language_batch(1, seed=s) for s in range(4)])
    assert size_of(whole) == 4
    assert tuple(whole["position_ids"].shape) in {(1, 4), (4, 4)}


@pytest.mark.parametrize("change", [{"items": 8}, {"T": 5}])
def test_batches_that_cannot_be_joined_say_so(change):
    with pytest.raises(ValueError, match="split=False"):
        concat([language_batch(3), language_batch(4, **change)])


@pytest.mark.parametrize(
    "batch",
    [
        (randn(4, 2), randn(3)),
        (randn(4, 2), randn(1)),
        {"x": randn(4, 2), "y": randn(3), "z": randn(1)},
        {"x": randn(1, 2), "y": randn(1), "z": randn(3)},
        {"count": torch.tensor(3.0)},
        "words",
        Record,
    ],
)
def test_a_batch_whose_size_is_not_clear_is_an_error(batch):
    with pytest.raises(ValueError, match="share dimension 0"):
        size_of(batch)


def test_an_empty_batch_is_an_error():
    with pytest.raises(ValueError, match="empty batch"):
        size_of({"x": randn(0, 2), "count": torch.tensor(1)})


def test_curvature_of_a_batch_with_shared_tensors():
    w = torch.ones(3, dtype=F64, requires_grad=True)
    scale, X = torch.tensor(2.0, dtype=F64), randn(40, 3)
    loss = lambda b: b["scale"] * (b["x"] * b["weights"] @ w).square().mean()  # noqa: E731
    weights = torch.tensor([[1.0, 2.0, 3.0]], dtype=F64)
    batches = [Encoding(x=x, y=x[:, 0], weights=weights, scale=scale) for x in X.split(8)]
    found = spectrum(Hessian(loss, [w], batches), 2)
    A = X * weights
    close(found.values, torch.linalg.eigvalsh(2 * scale * A.mT @ A / 40).flip(0)[:2], 1e-6)
    report = Preconditioned(torch.optim.SGD([w], lr=0.1), rank=2).update(loss, batches)
    assert report.data_points > 0
