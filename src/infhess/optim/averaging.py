"""Weights that train and their average: swapped in and out of a model, and kept in checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from infhess._precision import full_precision
from infhess.curvature.batches import Batch
from infhess.curvature.flat import real
from infhess.optim.norms import Recent, Statistics, norms_in
from infhess.optim.rate import Following

# Batches kept for the statistics of BatchNorm at the averaged weights, where there are such layers.
KEPT = 16
NUMBERS = "numbers"
TENSORS = ("z", "averaged", "exp_avg_sq")

Loss = Callable[[Batch], Tensor]
Group = dict[str, Any]


class Averaging(torch.optim.Optimizer):
    """z moves, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x (Defazio et al. 2024).

    z and x are state of their own, so that checkpoints do not depend on which weights stand in the model.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._following, self._inside = Following(), False
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        """What is not in a checkpoint: batches for BatchNorm's statistics, and which layers these are of."""
        self._recent: deque[Recent] = deque(maxlen=KEPT)
        self._norms: list[Any] | None = None

    def add_param_group(self, param_group: Group) -> None:
        """One more group; its average begins with the next step."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p] = self._fresh(p)

    def _fresh(self, p: Tensor) -> dict[str, Tensor]:
        """The state of a parameter that has not moved: z and the average are where it is."""
        w = real(p.detach())
        wide = w.to(torch.promote_types(w.dtype, torch.float32), copy=True)
        tensors = {"z": wide, "averaged": wide.clone(), "exp_avg_sq": torch.zeros_like(wide)}
        begun = torch.tensor(self._following.weight, dtype=torch.float64)
        return {"step": torch.zeros(()), **tensors, "begun": begun, NUMBERS: self._following.tensor()}

    # ---- the averaged weights

    @contextmanager
    @full_precision
    def averaged(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> Iterator[None]:
        """Within: the averaged weights stand in the model. After: those that train, bit for bit.

        The running statistics of BatchNorm are those of the averaged weights within, gathered on the last batches that were
        observed, or on `batches` with their `loss`: pass these where none was observed since a checkpoint was loaded.
        """
        if self._inside:
            yield
            return
        restore = self._put_averaged(loss, batches)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            restore()

    @full_precision
    def finish(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> None:
        """Leave the averaged weights in the model, with BatchNorm's statistics for them; training would go on from there."""
        self._outside("finish")
        self._put_averaged(loss, batches)
        self._recent.clear()
        for p in self._params():
            self.state[p]["z"].copy_(self.state[p]["averaged"])

    @full_precision
    def resume(self) -> None:
        """Put the weights that train into the model: after a checkpoint in which its file holds the averaged ones."""
        self._outside("resume")
        for group in self.param_groups:
            for p in group["params"]:
                own = self.state[p]
                if own["step"]:
                    real(p.detach()).copy_(torch.lerp(own["averaged"], own["z"], 1 - group["betas"][0]))

    def _put_averaged(self, loss: Loss | None, batches: Iterable[Batch]) -> Callable[[], None]:
        """The averaged weights and their statistics into the model; returns what undoes it. Where it fails nothing changes."""
        recent = self._to_gather(loss, batches)
        statistics, trained = Statistics(self._norms or []), [p.detach().clone() for p in self._params()]

        def restore() -> None:
            statistics.put_back()
            for p, w in zip(self._params(), trained):
                p.detach().copy_(w)

        try:
            for p in self._params():
                if self.state[p]["step"]:
                    real(p.detach()).copy_(self.state[p]["averaged"])
            statistics.gather(recent, self._params())
        except BaseException:
            restore()
            raise
        return restore

    def _to_gather(self, loss: Loss | None, batches: Iterable[Batch]) -> Iterable[Recent]:
        """Batches for BatchNorm's statistics: the given ones, or the last that were observed."""
        if loss is not None:
            given = iter(batches)
            first = next(given, None)
            if first is None:
                raise ValueError("batches: expected at least one batch for BatchNorm's statistics, got none")
            self._norms = self._norms or norms_in(loss, first, self._params())
            return ((loss, batch) for batch in chain([first], given))
        if not isinstance(batches, tuple) or batches:
            raise ValueError("batches: expected a loss with them, as in averaged(loss, batches)")
        return list(self._recent)

    def _outside(self, name: str) -> None:
        if self._inside:
            raise RuntimeError(
                f"{type(self).__name__}.{name}: the averaged weights stand in the model; leave averaged() first"
            )

    # ---- checkpoints

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _publish(self) -> None:
        numbers = self._following.tensor()
        for p in self._params():
            self.state[p][NUMBERS] = numbers

    def state_dict(self) -> dict[str, Any]:
        """For each parameter z, the averaged weights, squares of gradients, and the filter of the rate."""
        self._publish()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a checkpoint, in the precision that it was saved in; where it does not fit, nothing changes."""
        handle = self.register_load_state_dict_pre_hook(_check)  # after the user's own hooks
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._incoming: list[dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_following": self._following}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        incoming = self.__dict__.get("_incoming")
        if "_recent" not in self.__dict__:  # from a pickle
            self._inside = False
            self._forget()
        if incoming is not None:
            self._adopt(incoming)

    def _adopt(self, entries: list[dict[str, Any]]) -> None:
        """Copies of what a checkpoint holds, which torch has cast to the dtype of the parameters or shares with its owner."""
        self._following = Following.of(next(given[NUMBERS] for given in entries if given))
        for p, given in zip(self._params(), entries):
            self.state[p] = self._fresh(p)
            wide = self.state[p]["z"].dtype
            for key in TENSORS if given else ():
                self.state[p][key] = given[key].detach().to(p.device, wide, copy=True)
            for key in ("step", "begun") if given else ():
                self.state[p][key] = torch.as_tensor(given[key]).detach().to(self.state[p][key], copy=True)
        self._forget()


def _check(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Whether a checkpoint is of this optimizer and for parameters of these shapes; frozen ones need no entry."""
    assert isinstance(optimizer, Averaging)
    names = [name for group in state_dict["param_groups"] for name in group["params"]]
    entries = [state_dict["state"].get(name, {}) for name in names]
    for name, p, given in zip(names, optimizer._params(), entries):
        missing = [key for key in (*TENSORS, "step", "begun", NUMBERS) if key not in given]
        if missing and (given or p.requires_grad or not any(entries)):
            raise ValueError(
                f"state_dict: parameter {name} lacks {', '.join(missing)}; is it a checkpoint of RateFree?"
            )
        expected, got = tuple(real(p.detach()).shape), tuple(given["z"].shape) if given else ()
        if given and got != expected:
            raise ValueError(f"state_dict: parameter {name} was saved with shape {got}, expected {expected}")
        if given:
            Following.of(given[NUMBERS])
    optimizer._incoming = entries
