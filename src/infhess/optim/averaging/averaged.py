"""The training weights and their average: swapped in and out of the model, and kept in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from infhess._precision import full_precision
from infhess.curvature.batches import Batch
from infhess.curvature.flat import real
from infhess.optim import sharded
from infhess.optim.averaging.batch_norm import KeptBatches, Statistics
from infhess.optim.checkpoint import CurvatureOptimizer, Loss, params_of
from infhess.optim.rate.group_options import without_auto
from infhess.optim.rate.live import Live
from infhess.optim.rate.prober import Prober
from infhess.optim.rate.rate_state import RateState
from infhess.optim.scalings import SCALINGS
from infhess.optim.scalings.gradient_scaling import GradientScaling
from infhess.optim.scalings.scaler import Scaler
from infhess.optim.stepping import WeightSize

NUMBERS = "numbers"
ITERATES = ("z", "averaged")

Group = dict[str, Any]
State = dict[str, Any]  # the state of one parameter


class AveragingOptimizer(CurvatureOptimizer):
    """z moves, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x (Defazio et al. 2024).

    z and x are part of the optimizer's state, so checkpoints do not depend on which weights are in the model. A parameter
    gets its state when it first trains; frozen parameters have none.
    """

    _betas: Sequence[float] = ()  # β₁ of each group at the last step
    _made_with = 0.0  # the largest `lr` that a group was made with

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._prober = Prober(SCALINGS[defaults["scaling"]].rule)
        self._begin()
        super().__init__(params, defaults)

    def _begin(self) -> None:
        """The training weights are in the model, and nothing has been observed yet."""
        self._way_out = ""  # while the averaged weights are in the model: how to get the training weights back
        self._restore: Callable[[], None] | None = None  # undoes eval()
        self._kept = KeptBatches()
        self._size = WeightSize()

    @property
    def _scaling(self) -> GradientScaling:
        return SCALINGS[self.defaults.get("scaling", "diagonal")]

    @property
    def _scaler(self) -> Scaler:
        return Scaler(self._scaling, self.state, any_sharded=self._sharded)

    @property
    def _rate_state(self) -> RateState:
        return self._prober.state

    @property
    def _scale(self) -> float:
        """The largest factor that the user or a scheduler has set on the rate."""
        return max(float(group["lr"]) for group in self.param_groups)

    @property
    def _ready(self) -> bool:
        """Whether D is known: a scaling may learn it from a first gradient, in a step that moves nothing."""
        return not math.isnan(self._rate_state.rate) or self._scaling.ready(self.state.values())

    @property
    def _probes(self) -> bool:
        """Whether curvature is probed at the coming step."""
        return self._rate_state.due and self._ready

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its average begins with the next step."""
        without_auto(param_group)
        super().add_param_group(param_group)
        self._made_with = max(self._made_with, float(self.param_groups[-1]["lr"]))
        self._find_sharded()
        for p in self.param_groups[-1]["params"]:
            if p.requires_grad:
                self.state[p] = self._fresh(p)
        self._publish()

    def _find_sharded(self) -> None:
        self._sharded = sharded.is_sharded(*self._params())  # spread over processes, as by `fully_shard`

    def _fresh(self, p: Tensor) -> State:
        """The state of a parameter that has not moved: both z and the average equal it."""
        w = real(p.detach())
        z = w.to(torch.promote_types(w.dtype, torch.float32), copy=True)
        tensors = {"z": z, "averaged": z.clone(), **self._scaler.fresh(z)}
        begun = torch.tensor(self._rate_state.weight, dtype=torch.float64)
        return {"step": torch.zeros(()), **tensors, "begun": begun, NUMBERS: self._rate_state.tensor()}

    def _with_state(self, part: Live) -> Live:
        """Add the state of each parameter; the average of a new parameter begins at its present value."""
        owns = [self.state[p] for p in part.params]
        ages = [float(own.get("step", 0.0)) for own in owns]
        if not all(ages):
            for i, p in enumerate(part.params):
                if not ages[i]:
                    owns[i] = self.state[p] = self._fresh(p)
            self._publish()
        return part._replace(owns=owns, ages=ages)

    def _kept_as(self, p: Tensor) -> torch.dtype:
        return torch.promote_types(super()._kept_as(p), torch.float32)

    def _start_over(self) -> None:
        """Go on as a new optimizer of the averaged weights."""
        self._prober = Prober(self._scaling.rule, self._rate_state.afresh())
        for p, own in self._trained():
            real(p.detach()).copy_(own["averaged"])
            self.state[p] = self._fresh(p)
        self._publish()

    # ---- the averaged weights

    @contextmanager
    @full_precision
    def averaged(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> Iterator[None]:
        """Within the context the model holds the averaged weights. Afterwards it holds the training weights again, bit for bit.

        Within it, BatchNorm's running statistics are those of the averaged weights, computed on the last observed batches or
        on `batches` with their `loss`. Pass these two if no batch has been observed since a checkpoint was loaded.
        """
        if self._way_out:
            yield
            return
        restore = self._put_averaged(loss, batches)
        self._way_out = "leave averaged()"
        try:
            yield
        finally:
            self._way_out = ""
            restore()

    @full_precision
    def eval(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> None:
        """Put the averaged weights into the model until `train()` is called, as in `schedulefree`."""
        if not self._way_out:
            self.train()  # after a checkpoint saved in eval(), so that `train()` brings back the training weights
            self._restore = self._put_averaged(loss, batches)
            self._way_out = "call train()"

    @full_precision
    def train(self) -> None:
        """Put the training weights back into the model, also after a checkpoint that was saved in `eval()`."""
        if self._restore is not None:
            self._restore()
            self._way_out, self._restore = "", None
        elif not self._way_out and self._rate_state.averaged:
            self.resume()

    @full_precision
    def finish(self, loss: Loss | None = None, batches: Iterable[Batch] = ()) -> None:
        """Leave the averaged weights in the model, with BatchNorm statistics to match; further training continues from them."""
        self._outside("finish")
        self._put_averaged(loss, batches)
        self._kept.recent.clear()
        for _, own in self._trained():
            own["z"].copy_(own["averaged"])

    @full_precision
    def resume(self) -> None:
        """Put the training weights into the model: for checkpoints whose model file holds the averaged weights.

        Training then goes on bit for bit. BatchNorm's running statistics, which it does not use, stay those of the file.
        """
        self._outside("resume")
        betas = {p: group["betas"] for group in self.param_groups for p in group["params"]}
        for p, own in self._trained():
            real(p.detach()).copy_(torch.lerp(own["averaged"], own["z"], 1 - betas[p][0]))
        self._rate_state.averaged = 0.0

    def _trained(self) -> list[tuple[Tensor, State]]:
        """Parameters that have moved, with their state."""
        return [(p, own) for p in self._params() if (own := self.state.get(p, {})).get("step")]

    def _put_averaged(self, loss: Loss | None, batches: Iterable[Batch]) -> Callable[[], None]:
        """Put the averaged weights and statistics into the model; return a function that undoes it. A failure changes nothing.

        Weights are written through `.data`, unseen by autograd: they come back bit for bit, so the graph of a micro-batch
        that was watched before an evaluation stays valid.
        """
        recent, trained = self._kept.to_gather(loss, batches, self._params), self._trained()
        statistics, before = Statistics(self._kept.norms or []), [p.detach().clone() for p, _ in trained]

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

    def _outside(self, name: str) -> None:
        if self._way_out:
            raise RuntimeError(
                f"{type(self).__name__}.{name}: the averaged weights stand in the model; {self._way_out} first"
            )

    def _to_train(self, name: str) -> None:
        """Begin a training pass; after a checkpoint that was saved in `eval()`, restore the training weights first."""
        self._outside(name)
        if self._rate_state.averaged:
            self.resume()

    # ---- checkpoints

    def _publish(self) -> None:
        """List the scalars in `state`: one tensor for all parameters."""
        numbers = self._saved_scalars().tensor()
        for own in self.state.values():
            if "z" in own:
                own[NUMBERS] = numbers

    def _saved_scalars(self) -> RateState:
        """The scalars that go into a checkpoint; they say whether the averaged weights are in the model."""
        return replace(self._rate_state, averaged=float(bool(self._way_out) or self._rate_state.averaged))

    def _take_scalars(self, numbers: Tensor) -> None:
        """Take over the scalars of a checkpoint."""
        self._prober, self._size = Prober(self._scaling.rule, RateState.of(numbers)), WeightSize()

    def state_dict(self) -> dict[str, Any]:
        """For each parameter: z, the averaged weights, squared gradients, and the state of the learning-rate filter."""
        self._publish()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_prober": Prober(self._scaling.rule, self._saved_scalars())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_kept" not in self.__dict__:  # when unpickled
            self._begin()
        super().__setstate__(state)
        self._find_sharded()

    def _accept(self, state_dict: dict[str, Any]) -> None:
        """Check that a checkpoint is of this optimizer and that its shapes fit; frozen parameters need no entry."""
        groups = state_dict["param_groups"]
        names = params_of(groups)  # a checkpoint has indices instead of parameters
        entries = [state_dict["state"].get(name, {}) for name in names]
        known = [{"betas", "eps", "maximize"} <= set(group) and "amsgrad" not in group for group in groups]
        for group in (group for group, fits in zip(groups, known) if fits):
            # Checkpoints of version 0.1 do not name their scaling: there was only one.
            if (got := group.get("scaling", "diagonal")) != self._scaling.name:
                raise ValueError(
                    f'state_dict: expected a checkpoint with scaling="{self._scaling.name}", got "{got}"; '
                    f'load it into RateFree(params, scaling="{got}")'
                )
        for name, p, given in zip(names, self._params(), entries):
            if given or not (any(entries) or all(known)):
                self._check(name, p, given)
        self._incoming = entries

    def _check(self, name: Any, p: Tensor, given: State) -> None:
        """Check that the state of a parameter is complete and that its shapes fit."""
        w = real(p.detach())
        shapes = {**dict.fromkeys(ITERATES, tuple(w.shape)), **self._scaling.shapes(w)}
        if missing := [key for key in (*shapes, "step", "begun", NUMBERS) if key not in given]:
            raise ValueError(
                f"state_dict: parameter {name} lacks {', '.join(missing)}; is it a checkpoint of RateFree?"
            )
        for key, expected in shapes.items():
            if (got := tuple(given[key].shape)) != expected:
                raise ValueError(f"state_dict: {key} of parameter {name} has shape {got}, expected {expected}")
        RateState.of(given[NUMBERS])

    def _adopt(self, incoming: list[State]) -> None:
        """Copy the state from a checkpoint: torch's own copy is cast to the parameters' dtype, or shared with the caller."""
        self._begin()
        self._take_scalars(next((given[NUMBERS] for given in incoming if given), self._rate_state.tensor()))
        for p, given in zip(self._params(), incoming):
            self.state.pop(p, None)
            if given or p.requires_grad:
                own = self.state[p] = self._fresh(p)
            if given:
                names = (*ITERATES, *self._scaling.shapes(own["z"]))
                own |= {key: given[key].detach().to(p.device, own["z"].dtype, copy=True) for key in names}
                own |= {k: torch.as_tensor(given[k]).detach().to(own[k], copy=True) for k in ("step", "begun")}
