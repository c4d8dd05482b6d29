"""Lightning: averaged weights in validation, test and checkpoints, micro-batches watched, rows for its loggers."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Metric

from infhess.integrations.events import Row, Rows, Watching, ours, sharpness
from infhess.optim import Preconditioned, RateFree
from infhess.optim.averaging.averaged import KEPT

COUNTS = ("_update_count", "_computed", "_forward_cache")  # what torchmetrics keeps beside a metric's state
HOOKS = ("on_save_checkpoint", "training_step")
SAVED = "infhess"  # of a checkpoint: BatchNorm's running statistics of training


class CurvatureCallback(Callback):
    """`Trainer(callbacks=[CurvatureCallback()])`; `configure_optimizers` returns `infhess.RateFree(self.parameters())`.

    The averaged weights stand in the model whenever no training batch runs: in validation, in checkpoints and after `fit`,
    so that `ModelCheckpoint` saves what was validated. A run resumes bit for bit. With `accumulate_grad_batches` all
    micro-batches of a step are watched. Loggers get the learning rate with its uncertainty: `curvature/rate` at each
    curvature probe, `lr-RateFree-used` (beside LearningRateMonitor's `lr-RateFree`, which is the factor `lr`) with each row
    of Lightning's. examples/lightning_module.py is a whole script.

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
        self._begin()

    def _begin(self) -> None:
        self._watching, self._rows, self._step, self._runs = Watching(), Rows(), 0, 0
        self._recent: deque[tuple[Any, int]] = deque(maxlen=KEPT)
        self._statistics: dict[str, Tensor] = {}  # of training, while others stand in the model

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Two hooks of the module for the time of `fit`, at places that callbacks do not reach."""
        if stage == "fit":
            self._begin()
            saves, trains = pl_module.on_save_checkpoint, pl_module.training_step

            def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:  # also where weights alone are saved
                self._save(trainer, checkpoint)
                saves(checkpoint)

            @wraps(trains)
            def training_step(*args: Any, **kwargs: Any) -> Any:
                """Where curvature is a difference of gradients the closure runs again, and logs nothing then."""
                self._runs += 1
                with _muted(pl_module) if self._runs > 1 and _ours(trainer) else nullcontext():
                    return trains(*args, **kwargs)

            vars(pl_module).update(on_save_checkpoint=on_save_checkpoint, training_step=training_step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """As it was."""
        if stage == "fit":
            for name in HOOKS:
                vars(pl_module).pop(name, None)

    # ---- a training batch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The weights that train; micro-batches are watched, and a batch that is a step by itself is by its closure."""
        self._runs = 0
        for opt in _averaging(trainer):
            opt.train()
        self._put_back(pl_module)
        if _norms(pl_module):
            self._recent.append((batch, batch_idx))
        steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if pl_module.automatic_optimization and (self._watching.micro_batches or not steps):
            self._watching.begin(_ours(trainer))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A micro-batch is done; the step comes after this."""
        self._watching.end()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a step: rows for loggers."""
        self._watching.drop()
        if trainer.global_step != self._step:
            self._step, self._watching.micro_batches = trainer.global_step, 0
            self._log(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Nothing stays open."""
        self._watching.drop()

    # ---- averaged weights

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The averaged weights, with BatchNorm's statistics for them, until the next training batch."""
        if trainer.training or trainer.state.fn == "fit":
            self._eval(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The averaged weights stay in the model."""
        self._eval(trainer, pl_module)

    def _eval(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._statistics = self._statistics or _running(pl_module)
        for opt in _averaging(trainer):
            opt.eval(*self._to_gather(trainer, pl_module))

    def _to_gather(self, trainer: Trainer, pl_module: LightningModule) -> tuple[Any, ...]:
        """A loss and batches for BatchNorm's statistics, where there are any."""
        return (lambda kept: _loss(trainer, pl_module, *kept), list(self._recent)) if self._recent else ()

    def _put_back(self, pl_module: LightningModule) -> None:
        buffers = dict(pl_module.named_buffers())
        for name, value in self._statistics.items():
            buffers[name].copy_(value)
        self._statistics = {}

    # ---- checkpoints

    def _save(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """The averaged weights in the place of those that train; and what training needs to go on from there."""
        module = trainer.lightning_module
        if statistics := self._statistics or _running(module):
            checkpoint[SAVED] = {name: value.clone() for name, value in statistics.items()}
        with ExitStack() as stack:
            for opt in _averaging(trainer):
                stack.enter_context(opt.averaged(*self._to_gather(trainer, module)))
            checkpoint["state_dict"] = {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in trainer.strategy.lightning_module_state_dict().items()
            }
            if "optimizer_states" in checkpoint:
                checkpoint["optimizer_states"] = [trainer.strategy.optimizer_state(opt) for opt in trainer.optimizers]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """BatchNorm's statistics of training, for the first batch."""
        self._statistics = dict(checkpoint.get(SAVED, {}))

    # ---- rows

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers, step = _ours(trainer), trainer.global_step
        row = self._rows.new(optimizers)
        if step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            row |= self._rows.used(optimizers)
        if self.every and step % self.every == 0:
            row |= self._sharpness(trainer, pl_module)
        for logger in trainer.loggers if row else ():
            logger.log_metrics(row, step=step - 1)  # as Lightning counts: from 0

    def _sharpness(self, trainer: Trainer, pl_module: LightningModule) -> Row:
        loaders: Any = trainer.val_dataloaders if self.validation else trainer.train_dataloader
        loader = loaders[0] if isinstance(loaders, list | tuple) else loaders

        def loss(batch: Any) -> Tensor:
            return _loss(trainer, pl_module, trainer.strategy.batch_to_device(batch), 0)

        return sharpness(loss, pl_module.parameters(), loader, loader.batch_size, self.k, step=trainer.global_step)


def _ours(trainer: Trainer) -> list[RateFree | Preconditioned]:
    return list(ours(trainer.optimizers))


def _averaging(trainer: Trainer) -> Iterator[RateFree]:
    return (opt for opt in _ours(trainer) if isinstance(opt, RateFree))


def _norms(module: LightningModule) -> dict[str, _BatchNorm]:
    found = {name: m for name, m in module.named_modules() if isinstance(m, _BatchNorm)}
    return {name: norm for name, norm in found.items() if norm.running_mean is not None}


def _running(module: LightningModule) -> dict[str, Tensor]:
    """BatchNorm's running statistics as they stand."""
    return {
        f"{name}.{key}" if name else key: value.clone()
        for name, norm in _norms(module).items()
        for key, value in norm.named_buffers(recurse=False)
    }


def _loss(trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> Tensor:
    """What `training_step` gives; nothing is logged and no metric counts it."""
    known = inspect.signature(module.training_step).parameters
    with _muted(module), trainer.precision_plugin.train_step_context():
        out = module.training_step(batch, batch_idx) if "batch_idx" in known else module.training_step(batch)
    return out["loss"] if isinstance(out, dict) else out  # type: ignore[return-value]


def _metrics(module: LightningModule) -> list[Metric]:
    return [m for m in module.modules() if isinstance(m, Metric)]


@contextmanager
def _muted(module: LightningModule) -> Iterator[None]:
    """Within: `self.log` and `self.log_dict` do nothing, and metrics are as they were afterwards."""
    metrics = [(m, {name: deepcopy(m.__dict__[name]) for name in (*m.metric_state, *COUNTS)}) for m in _metrics(module)]
    kept: dict[str, Any] = {name: vars(module)[name] for name in ("log", "log_dict") if name in vars(module)}
    vars(module).update(log=lambda *args, **kwargs: None, log_dict=lambda *args, **kwargs: None)
    try:
        yield
    finally:
        vars(module).update(kept)
        for name in {"log", "log_dict"} - set(kept):
            del vars(module)[name]
        for metric, before in metrics:
            metric.__dict__.update(before)
