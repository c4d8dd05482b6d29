"""Lightning: averaged weights in validation, test and checkpoints, micro-batches watched, rows for its loggers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from torch import Tensor

from infhess.integrations.events import Replaced, Rows, Watching, averaging, showing_rates
from infhess.integrations.lightning_step import loss_of, silent
from infhess.integrations.sharpness import sharpness
from infhess.integrations.weights import Weights

SAVED = "infhess"  # of a checkpoint: BatchNorm's running statistics of training
MONITORED = ("on_train_batch_start", "on_train_epoch_start")  # where LearningRateMonitor reads `lr`


class CurvatureCallback(Callback):
    """`Trainer(callbacks=[CurvatureCallback()])`; `configure_optimizers` returns `infhess.RateFree(self.parameters())`.

    The averaged weights stand in the model whenever no training batch runs: in validation, in checkpoints and after `fit`,
    so that `ModelCheckpoint` saves what was validated. A run resumes bit for bit. With `accumulate_grad_batches` all
    micro-batches of a step are watched. Loggers get the learning rate with its uncertainty, `curvature/rate`, at each
    curvature probe; and `LearningRateMonitor` shows the learning rate in use. examples/lightning_module.py is a whole script.

    In a model with BatchNorm, `training_step` runs on the last 16 batches once more, for the statistics at the averaged
    weights; what it logs then goes nowhere.

    Args:
        every: log sharpness, the `k` largest eigenvalues of the Hessian with intervals, every so many steps; 0 for never.
        k: how many.
        validation: on the first validation set instead of the training set.

    >>> import lightning.pytorch
    >>> isinstance(CurvatureCallback(every=500), lightning.pytorch.Callback)
    True

    """

    def __init__(self, *, every: int = 0, k: int = 1, validation: bool = False) -> None:
        self.every, self.k, self.validation = every, k, validation
        self._watching, self._replaced = Watching(), Replaced()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A new run; methods that callbacks do not reach run within what is needed there."""
        if stage == "fit":
            self._watching, self._rows, self._step = Watching(), Rows(), 0
            loss = partial(loss_of, trainer, pl_module)
            self._weights = Weights(pl_module, lambda: trainer.optimizers, lambda kept: loss(*kept))
            self._replaced.around(pl_module, ["on_save_checkpoint"], partial(self._saving, trainer))
            for monitor in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(monitor, LearningRateMonitor):
                    self._replaced.around(monitor, MONITORED, lambda *_, **__: showing_rates(trainer.optimizers))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """As it was."""
        self._replaced.undo()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where curvature is a difference of gradients the closure runs again, and logs nothing then."""
        for opt in averaging(trainer.optimizers):
            opt.around_second_run = partial(silent, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The weights that train; micro-batches are watched, and a batch that is a step by itself is by its closure."""
        self._weights.train((batch, batch_idx))
        steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if pl_module.automatic_optimization and (self._watching.micro_batches or not steps):
            self._watching.begin(trainer.optimizers)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A micro-batch is done; the step comes after this."""
        self._watching.end()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a step: rows for loggers, which count steps from 0."""
        self._watching.drop()
        if trainer.global_step != self._step:
            self._step, self._watching.micro_batches = trainer.global_step, 0
            row = self._rows.new(trainer.optimizers)
            if self.every and self._step % self.every == 0:
                row |= self._sharpness(trainer, pl_module)
            for logger in trainer.loggers if row else ():
                logger.log_metrics(row, step=self._step - 1)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Nothing stays open."""
        self._watching.drop()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The averaged weights, until the next training batch."""
        if trainer.state.fn == "fit":
            self._weights.eval()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The averaged weights stay in the model."""
        self._weights.eval()

    @contextmanager
    def _saving(self, trainer: Trainer, checkpoint: dict[str, Any]) -> Iterator[None]:
        """The averaged weights in the place of those that train, also where weights alone are saved."""
        with self._weights.averaged() as running:
            weights = trainer.strategy.lightning_module_state_dict().items()
            checkpoint["state_dict"] = {name: w.clone() if isinstance(w, Tensor) else w for name, w in weights}
            if "optimizer_states" in checkpoint:
                checkpoint["optimizer_states"] = [trainer.strategy.optimizer_state(opt) for opt in trainer.optimizers]
        checkpoint |= {SAVED: running} if running else {}
        yield

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """BatchNorm's statistics of training, for the first batch."""
        self._weights.running = dict(checkpoint.get(SAVED, {}))

    def _sharpness(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        loaders: Any = trainer.val_dataloaders if self.validation else trainer.train_dataloader
        loader = loaders[0] if isinstance(loaders, list | tuple) else loaders
        loss = lambda batch: loss_of(trainer, pl_module, trainer.strategy.batch_to_device(batch))  # noqa: E731
        return sharpness(loss, pl_module.parameters(), loader, loader.batch_size, self.k, step=trainer.global_step)
