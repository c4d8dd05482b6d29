"""The Gauss–Newton matrix for batches of any shape: pairs, mappings, dataclasses, and what a function makes a pair of."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infhess import GaussNewton, spectrum
from util import close, randn


@dataclasses.dataclass
class Output(OrderedDict):
    """As transformers' ModelOutput: a dataclass that is a mapping too."""

    logits: Tensor
    loss: Any = None

    def __post_init__(self):
        self["logits"] = self.logits


@dataclasses.dataclass
class Plain:
    logits: Tensor


@dataclasses.dataclass
class Batch:
    x: Tensor
    mask: Tensor
    y: Tensor


class Model(nn.Module):
    """A net that takes keywords, and gives what `wrap` makes of its outputs."""

    def __init__(self, wrap=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.wrap = wrap

    def forward(self, x, mask):
        return self.wrap(self.net(x * mask))


X, MASK = randn(24, 4), (randn(24, 4, seed=1) > 0).double()
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(2))
V = randn(43, seed=3)


def expected():
    model = Model()
    source = GaussNewton(lambda b: model(*b), nn.functional.cross_entropy, model.parameters(), [((X, MASK), Y)])
    return source.product_and_gradient(V)


BATCHES = {
    **{name: {"x": X, "mask": MASK, name: Y} for name in ("labels", "label", "targets", "target", "y")},
    "BatchEncoding": UserDict(x=X, mask=MASK, labels=Y),
    "dataclass": Batch(X, MASK, Y),
}


@pytest.mark.parametrize("name", BATCHES)
def test_named_entries_are_the_models_keywords(name):
    model = Model()
    source = GaussNewton(model, nn.functional.cross_entropy, model.parameters(), [BATCHES[name]])
    for a, b in zip(source.product_and_gradient(V), expected()):
        close(a, b, 1e-12)
    assert source.data_points == 24


@pytest.mark.parametrize(
    "wrap", [Output, Plain, lambda logits: {"logits": logits}], ids=["ModelOutput", "object", "dict"]
)
def test_logits_are_taken_from_the_output(wrap):
    model = Model(wrap)
    source = GaussNewton(model, nn.functional.cross_entropy, model.parameters(), [BATCHES["labels"]])
    close(source.matvec(V), expected()[0], 1e-12)


def test_a_function_makes_the_pair():
    model = Model()
    triple = (X, MASK, Y)
    source = GaussNewton(
        lambda b: model(*b),
        nn.functional.cross_entropy,
        model.parameters(),
        [triple] * 2,
        pair=lambda b: (b[:2], b[2]),
    )
    close(source.matvec(V), expected()[0], 1e-12)
    found = spectrum(source, 2)
    close(found.along([triple]).values, found.values, 0.2)


def test_a_mapping_within_a_pair_is_one_argument():
    model = Model()
    source = GaussNewton(
        lambda b: model(**b), nn.functional.cross_entropy, model.parameters(), [({"x": X, "mask": MASK}, Y)]
    )
    close(source.matvec(V), expected()[0], 1e-12)


@pytest.mark.parametrize(
    ("batch", "pair", "error"),
    [
        ({"x": X, "mask": MASK}, None, "expects one of labels, .*got x, mask; pass pair="),
        ({"x": X, "labels": Y, "y": Y}, None, "pass pair="),
        ((X, MASK, Y), None, "a tuple of 3; pass pair="),
        (X, None, "got Tensor; pass pair="),
        ((X, MASK, Y), lambda b: b, "pair: .*a tuple of 3; return both"),
    ],
)
def test_what_cannot_be_known_is_a_clear_error(batch, pair, error):
    model = Model()
    source = GaussNewton(model, nn.functional.cross_entropy, model.parameters(), [batch], pair=pair)
    with pytest.raises(TypeError, match=error):
        source.gradient()


def test_pair_is_callable_and_outputs_are_one_tensor():
    model = Model(lambda logits: {"scores": logits})
    with pytest.raises(TypeError, match="pair: expected a callable"):
        GaussNewton(model, nn.functional.cross_entropy, model.parameters(), [X], pair="labels")
    source = GaussNewton(model, nn.functional.cross_entropy, model.parameters(), [BATCHES["labels"]])
    with pytest.raises(TypeError, match=r"an output with \.logits, got dict"):
        source.gradient()
