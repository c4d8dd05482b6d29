"""Processes that run out of data before others: `torch.distributed.algorithms.Join([model, opt])`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.algorithms.join import Joinable, JoinHook

from infhess._distributed import all_reduce_mean, any_process, rank
from infhess.optim.rate.probe import Probe


class ShadowSteps(JoinHook):
    """What a process without data adds to the all-reduces of the others: nothing. At the end it takes over their state."""

    def __init__(
        self, params: Callable[[], list[Tensor]], state: Callable[[], list[Tensor]], done: Callable[[], None]
    ) -> None:
        self._params, self._state, self._done = params, state, done

    def main_hook(self) -> None:
        """One step of the others."""
        live = [p for p in self._params() if p.requires_grad]
        if probing(False, live):
            with suppress(ValueError):  # their probe has failed: they go on without it
                Probe((), params=live).take_part()
                all_reduce_mean([0.0], live[0].device)

    def post_hook(self, is_last_joiner: bool) -> None:
        """The state of a process that has made all steps, in all of them."""
        tensors = self._state()
        last = torch.tensor(rank() if is_last_joiner else -1, device=tensors[0].device)
        distributed.all_reduce(last, distributed.ReduceOp.MAX)
        for t in tensors:
            distributed.broadcast(t, int(last))
        self._done()


class Joining(Joinable):
    """An optimizer that `Join` takes."""

    _params: Callable[[], list[Tensor]]
    _joined_state: Callable[[], list[Tensor]]  # what a process without data takes over at the end
    _adopt_joined: Callable[[], None]  # once it has

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


def probing(here: bool, params: Sequence[Tensor]) -> bool:
    """Whether curvature is probed at this step, by any process."""
    return any_process(here, params[0].device)
