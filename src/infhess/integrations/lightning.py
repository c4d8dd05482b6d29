"""Lightning: averaged weights in validation, test and checkpoints, watched micro-batches, and rows for loggers."""

from __future__ import annotations

from contextlib import ContextDecorator, ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor

from infhess.integrations.lightning_step import run_of
from infhess.integrations.training_run import Run


class CurvatureCallback(Callback):
    """`Trainer(callbacks=[CurvatureCallback()])`; `configure_optimizers` returns `infhess.RateFree(self.parameters())`.

    The model holds the averaged weights whenever no training batch runs: in validation, in checkpoints and after `fit`, so
    that `ModelCheckpoint` saves what was validated. A run resumes bit for bit. With `accumulate_grad_batches` all micro-batches
    of a step are watched. Loggers get the learning rate with its uncertainty, `curvature/rate`, at each curvature probe, and
    `LearningRateMonitor` shows the learning rate in use. examples/lightning_module.py is a full script.

    In a model with BatchNorm, `training_step` runs again on the last 16 batches, for the statistics at the averaged weights;
    what it logs then is discarded.

    Args:
        every: log sharpness, the `k` largest eigenvalues of the Hessian with intervals, every this many steps; 0: never.
        k: how many eigenvalues.
        validation: measure it on the first validation set instead of the training set.

    >>> import lightning.pytorch
    >>> isinstance(CurvatureCallback(every=500), lightning.pytorch.Callback)
    True

    """

    def __init__(self, *, every: int = 0, k: int = 1, validation: bool = False) -> None:
        self.every, self.k, self.validation = every, k, validation
        self._run, self._open = Run(list), ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start a run, in which checkpoints hold the averaged weights and monitors show the learning rate in use."""
        if stage == "fit":
            self._open.close()  # left open if an error ended the run before
            self._run = run_of(trainer, pl_module, self.every, self.k, self.validation)
            _enter(self._open, self._run.averaged(), trainer, "save_checkpoint")
            for monitor in (m for m in trainer.callbacks if isinstance(m, LearningRateMonitor)):  # type: ignore[attr-defined]
                _enter(self._open, self._run.showing_rates(), monitor, "on_train_batch_start", "on_train_epoch_start")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Undo `setup`."""
        self._open.close()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Restore the training weights. Micro-batches are watched here; a batch that is a whole step, by its closure."""
        self._run.train((batch, batch_idx))
        steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if pl_module.automatic_optimization and (self._run.micro_batches or not steps):
            self._run.watch()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A micro-batch is complete; the step comes after this."""
        self._run.watched()

    def on_before_optimizer_step(self, *event: Any) -> None:
        """Close an open pass: `training_step` may have skipped the last micro-batch."""
        self._run.drop()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *event: Any) -> None:
        """After a step: rows for loggers, which count steps from 0."""
        row = self._run.stepped(trainer.global_step)
        for logger in trainer.loggers if row else ():
            logger.log_metrics(row, step=trainer.global_step - 1)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close an open pass."""
        self._run.drop()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Use the averaged weights until the next training batch."""
        if trainer.state.fn == "fit":
            self._run.eval()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the averaged weights in the model."""
        self._run.eval()

    def state_dict(self) -> dict[str, Any]:
        """BatchNorm's training statistics, for the first batch after a checkpoint of the averaged weights."""
        return dict(self._run.running)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore these statistics."""
        self._run.running = dict(state_dict)


def _enter(stack: ExitStack, context: ContextDecorator, owner: Any, *names: str) -> None:
    """Run these methods of an object in a context until the stack is closed."""
    for name in names:
        setattr(owner, name, context(getattr(owner, name)))
        stack.callback(delattr, owner, name)
