"""skorch, and through it scikit-learn: averaged weights in validation and prediction, the learning rate in the history."""

from __future__ import annotations

from typing import Any

from skorch.callbacks import Callback

from infhess.integrations.training_run import Run, used_rates


class CurvatureCallback(Callback):  # type: ignore[misc]
    """Validation, scores, checkpoints and predictions use the averaged weights; `history` has the learning rate.

    `NeuralNetClassifier(module, optimizer=infhess.RateFree, lr=1, callbacks=[CurvatureCallback()])`; examples/skorch_digits.py
    is a full script. skorch calls `optimizer.step(closure)`: nothing else is needed. BatchNorm keeps its training statistics.

    >>> from skorch import NeuralNetClassifier
    >>> import infhess
    >>> net = NeuralNetClassifier(None, optimizer=infhess.RateFree, lr=1, callbacks=[CurvatureCallback()])
    """

    def on_batch_begin(self, net: Any, batch: Any = None, training: bool | None = None, **kwargs: Any) -> None:
        """The training weights for a training batch, the averaged ones for any other."""
        _run(net).train() if training else _run(net).eval()

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Record the learning rate with its uncertainty."""
        _run(net).eval()
        for opt in _run(net).averaging:
            net.history.record("learning_rate", used_rates(opt)[0])
            net.history.record("learning_rate_std", opt.rate.std)

    def on_train_end(self, net: Any, **kwargs: Any) -> None:
        """Leave the averaged weights in the model, for predictions."""
        _run(net).eval()


def _run(net: Any) -> Run:
    return Run(lambda: (getattr(net, f"{name}_") for name in net._optimizers))
