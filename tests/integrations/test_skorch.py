"""RateFree in skorch, and so in scikit-learn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, GradientNormClipping
from torch import nn

import infhess
from infhess.integrations.skorch import CurvatureCallback
from watch_cases import mlp, weights

g = np.random.default_rng(0)
X = g.normal(size=(240, 6)).astype(np.float32)
Y = X[:, :3].argmax(1).astype(np.int64)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = mlp()

    def forward(self, x):
        return self.layers(x)


def net(callbacks=(), **options):
    options = {"optimizer": infhess.RateFree, "lr": 1, "max_epochs": 3, "verbose": 0} | options
    ours = [("curvature", CurvatureCallback())]
    return NeuralNetClassifier(
        Classifier, criterion=nn.CrossEntropyLoss, batch_size=32, callbacks=[*ours, *callbacks], **options
    )


def averaged(found):
    return torch.cat([own["averaged"].flatten() for own in found.optimizer_.state.values()])


def test_predictions_and_validation_are_of_the_averaged_weights():
    found = net().fit(X, Y)
    assert torch.equal(weights(found.module_), averaged(found))
    before = found.history[-1]["valid_loss"]
    _, held_out = found.get_split_datasets(X, Y)
    x, y = (torch.as_tensor(np.stack(column)) for column in zip(*held_out))
    there = nn.functional.cross_entropy(found.module_.eval()(x), y)
    assert before == pytest.approx(there.item(), rel=1e-5)
    assert found.history[-1]["learning_rate"] == float(found.optimizer_.rate)
    assert found.history[-1]["learning_rate_std"] > 0


def test_training_goes_on_where_it_was():
    twice, once = net(max_epochs=2).fit(X, Y), net(max_epochs=4)
    twice.partial_fit(X, Y)
    once.fit(X, Y)
    assert torch.equal(weights(twice.module_), weights(once.module_))


def test_a_default_rate_is_said_once():
    with pytest.warns(UserWarning, match=r"lr=0.01 multiplies") as seen:
        NeuralNetClassifier(Classifier, optimizer=infhess.RateFree, max_epochs=2, verbose=0).fit(X, Y)
    assert len(seen) == 1


def test_clipping_and_preconditioned():
    clipped = (net([("clip", GradientNormClipping(value))]).fit(X, Y) for value in (1e-3, 1e-4))
    rates = [float(found.optimizer_.rate) for found in clipped]
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)
    make = lambda params, lr: infhess.Preconditioned(torch.optim.SGD(params, lr=lr), blocks="layer")  # noqa: E731
    assert net(optimizer=make).fit(X, Y).optimizer_.report.step > 0


def test_checkpoints_hold_what_was_validated(tmp_path):
    keep = Checkpoint(dirname=tmp_path, monitor=None)
    found = net([("keep", keep), ("stop", EarlyStopping(patience=3))]).fit(X, Y)
    there = net().initialize()
    there.load_params(checkpoint=keep)
    assert torch.equal(weights(there.module_), averaged(found))
    there.partial_fit(X, Y)
    found.partial_fit(X, Y)
    assert torch.equal(weights(there.module_), weights(found.module_))


def test_scikit_learn():
    search = GridSearchCV(net(max_epochs=2), {"optimizer__weight_decay": [0.0, 0.1]}, cv=2)
    search.fit(X, Y)
    pipe = make_pipeline(StandardScaler(), net(max_epochs=10)).fit(X, Y)
    assert pipe.score(X, Y) > 0.6
    found = pickle.loads(pickle.dumps(pipe[-1]))
    assert torch.equal(weights(found.module_), weights(pipe[-1].module_))
