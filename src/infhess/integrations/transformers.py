"""Transformers: forward and backward of `Trainer` watched, averaged weights in evaluation and checkpoints, rows in its logs."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from infhess.integrations.sharpness import sharpness
from infhess.integrations.training_run import Row, Run, used_rates

REMEDY = "pass TrainingArguments(lr_scheduler_type='constant')"


class CurvatureCallback(TrainerCallback):
    """Drives `RateFree` and `Preconditioned` in a `Trainer`.

    `Trainer(…, optimizers=(infhess.RateFree(model.parameters()), None), callbacks=[CurvatureCallback()])` with
    `TrainingArguments(lr_scheduler_type="constant")`; examples/transformers_trainer.py is a whole script. Gradient
    accumulation, clipping, bf16, gradient checkpointing and `torch_compile` work as they do with any optimizer. What is
    evaluated and saved are the averaged weights, and after training they stand in the model.

    Logs have the learning rate in use as `learning_rate`, and with its uncertainty as `curvature/rate`. Reporters that are to
    see it come after this callback: `report_to="none"` and `callbacks=[CurvatureCallback(), TensorBoardCallback()]`;
    `log_history` has it always.

    Args:
        every: log sharpness, the `k` largest eigenvalues of the Hessian with intervals, every so many steps; 0 for never.
        k: how many.

    >>> import transformers
    >>> isinstance(CurvatureCallback(every=500), transformers.TrainerCallback)
    True

    """

    def __init__(self, *, every: int = 0, k: int = 1) -> None:
        self.every, self.k = every, k
        self._run, self._row = Run(list), Row()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A new run."""
        model, loader, size = given["model"], given["train_dataloader"], args.per_device_train_batch_size
        loss = lambda batch: model(**{name: x.to(model.device) for name, x in batch.items()}).loss  # noqa: E731
        sharp = lambda: sharpness(loss, model.parameters(), loader, size, self.k, step=state.global_step)  # noqa: E731
        self._run, self._row = Run(lambda: [given["optimizer"]], sharpness=sharp, every=self.every), Row()
        check(self._run, given["optimizer"], given["lr_scheduler"], state.max_steps)

    def on_step_begin(self, *event: Any, **given: Any) -> None:
        """The weights that train, and the first micro-batch of a step."""
        self._run.train()
        self._run.watch()

    def on_substep_end(self, *event: Any, **given: Any) -> None:
        """One micro-batch is done, the next begins."""
        self._run.watched()
        self._run.watch()

    def on_pre_optimizer_step(self, *event: Any, **given: Any) -> None:
        """All gradients are there, clipped."""
        self._run.watched()

    def on_optimizer_step(self, *event: Any, **given: Any) -> None:
        """The learning rate of this step, before the scheduler goes on."""
        for opt in self._run.averaging:
            self._row["learning_rate"] = used_rates(opt)[0]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Rows for the next log; the averaged weights for a checkpoint, and where training ends."""
        self._row |= self._run.stepped(state.global_step)
        if control.should_save or control.should_training_stop:
            self._run.eval()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, *event: Any, **given: Any) -> None:
        """The averaged weights stay; where Trainer has put the best ones in, these."""
        self._run.drop()
        if not args.load_best_model_at_end:
            self._run.eval()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """What is new, beside the training loss."""
        if "loss" in given["logs"]:
            given["logs"].update(self._row)
            state.log_history[-1].update(self._row)
            self._row = Row()


def check(run: Run, optimizer: Any, scheduler: Any, steps: int) -> None:
    """Refuse other optimizers; say where a schedule ends below where it began."""
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
