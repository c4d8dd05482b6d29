"""Transformers: forward and backward of `Trainer` watched, averaged weights in evaluation and checkpoints, rows in its logs."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from infhess.integrations.events import Row, Rows, Watching, averaging, ours, used_rates
from infhess.integrations.sharpness import sharpness

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
        self._watching, self._rows, self._row = Watching(), Rows(), Row()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A schedule that ends below where it began is said."""
        self._watching, self._rows, self._row = Watching(), Rows(), Row()
        if not ours([given["optimizer"]]):
            raise TypeError(
                "CurvatureCallback: expected a RateFree or Preconditioned optimizer, got "
                f"{type(given['optimizer']).__name__}; pass Trainer(optimizers=(infhess.RateFree(model.parameters()), None))"
            )
        scheduler = given["lr_scheduler"]
        if isinstance(scheduler, LambdaLR) and (last := scheduler.lr_lambdas[0](state.max_steps)) < 1:
            warnings.warn(
                f"the learning-rate schedule goes down to {last:.2g} of where it begins, on top of what curvature says and "
                f"of averaged weights: that costs accuracy; {REMEDY}",
                stacklevel=2,
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The weights that train, and the first micro-batch of a step."""
        for opt in averaging([given["optimizer"]]):
            opt.train()
        self._watching.begin([given["optimizer"]])

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """One micro-batch is done, the next begins."""
        self._watching.end()
        self._watching.begin([given["optimizer"]])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """All gradients are there, clipped."""
        self._watching.end()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Rows for the next log, before the scheduler goes on."""
        self._row |= self._rows.new([given["optimizer"]])
        for opt in averaging([given["optimizer"]]):
            self._row["learning_rate"] = used_rates(opt)[0]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Sharpness; the averaged weights for a checkpoint and where training ends."""
        if self.every and state.global_step % self.every == 0:
            self._row |= self._sharpness(args.per_device_train_batch_size, state.global_step, **given)
        if control.should_save or control.should_training_stop:
            _eval(given)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The averaged weights for a checkpoint of the epoch."""
        self._watching.drop()
        if control.should_save or control.should_training_stop:
            _eval(given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The averaged weights stay; where Trainer has put the best ones in, these."""
        self._watching.drop()
        if not args.load_best_model_at_end:
            _eval(given)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """What is new, beside the training loss."""
        if "loss" in given["logs"]:
            given["logs"].update(self._row)
            state.log_history[-1].update(self._row)
            self._row = Row()

    def _sharpness(self, size: int, step: int, *, model: Any, train_dataloader: Any, **given: Any) -> Row:
        def loss(batch: Any) -> Any:
            return model(**{name: value.to(model.device) for name, value in batch.items()}).loss

        return sharpness(loss, model.parameters(), train_dataloader, size, self.k, step=step)


def _eval(given: dict[str, Any]) -> None:
    for opt in averaging([given["optimizer"]]):
        opt.eval()
