"""Lightning's `training_step` on its own: the loss of a batch, without logging and without updating metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric

from infhess.integrations.sharpness import sharpness
from infhess.integrations.training_run import Row, Run

COUNTS = ("_update_count", "_computed", "_forward_cache")  # what torchmetrics keeps besides a metric's state
LOGS = ("log", "log_dict")


def loss_of(trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int = 0) -> Tensor:
    """The loss that `training_step` returns for a batch."""
    counted = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)  # as Lightning calls it
    with silent(module), trainer.precision_plugin.train_step_context():
        out = module.training_step(batch, batch_idx) if counted else module.training_step(batch)
    return out["loss"] if isinstance(out, dict) else out  # type: ignore[return-value]


@contextmanager
def silent(module: LightningModule) -> Iterator[None]:
    """Within the context, `self.log` and `self.log_dict` do nothing; metrics are restored afterwards."""
    metrics = [m for m in module.modules() if isinstance(m, Metric)]
    counted = [{name: deepcopy(vars(m)[name]) for name in (*m.metric_state, *COUNTS)} for m in metrics]
    kept = {name: vars(module)[name] for name in LOGS if name in vars(module)}
    vars(module).update(dict.fromkeys(LOGS, lambda *args, **kwargs: None))
    try:
        yield
    finally:
        for name in LOGS:
            del vars(module)[name]
        vars(module).update(kept)
        for metric, before in zip(metrics, counted):
            vars(metric).update(before)


def run_of(trainer: Trainer, module: LightningModule, every: int, k: int, validation: bool) -> Run:
    """A run of `fit`; sharpness is measured on the first validation set, or on the training set."""

    def loss(batch: Any) -> Tensor:
        return loss_of(trainer, module, trainer.strategy.batch_to_device(batch))

    def sharp() -> Row:
        loaders: Any = trainer.val_dataloaders if validation else trainer.train_dataloader
        loader = loaders[0] if isinstance(loaders, list | tuple) else loaders
        return sharpness(loss, module.parameters(), loader, loader.batch_size, k, step=trainer.global_step)

    again, kept = partial(silent, module), lambda batch: loss_of(trainer, module, *batch)
    return Run(lambda: trainer.optimizers, model=module, loss=kept, again=again, sharpness=sharp, every=every)
