"""Transformers: watches forward and backward of `Trainer`; averaged weights in evaluation and checkpoints, rows in its logs."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from infhess.integrations.sharpness import sharpness
from infhess.integrations.training_run import Row, Run, used_rates

REMEDY = "pass TrainingArguments(lr_scheduler_type='constant')"


class CurvatureCallback(TrainerCallback):
    """Runs `RateFree` and `Preconditioned` in a `Trainer`.

    `Trainer(…, optimizers=(infhess.RateFree(model.parameters()), None), callbacks=[CurvatureCallback()])` with
    `TrainingArguments(lr_scheduler_type="constant")`; examples/transformers_trainer.py is a full script. Gradient
    accumulation, clipping, bf16, gradient checkpointing and `torch_compile` work as with any optimizer. The averaged weights
    are evaluated and saved, and the model holds them after training.

    Logs have the learning rate in use as `learning_rate`, and with its uncertainty as `curvature/rate`. Reporters that should
    see it have to come after this callback: `report_to="none"` and `callbacks=[CurvatureCallback(), TensorBoardCallback()]`;
    `log_history` always has it.

    Args:
        every: log sharpness, the `k` largest eigenvalues of the Hessian with intervals, every this many steps; 0: never.
        k: how many eigenvalues.

    >>> import transformers
    >>> isinstance(CurvatureCallback(every=500), transformers.TrainerCallback)
    True

    """

    def __init__(self, *, every: int = 0, k: int = 1) -> None:
        self.every, self.k = every, k
        self._run, self._row = Run(list), Row()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start a run."""
        model, loader, size = given["model"], given["train_dataloader"], args.per_device_train_batch_size
        loss = lambda batch: model(**{name: x.to(model.device) for name, x in batch.items()}).loss  # noqa: E731
        sharp = lambda: sharpness(loss, model.parameters(), loader, size, self.k, step=state.global_step)  # noqa: E731
        self._run, self._row = Run(lambda: [given["optimizer"]], sharpness=sharp, every=self.every), Row()
        check(self._run, given["optimizer"], given["lr_scheduler"], state.max_steps)

    def on_step_begin(self, *event: Any, **given: Any) -> None:
        """Put in the training weights, and watch the first micro-batch of a step."""
        self._run.train()
        self._run.watch()

    def on_substep_end(self, *event: Any, **given: Any) -> None:
        """A micro-batch is complete; watch the next one."""
        self._run.watched()
        self._run.watch()

    def on_pre_optimizer_step(self, *event: Any, **given: Any) -> None:
        """All gradients are complete, and clipped."""
        self._run.watched()

    def on_optimizer_step(self, *event: Any, **given: Any) -> None:
        """Record the learning rate of this step, before the scheduler changes it."""
        for opt in self._run.averaging:
            self._row["learning_rate"] = used_rates(opt)[0]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Rows for the next log; the averaged weights for a checkpoint, and at the end of training."""
        self._row |= self._run.stepped(state.global_step)
        if control.should_save or control.should_training_stop:
            self._run.eval()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, *event: Any, **given: Any) -> None:
        """Leave the averaged weights in the model, or the best ones if Trainer has loaded these."""
        self._run.drop()
        if not args.load_best_model_at_end:
            self._run.eval()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Add new rows to the log, next to the training loss."""
        if "loss" in given["logs"]:
            given["logs"].update(self._row)
            state.log_history[-1].update(self._row)
            self._row = Row()


def check(run: Run, optimizer: Any, scheduler: Any, steps: int) -> None:
    """Refuse other optimizers; warn if a schedule ends below its start."""
    if not run.ours:
        raise TypeError(
            f"CurvatureCallback: expected a RateFree or Preconditioned optimizer, got {type(optimizer).__name__}; "
            "pass Trainer(optimizers=(infhess.RateFree(model.parameters()), None))"
        )
    if isinstance(scheduler, LambdaLR) and (last := scheduler.lr_lambdas[0](steps)) < 1:
        warnings.warn(
            f"the learning-rate schedule goes down to {last:.2g} of where it begins, on top of what curvature says and "
            f"of averaged weights: that costs accuracy; {REMEDY}",
            stacklevel=3,
        )
