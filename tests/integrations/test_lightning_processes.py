"""Lightning in two processes is one process on the joint batch, to rounding."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import lightning_processes
from lightning_cases import OWN_WARNINGS
from processes import in_processes
from util import F64

pytestmark = [pytest.mark.filterwarnings(text) for text in OWN_WARNINGS]


def test_two_processes_are_one_on_the_joint_batch(tmp_path):
    """Also where each step has two micro-batches; sharpness is measured by both together."""
    w, allowed, sharp = lightning_processes.run(tmp_path, 1)
    cases = {"fit": partial(lightning_processes.cases, tmp_path)}
    found = [process["fit"] for process in in_processes(2, tmp_path, cases, preload=["lightning.pytorch"])]
    for process in found:
        for (theirs, their_allowed, their_sharp), (first, *_) in zip(process, found[0]):
            assert theirs == first  # bit for bit
            assert their_allowed == pytest.approx(allowed, rel=1e-6)
            torch.testing.assert_close(
                torch.tensor(theirs, dtype=F64), torch.tensor(w, dtype=F64), rtol=1e-6, atol=1e-8
            )
            assert not their_sharp or len(their_sharp) == len(sharp)  # the first process logs
