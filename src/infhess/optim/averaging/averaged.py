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
from infhess.optim import sharded
from infhess.optim.averaging.batch_norm import Recent, Statistics, kept, norms_in
from infhess.optim.checkpoint import Checkpointed
from infhess.optim.rate.prober import Prober
from infhess.optim.rate.rate_state import RateState
from infhess.optim.scalings import SCALINGS
from infhess.optim.scalings.gradient_scaling import GradientScaling
from infhess.optim.scalings.scaler import Scaler
from infhess.optim.stepping import WeightSize

# Batches kept for the statistics of BatchNorm at the averaged weights, where there are such layers.
KEPT = 16
NUMBERS = "numbers"
ITERATES = ("z", "averaged")

Loss = Callable[[Batch], Tensor]
Group = dict[str, Any]


class Averaging(Checkpointed):
    """z moves, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x (Defazio et al. 2024).

    z and x are state of their own, so that checkpoints do not depend on which weights stand in the model. A parameter has
    state from the first time that it trains: what is frozen has none.
    """

    _prober: Prober
    _restore: Callable[[], None] | None  # what ends eval()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._begin_outside()
        super().__init__(params, defaults)

    @property
    def _scaling(self) -> GradientScaling:
        return SCALINGS[self.defaults.get("scaling", "diagonal")]

    @property
    def _scaler(self) -> Scaler:
        return Scaler(self._scaling, self.state, any_sharded=self._sharded)

    @property
    def _rate_state(self) -> RateState:
        return self._prober.state

    def _take_scalars(self, numbers: Tensor) -> None:
        """Those of a checkpoint."""
        self._prober, self._size = Prober(self._scaling.rule, RateState.of(numbers)), WeightSize()

    def _begin_outside(self) -> None:
        """The weights that train stand in the model."""
        self._inside, self._restore, self._size = False, None, WeightSize()
        self._reset_batches()

    def _reset_batches(self) -> None:
        """What is not in a checkpoint: batches for BatchNorm's statistics, and which layers these are of."""
        self._recent: deque[Recent] = deque(maxlen=KEPT)
        self._norms: list[Any] | None = None

    def add_param_group(self, param_group: Group) -> None:
        """One more group; its average begins with the next step."""
        super().add_param_group(param_group)
        self._find_sharded()
        for p in self.param_groups[-1]["params"]:
            if p.requires_grad:
                self.state[p] = self._fresh(p)

    def _fresh(self, p: Tensor) -> dict[str, Tensor]:
        """The state of a parameter that has not moved: z and the average are where it is."""
        w = real(p.detach())
        z = w.to(torch.promote_types(w.dtype, torch.float32), copy=True)
        tensors = {"z": z, "averaged": z.clone(), **self._scaler.fresh(z)}
        begun = torch.tensor(self._rate_state.weight, dtype=torch.float64)
        return {"step": torch.zeros(()), **tensors, "begun": begun, NUMBERS: self._rate_state.tensor()}

    def _owns(self, params: list[Tensor]) -> tuple[list[dict[str, Any]], list[float]]:
        """The state of each parameter and its steps so far; the average of one that is new begins where it is now."""
        ages = [float(self.state[p].get("step", 0.0)) for p in params]
        for p, age in zip(params, ages):
            if not age:
                self.state[p] = self._fresh(p)
        return [self.state[p] for p in params], ages

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
    def eval(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> None:
        """The averaged weights stand in the model from here on, until `train()`; as `schedulefree` has it."""
        if not self._inside:
            self.train()  # after a checkpoint that was saved in eval(): what comes back are the weights that train
            self._restore = self._put_averaged(loss, batches)
            self._inside = True

    @full_precision
    def train(self) -> None:
        """The weights that train stand in the model again, also after a checkpoint that was saved in `eval()`."""
        if self._restore is not None:
            self._restore()
            self._inside, self._restore = False, None
        elif not self._inside and self._rate_state.averaged:
            self.resume()

    @full_precision
    def finish(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> None:
        """Leave the averaged weights in the model, with BatchNorm's statistics for them; training would go on from there."""
        self._outside("finish")
        self._put_averaged(loss, batches)
        self._recent.clear()
        for _, own in self._trained():
            own["z"].copy_(own["averaged"])

    @full_precision
    def resume(self) -> None:
        """Put the weights that train into the model: after a checkpoint in which its file holds the averaged ones."""
        self._outside("resume")
        for group in self.param_groups:
            for p in group["params"]:
                own = self.state.get(p, {})
                if own.get("step"):
                    real(p.detach()).copy_(torch.lerp(own["averaged"], own["z"], 1 - group["betas"][0]))
        self._rate_state.averaged = 0.0

    def _trained(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Parameters that have moved, with their state."""
        return [(p, own) for p in self._params() if (own := self.state.get(p, {})).get("step")]

    def _put_averaged(self, loss: Loss | None, batches: Iterable[Batch]) -> Callable[[], None]:
        """The averaged weights and their statistics into the model; returns what undoes it. Where it fails nothing changes.

        By `.data`: autograd is not told, since the weights come back bit for bit, and with them the graph of a micro-batch that
        was watched before an evaluation holds.
        """
        recent, trained = self._to_gather(loss, batches), self._trained()
        statistics, before = Statistics(self._norms or []), [p.detach().clone() for p, _ in trained]

        def restore() -> None:
            statistics.put_back()
            for (p, _), w in zip(trained, before):
                p.data.copy_(w)

        try:
            for p, own in trained:
                real(p.data).copy_(own["averaged"])
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

    def _keep(self, loss: Loss, batch: Batch) -> None:
        """The last batches, where BatchNorm's statistics are to be gathered from them."""
        if self._norms is None:
            self._norms = norms_in(loss, batch, self._params())
        if self._norms:
            self._recent.append((loss, kept(batch)))

    def _outside(self, name: str) -> None:
        if self._inside:
            way = "leave averaged()" if self._restore is None else "call train()"
            raise RuntimeError(f"{type(self).__name__}.{name}: the averaged weights stand in the model; {way} first")

    def _to_train(self, name: str) -> None:
        """A training pass begins: after a checkpoint that was saved in `eval()`, at the weights that train."""
        self._outside(name)
        if self._rate_state.averaged:
            self.resume()

    # ---- checkpoints

    def _publish(self) -> None:
        numbers = self._rate_state.tensor()
        for own in self.state.values():
            if "z" in own:
                own[NUMBERS] = numbers

    def state_dict(self) -> dict[str, Any]:
        """For each parameter z, the averaged weights, squares of gradients, and the filter of the learning rate."""
        loaded = self._rate_state.averaged
        self._rate_state.averaged = float(self._inside or loaded)
        self._publish()
        self._rate_state.averaged = loaded
        return super().state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_recent" not in self.__dict__:  # from a pickle
            self._begin_outside()
        super().__setstate__(state)
        self._find_sharded()

    def _joined_state(self) -> list[Tensor]:
        self._publish()
        return [t for p in self._params() for _, t in sorted(self.state[p].items())]

    def _adopt_joined(self) -> None:
        self._take_scalars(self.state[self._params()[0]][NUMBERS])

    def _find_sharded(self) -> None:
        self._sharded = any(map(sharded.is_sharded, self._params()))  # spread over processes, as by `fully_shard`

    def _accept(self, state_dict: dict[str, Any]) -> None:
        """Whether a checkpoint is of this optimizer and for parameters of these shapes; frozen ones need no entry."""
        names = self._names(state_dict)
        entries = [state_dict["state"].get(name, {}) for name in names]
        self._same_scaling(state_dict)
        for name, p, given in zip(names, self._params(), entries):
            w = real(p.detach())
            shapes = {**dict.fromkeys(ITERATES, tuple(w.shape)), **self._scaling.shapes(w)}
            missing = [key for key in (*shapes, "step", "begun", NUMBERS) if key not in given]
            foreign = not any(entries) and not all(map(_is_ours, state_dict["param_groups"]))
            if missing and (given or foreign):
                raise ValueError(
                    f"state_dict: parameter {name} lacks {', '.join(missing)}; is it a checkpoint of RateFree?"
                )
            for key, expected in shapes.items() if given else ():
                if (got := tuple(given[key].shape)) != expected:
                    raise ValueError(f"state_dict: {key} of parameter {name} has shape {got}, expected {expected}")
            if given:
                RateState.of(given[NUMBERS])
        self._incoming = entries

    def _same_scaling(self, state_dict: dict[str, Any]) -> None:
        """Checkpoints of version 0.1 do not name their scaling: there was one."""
        for group in filter(_is_ours, state_dict["param_groups"]):
            if (got := group.get("scaling", "diagonal")) != self._scaling.name:
                raise ValueError(
                    f'state_dict: expected a checkpoint with scaling="{self._scaling.name}", got "{got}"; '
                    f'load it into RateFree(params, scaling="{got}")'
                )

    def _adopt(self, incoming: list[dict[str, Any]]) -> None:
        """Copies of what a checkpoint holds, which torch has cast to the dtype of the parameters or shares with its owner."""
        self._inside, self._restore = False, None
        self._take_scalars(next((given[NUMBERS] for given in incoming if given), self._rate_state.tensor()))
        for p, given in zip(self._params(), incoming):
            self.state.pop(p, None)
            if given:
                own = self.state[p] = self._fresh(p)
                names = (*ITERATES, *self._scaling.shapes(own["z"]))
                own |= {key: given[key].detach().to(p.device, own["z"].dtype, copy=True) for key in names}
                own |= {k: torch.as_tensor(given[k]).detach().to(own[k], copy=True) for k in ("step", "begun")}
            elif p.requires_grad:
                self.state[p] = self._fresh(p)
        self._reset_batches()


def _is_ours(group: Group) -> bool:
    """Whether a group of a checkpoint has the settings of this optimizer, where there is no state to tell."""
    return {"betas", "eps", "maximize"} <= set(group) and "amsgrad" not in group
