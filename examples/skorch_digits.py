"""skorch, and by it scikit-learn: pass `optimizer=infhess.RateFree` and lr=1."""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from skorch import NeuralNetClassifier
from torch import nn

import infhess
from infhess.integrations.skorch import CurvatureCallback

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    criterion=nn.CrossEntropyLoss,
    optimizer=infhess.RateFree,
    lr=1,  # skorch's own default of .01 would multiply the learning rate: a warning says so
    max_epochs=EPOCHS,
    batch_size=64,
    callbacks=[
        CurvatureCallback()
    ],  # validation and predictions by the averaged weights, the learning rate in the history
    verbose=0,
)
pipe = make_pipeline(MinMaxScaler(), net)
scores = cross_val_score(pipe, x.astype(np.float32), y.astype(np.int64), cv=3)
pipe.fit(x.astype(np.float32), y.astype(np.int64))
print(f"accuracy {scores.mean():.3f}")
print(f"learning rate {net.history[-1]['learning_rate']:.2g} ± {net.history[-1]['learning_rate_std']:.1g}")
