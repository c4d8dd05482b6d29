"""Processes that run out of data before the others: `torch.distributed.algorithms.Join([model, opt])`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.join import Joinable, JoinHook

from infhess._distributed import all_reduce_mean, any_process, rank
from infhess.optim.averaging.averaged import NUMBERS, AveragingOptimizer
from infhess.optim.rate.probe import Probe


class ShadowSteps(JoinHook):
    """A process without data takes part in the all-reduces of the others with zeros. At the end it takes over their state."""

    def __init__(self, opt: AveragingOptimizer) -> None:
        self._opt = opt

    def main_hook(self) -> None:
        """Shadow one step of the other processes."""
        live = [p for p in self._opt._params() if p.requires_grad]
        if any_process(False, live[0].device):  # they probe curvature
            with suppress(ValueError):  # the others' probe has failed, and they go on without it
                Probe((), params=live).take_part()
                all_reduce_mean([0.0, 0.0], live[0].device)  # points and tokens

    def post_hook(self, is_last_joiner: bool) -> None:
        """Broadcast the state of a process that has made all steps to all processes."""
        self._opt._publish()
        owns = [self._opt.state[p] for p in self._opt._params() if p in self._opt.state]
        # The scalars are one tensor in the state of all parameters: it is sent once.
        tensors = [t for own in owns for name, t in sorted(own.items()) if name != NUMBERS] + [owns[0][NUMBERS]]
        last = torch.tensor(rank() if is_last_joiner else -1, device=tensors[0].device)
        distributed.all_reduce(last, distributed.ReduceOp.MAX)
        for t in tensors:
            distributed.broadcast(t, int(last))
        self._opt._take_scalars(owns[0][NUMBERS])


class JoiningOptimizer(AveragingOptimizer, Joinable):
    """An optimizer that `torch.distributed.algorithms.Join([model, opt])` takes."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        Joinable.__init__(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        Joinable.__init__(self)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Hook for `torch.distributed.algorithms.Join([model, opt])`."""
        return ShadowSteps(self)

    @property
    def join_device(self) -> torch.device:
        """The device of the parameters."""
        return self._params()[0].device

    @property
    def join_process_group(self) -> Any:
        """The process group: all processes."""
        return torch.distributed.group.WORLD
