"""Transformers: forward and backward of `Trainer` watched, averaged weights in evaluation and checkpoints, rows in its logs."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from infhess.integrations.events import Row, Rows, Watching, ours, sharpness
from infhess.optim import RateFree


class CurvatureCallback(TrainerCallback):
    """Drives `RateFree` and `Preconditioned` in a `Trainer`.

    `Trainer(…, optimizers=(infhess.RateFree(model.parameters()), None), callbacks=[CurvatureCallback()])` with
    `TrainingArguments(lr_scheduler_type="constant")`; examples/transformers_trainer.py is a whole script. Gradient
    accumulation, clipping, bf16, gradient checkpointing and `torch_compile` work as they do with any optimizer. What is
    evaluated and saved are the averaged weights, and after training they stand in the model.

    Logs have the learning rate with its uncertainty. Reporters that are to see it come after this callback:
    `report_to="none"` and `callbacks=[CurvatureCallback(), TensorBoardCallback()]`; `log_history` has it always.

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

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A schedule that ends below where it began is said."""
        self._watching, self._rows, self._row = Watching(), Rows(), Row()
        scheduler = kwargs["lr_scheduler"]
        if not list(ours([kwargs["optimizer"]])):
            raise TypeError(
                "CurvatureCallback: expected a RateFree or Preconditioned optimizer, got "
                f"{type(kwargs['optimizer']).__name__}; pass Trainer(optimizers=(infhess.RateFree(model.parameters()), None))"
            )
        if isinstance(scheduler, LambdaLR) and scheduler.lr_lambdas[0](state.max_steps) < 1:
            warnings.warn(
                "the learning-rate schedule goes down to "
                f"{scheduler.lr_lambdas[0](state.max_steps):.2g} of where it begins, on top of what curvature says and of "
                "averaged weights: that costs accuracy; pass TrainingArguments(lr_scheduler_type='constant')",
                stacklevel=2,
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The weights that train, and the first micro-batch of a step."""
        self._average(kwargs["optimizer"], False)
        self._watching.drop()
        self._watching.begin(ours([kwargs["optimizer"]]))

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """One micro-batch is done, the next begins."""
        self._watching.end()
        self._watching.begin(ours([kwargs["optimizer"]]))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """All gradients are there, clipped."""
        self._watching.end()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Rows for the next log, before the scheduler goes on."""
        optimizers = list(ours([kwargs["optimizer"]]))
        self._row |= self._rows.new(optimizers) | self._rows.used(optimizers)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Sharpness; the averaged weights for a checkpoint and where training ends."""
        if self.every and state.global_step % self.every == 0:
            self._row |= self._sharpness(args, state, kwargs["model"], kwargs["train_dataloader"])
        if control.should_save or control.should_training_stop:
            self._average(kwargs["optimizer"], True)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The averaged weights for a checkpoint of the epoch."""
        self._watching.drop()
        if control.should_save or control.should_training_stop:
            self._average(kwargs["optimizer"], True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The averaged weights stay; where Trainer has put the best ones in, these."""
        self._watching.drop()
        if not args.load_best_model_at_end:
            self._average(kwargs["optimizer"], True)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """What is new, beside the training loss."""
        if "loss" in kwargs["logs"]:
            kwargs["logs"].update(self._row)
            state.log_history[-1].update(self._row)
            self._row = Row()

    def _average(self, optimizer: Any, averaged: bool) -> None:
        for opt in ours([optimizer]):
            if isinstance(opt, RateFree):
                opt.eval() if averaged else opt.train()

    def _sharpness(self, args: TrainingArguments, state: TrainerState, model: Any, loader: Any) -> Row:
        def loss(batch: Any) -> Any:
            return model(**{name: value.to(model.device) for name, value in batch.items()}).loss

        size = args.per_device_train_batch_size
        return sharpness(loss, model.parameters(), loader, size, self.k, step=state.global_step)
