"""Nets without a learning rate: Adam's scaling, schedule-free averaging, and the rate from one probe in eighty steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from infhess._checks import count, finite_number
from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.curvature.training_pass import TrainedHessian, TrainingPass
from infhess.optim import sharded
from infhess.optim.averaging.averaged import NUMBERS, Averaging, Group, Loss
from infhess.optim.checkpoint import Scalars
from infhess.optim.joining import ShadowSteps, probing
from infhess.optim.rate.difference_probe import DifferenceProbe
from infhess.optim.rate.live import Live, length_of, live, plain
from infhess.optim.rate.probe import Probe, Reading
from infhess.optim.rate.prober import Prober
from infhess.optim.rate.rate_state import RateState
from infhess.optim.reports import Rate, RateReport
from infhess.optim.scalings import SCALINGS
from infhess.optim.scalings.gradient_scaling import Scaling

# Steps so many times shorter than their bound by |w| leave |w| much as it is for so many steps.
FAR, SIZE_HOLDS = 4.0, 16


class RateFree(Averaging, Joinable):
    """An optimizer for nets that has no learning rate to set.

    z moves by the scaled gradient Dg, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x (Defazio et al.
    2024). The learning rate is σ √(gᵀDg/hᵀDh), with h = H D g from one Hessian-vector product in eighty steps, filtered over
    time.

    Args:
        params: as for any torch optimizer.
        weight_decay: decoupled, as in AdamW: part of y that goes for each unit of learning rate.
        scaling: D: "kronecker", Adam's in coordinates that are rotated for each matrix (SOAP, Vyas et al. 2024); or "diagonal",
            Adam's. The former takes fewer steps, and for a layer of out × in up to 1280 · out · in operations a step and
            128 · out + 512 · in numbers of memory more: with small batches and wide dense layers the latter may be faster.
        betas: (β₁, β₂): how far y is towards the average, and the memory of squared gradients; (.9, .99) by default, (.9, .999)
            with the diagonal scaling.
        lr: multiplies the learning rate that was found; a scheduler may change it.
        eps: Adam's ε, in units of the root mean square of the gradient, the largest so far; 1e-3 by default. With the diagonal
            scaling, of the last gradient that was probed; 1e-8.
        maximize: go up.
        points: the batch size of a process, where a training pass does not tell; 32 is assumed without.

    Call `observe(loss, batch)` between backward and step, with each batch. Evaluate and save the model within `averaged()`, or
    after `finish()`: the averaged weights are the result. Weights changed by hand between steps are not taken over.

    Gradients are what `.grad` holds when the step is made. Clipped, accumulated over several batches (call `observe` with
    each of them), averaged over processes or multiplied by a `GradScaler`: the learning rate is the same.

    >>> import torch, infhess
    >>> model = torch.nn.Linear(3, 1)
    >>> opt = infhess.RateFree(model.parameters())
    >>> x = torch.randn(64, 3); y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    >>> loss = lambda batch: (model(batch[0]) - batch[1]).square().mean()
    >>> for _ in range(300):
    ...     opt.zero_grad(); loss((x, y)).backward()
    ...     report = opt.observe(loss, (x, y)); opt.step()
    >>> opt.finish()
    >>> bool(loss((x, y)) < 1e-2)
    True

    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        scaling: str = "kronecker",
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
        lr: float | Tensor = 1.0,
        eps: float | None = None,
        maximize: bool = False,
        points: int | None = None,
    ) -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling: expected one of {', '.join(SCALINGS)}; got {scaling!r}")
        chosen = SCALINGS[scaling]
        betas, eps = betas or (0.9, chosen.beta), chosen.eps if eps is None else eps
        finite_number(weight_decay, "weight_decay", least=0.0)
        if finite_number(float(lr), "lr", least=0.0) != 1:
            warnings.warn(
                f"RateFree: lr={float(lr):g} multiplies the learning rate that curvature gives; pass lr=1, as skorch's "
                "NeuralNet(..., lr=1), unless you mean that",
                stacklevel=2,
            )
        finite_number(eps, "eps", least=0.0)
        for beta in betas:
            if not 0 <= finite_number(beta, "betas") < 1:
                raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
        defaults: Group = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps}
        defaults |= {"maximize": maximize, "scaling": scaling}
        self._prober = Prober(chosen.rule)
        self._reset_size()
        self.points = None if points is None else count(points, "points")
        self.report: RateReport | None = None  # of the last curvature probe
        super().__init__(params, defaults)
        Joinable.__init__(self)

    @property
    def _scaling(self) -> Scaling:
        return SCALINGS[self.defaults.get("scaling", "diagonal")]

    def add_param_group(self, param_group: Group) -> None:
        """One more group; its average begins with the next step."""
        super().add_param_group(param_group)
        self._sharded = any(map(sharded.is_sharded, self._params()))  # spread over processes, as by `fully_shard`

    @property
    def _rate_state(self) -> RateState:
        return self._prober.state

    def _reset_size(self) -> None:
        """|w| is to be measured at the next step."""
        self._size, self._size_age = 0.0, 0

    # ---- the learning rate

    @full_precision
    def observe(
        self,
        loss: Loss,
        batch: Batch,
        *,
        points: int | None = None,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> RateReport | None:
        """Call it between backward and step, with each batch; now and then it probes curvature, by one product.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batch: the one that the gradient is of. With gradient accumulation, call it for each micro-batch; or for the last
                one alone, with `points`.
            points: data points that this call stands for, where the batch does not tell.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: for dropout masks.

        Returns a report when it probed curvature.

        """
        self._outside("observe")
        self._check_whole("observe")
        started = time.perf_counter()
        due = self._prober.expects(lambda: size_of(batch) if points is None else count(points, "points"))
        if not due or not self._ready:
            self._keep(loss, batch)
            return None
        try:
            masks = generator or self._masks()
            source = Hessian(loss, self._params(), [batch], products=products, points=points, generator=masks)
            source.pooled = False  # the probe takes the mean over processes
            self._prober.add(source, batch)
            before, probes = self._rate_state.allowed, self._prober.complete
            notes = self._prober.begin(self._read) if probes else ()
        except BaseException:
            self._prober.reset()
            raise
        self._keep(loss, batch)
        return self._report(notes, before, started) if probes else None

    def _check_whole(self, name: str) -> None:
        if self._sharded:
            raise RuntimeError(
                f"RateFree.{name}: parameters are sharded, and cannot be differentiated twice; call opt.step(closure) with a "
                "closure that clears gradients, computes the loss, calls backward and returns the loss"
            )

    def _masks(self) -> torch.Generator:
        """For dropout, others at each probe and for each micro-batch."""
        return torch.Generator().manual_seed(int(self._rate_state.steps) + (self._prober.micro_batches - 1) * 2**32)

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Around the forward and backward pass of training, in a loop without a closure; then `step()`.

        On the steps at which curvature is probed, one in eighty, the gradient's graph is kept and the Hessian-vector product
        is taken in `step`. Else nothing happens. With gradient accumulation, watch each micro-batch.

        Args:
            points: the batch size. By default it is the leading dimension of what the model's parameters are applied to.

        """
        self._outside("watch")
        self._check_whole("watch")
        known = None if points is None else count(points, "points")
        with self._training_pass() as done:
            yield
        self._take(done, known)

    @property
    def _probes(self) -> bool:
        """Whether curvature is probed at the coming step."""
        return self._rate_state.due and self._ready

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """What keeps the graph, where curvature is probed at the coming step."""
        return TrainingPass(self._params(), joined=self._join_config.enable) if self._probes else nullcontext()

    def _take(self, done: TrainingPass | None, points: int | None = None) -> None:
        """A training pass as one more micro-batch of the coming step."""
        seen = points or self.points or (done.points if done else 0)
        self._prober.expects(lambda: seen)
        if done is not None:
            self._prober.add_graph(TrainedHessian(done, seen), done)

    def _report(self, notes: tuple[str, ...], before: float, started: float) -> RateReport:
        state, seconds = self._rate_state, time.perf_counter() - started
        notes = (*notes, *state.diagnostics(before))
        self.report = RateReport(self.rate, state.allowed, *self._prober.cost, seconds, notes)
        return self.report

    def _read(self, probe: Probe | DifferenceProbe) -> Reading:
        """A probe along Dg, with what `.grad` holds and D as the coming step will have it."""
        for p in probe.params:
            if p not in self.state:  # frozen until now
                self.state[p] = self._fresh(p)
        g = self._gradient(probe)
        numbers = sum(real(p.detach()).numel() for p in probe.params)
        self._rate_state.measure(sharded.length_of([(g, probe.params)]) / max(numbers, 1) ** 0.5)
        groups = {p: group for group in self.param_groups for p in group["params"]}

        def scaled(i: int, x: Tensor) -> Tensor:
            p = probe.params[i]
            d = self._scaling.ahead(
                self._own(p),
                groups[p]["betas"][1],
                self._eps(groups[p]),
                self._seen_by_scaling(g[i], p),
                self._seen_by_scaling(x, p),
            )
            return self._seen_by_step(d, p)

        reading = probe.read(g, scaled)
        if probe.norms is not None:
            self._norms = probe.norms
        return reading

    def _gradient(self, probe: Probe | DifferenceProbe) -> list[Tensor]:
        """What `.grad` holds of each probed parameter; the batch's own gradient before there is any."""
        if isinstance(probe, Probe) and all(p.grad is None for p in probe.params):
            return probe.own()
        return [
            torch.zeros_like(sharded.local(self.state[p]["z"])) if p.grad is None else plain(p) for p in probe.params
        ]

    @property
    def rate(self) -> Rate:
        """The learning rate in use, with its uncertainty; NaN as long as no curvature was seen."""
        return self._rate_state.uncertain

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A batch that was observed and never stepped with, for a gradient that is not finite, is skipped."""
        grads = [real(p.grad) for p in self._params() if p.grad is not None and not p.grad.is_sparse]
        if self._prober.micro_batches and grads and not (self._sharded or math.isfinite(length([grads]))):
            self._prober.reset()
            self._rate_state.skip(finite=False)
        super().zero_grad(set_to_none)

    @property
    def _ready(self) -> bool:
        """Whether D is known: a scaling may need a first gradient, and a step without a move, to learn it from."""
        return not math.isnan(self._rate_state.rate) or self._scaling.ready(self.state.values())

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the closure runs once, before it, and its loss is returned.

        Curvature is probed on the closure's own pass. Where that cannot be differentiated twice (FSDP2, some kernels), the
        closure runs once more on probing steps, and curvature is a difference of gradients.
        """
        self._outside("step")
        loss = None
        if closure is not None:
            random_state = torch.get_rng_state() if self._probes else None
            with torch.enable_grad():
                loss = self._run(closure)
            if random_state is not None and (self._rate_state.differences or self._sharded):
                self._difference(closure, random_state)
        seen = int(self._rate_state.observed)
        with torch.no_grad():
            try:
                self._step()
            except DoubleBackwardError as error:
                if closure is None:
                    raise
                self._rate_state.differences = 1.0
                self._prober.expects(lambda: seen)
                self._difference(closure, random_state)
                self._step()
                self._note(f"curvature is probed by differences of gradients from here on: {error}")
        return loss

    def _note(self, note: str) -> None:
        """Say something in the last report."""
        if self.report is not None:
            self.report = replace(self.report, notes=(note, *self.report.notes))

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Training's own forward and backward pass, watched; unless the closure observes by itself."""
        if self._prober.micro_batches:
            return closure()
        with nullcontext() if self._sharded or self._rate_state.differences else self._training_pass() as done:
            loss = closure()
        if not self._prober.micro_batches:
            self._take(done)
        return loss

    def _difference(self, closure: Callable[[], Any], random_state: Tensor | None) -> None:
        """The coming probe is a second run of the closure."""
        assert random_state is not None
        distance = self._rate_state.distance(self.param_groups[0]["betas"][0])
        points = int(self._rate_state.observed)
        self._prober.again = DifferenceProbe(self._params(), closure, random_state, self._gradient, distance, points)

    def _step(self) -> None:
        parts = [found for group in self.param_groups if (found := live(group)).params]
        if not parts:
            return
        self._check_observed()
        if self._join_config.enable:
            Join.notify_join_context(self)
            probing(bool(self._prober.pieces), self._params())
        gradient, before, started = length_of(parts), self._rate_state.allowed, time.perf_counter()
        notes = self._prober.finish(gradient, self._read)
        state = self._rate_state
        if notes is not None:
            self._report(notes, before, started)
        if 0 < gradient < math.inf and not self._ready:
            for part in parts:
                self._begin(part)
            state.wait()
            return
        if math.isnan(state.rate) or not math.isfinite(gradient):
            state.skip(math.isfinite(gradient))
            return
        known = [self._owns(part.params) for part in parts]
        moves = [self._directions(part, ages) for part, (_, ages) in zip(parts, known)]
        scale = max(float(part.group["lr"]) for part in parts)
        move = math.hypot(*(r * sharded.length_of([(d, part.params)]) for part, (d, r) in zip(parts, moves)))
        step = state.advance(move, self._size_of(parts, scale), scale)
        state.average(scale)
        for part, (owns, _), (d, r) in zip(parts, known, moves):
            self._move(part, owns, d, step * float(part.group["lr"]), r)

    def _begin(self, part: Live) -> None:
        """What the scaling has to learn from first gradients."""
        self._owns(part.params)
        self._scaling.begin(
            [self._own(p) for p in part.params], [self._seen_by_scaling(g, p) for g, p in zip(part.grads, part.params)]
        )

    def _directions(self, part: Live, ages: list[float]) -> tuple[list[Tensor], float]:
        """d and r with Dg = r d, for the local parts of sharded parameters."""
        beta, eps = part.group["betas"][1], self._eps(part.group)
        if not self._sharded:
            return self._scaling.directions([self.state[p] for p in part.params], ages, beta, eps, part.grads)
        grads = [self._seen_by_scaling(g, p) for g, p in zip(part.grads, part.params)]
        d, r = self._scaling.directions([self._own(p) for p in part.params], ages, beta, eps, grads)
        return [self._seen_by_step(x, p) for x, p in zip(d, part.params)], r

    # ---- processes that run out of data

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For `torch.distributed.algorithms.Join([model, opt])`."""
        return ShadowSteps(self._params, self._joined_state, self._adopt_joined)

    @property
    def join_device(self) -> torch.device:
        """Where the parameters are."""
        return self._params()[0].device

    @property
    def join_process_group(self) -> Any:
        """All processes."""
        return torch.distributed.group.WORLD

    def _joined_state(self) -> list[Tensor]:
        self._publish()
        return [t for p in self._params() for _, t in sorted(self.state[p].items())]

    def _adopt_joined(self) -> None:
        self._take_scalars(self.state[self._params()[0]][NUMBERS])

    # ---- sharded parameters: a scaling sees their local parts, or all of them where it needs whole matrices

    def _own(self, p: Tensor) -> dict[str, Any]:
        """The state of a parameter as a scaling sees it."""
        own = self.state[p]
        return own if not sharded.is_sharded(p) else {key: sharded.local(value) for key, value in own.items()}

    def _seen_by_scaling(self, x: Tensor, p: Tensor) -> Tensor:
        return sharded.gathered(x, p) if self._scaling.whole and sharded.is_sharded(p) else x

    def _seen_by_step(self, x: Tensor, p: Tensor) -> Tensor:
        return sharded.part(x, p) if self._scaling.whole and sharded.is_sharded(p) else x

    def _owns(self, params: list[Tensor]) -> tuple[list[dict[str, Any]], list[float]]:
        """The state of each parameter and its steps so far; the average of one that is new begins where it is now."""
        ages = [float(self.state[p].get("step", 0.0)) for p in params]
        for p, age in zip(params, ages):
            if not age:
                self.state[p] = self._fresh(p)
        return [self.state[p] for p in params], ages

    def _size_of(self, parts: list[Live], scale: float) -> float:
        """|w|, measured anew where the bound on steps by it could be within reach, and every so often."""
        state = self._rate_state
        self._size_age += 1
        far = FAR * state.rate * scale * state.length <= state.rule.longest * self._size
        if not far or self._size_age >= SIZE_HOLDS:
            weights = [([sharded.local(real(p.detach())) for p in part.params], part.params) for part in parts]
            self._size, self._size_age = sharded.length_of(weights), 0
        return self._size

    def _check_observed(self) -> None:
        state, every = self._rate_state, 2 * self._rate_state.rule.every
        if not state.observed_at:
            raise RuntimeError(
                "RateFree: no training pass was seen, so there is no rate; call opt.step(closure), or put forward and backward "
                "into `with opt.watch():`, or call opt.observe(loss, batch) between backward and step, with each batch"
            )
        missed = state.steps - state.observed_at
        if missed >= every and missed % every == 0:
            warnings.warn(
                f"RateFree: no training pass was seen for {missed:.0f} steps, and the rate follows curvature no more; call "
                "opt.step(closure), opt.watch() or opt.observe(loss, batch) with each batch",
                stacklevel=3,
            )

    def _eps(self, group: Group) -> float:
        return float(group["eps"]) * self._rate_state.gradient

    def _move(self, part: Live, owns: list[dict[str, Any]], d: list[Tensor], rate: float, r: float) -> None:
        """z −= rate·(r d + decay·y), x += c (z − x), y = (1 − β₁) z + β₁ x."""
        group, newest = part.group, self._rate_state.newest
        y, z, x = [real(p) for p in part.params], [own["z"] for own in owns], [own["averaged"] for own in owns]
        if self._sharded:
            y, z, x = [[sharded.local(v.detach()) for v in values] for values in (y, z, x)]
        if group["weight_decay"]:
            torch._foreach_add_(z, [w.to(v.dtype) for w, v in zip(y, z)], alpha=-rate * group["weight_decay"])
        torch._foreach_add_(z, d, alpha=-rate * r)
        begun = [float(own["begun"]) for own in owns]
        if min(begun) == max(begun):
            torch._foreach_lerp_(x, z, newest(begun[0]))
        else:
            for mean, new, before in zip(x, z, begun):
                mean.lerp_(new, newest(before))
        weight = 1 - group["betas"][0]
        for w, mean, new in zip(y, x, z):
            if w.dtype == mean.dtype:
                torch.lerp(mean, new, weight, out=w)
            else:
                w.copy_(torch.lerp(mean, new, weight))

    # ---- checkpoints

    @property
    def _scalars(self) -> Scalars:
        return self._rate_state

    @property
    def _saved_averaged(self) -> bool:
        return bool(self._rate_state.averaged)

    @_saved_averaged.setter
    def _saved_averaged(self, value: bool) -> None:
        self._rate_state.averaged = float(value)

    @property
    def _average_weight(self) -> float:
        return self._rate_state.weight

    def _take_scalars(self, numbers: Tensor, *, check: bool = False) -> None:
        found = RateState.of(numbers)
        if not check:
            self._prober = Prober(self._scaling.rule, found)
            self._reset_size()

    def __getstate__(self) -> dict[str, Any]:
        state = replace(self._rate_state, averaged=float(self._inside or self._saved_averaged))
        kept = {"_prober": Prober(self._scaling.rule, state), "points": self.points, "report": self.report}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset_size()
        super().__setstate__(state)
        Joinable.__init__(self)
        self._sharded = any(map(sharded.is_sharded, self._params()))
