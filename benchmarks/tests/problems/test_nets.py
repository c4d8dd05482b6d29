"""Nets of the bench: shapes, and attention to the past alone."""

from __future__ import annotations

import torch

from infhess_bench.problems.nets import CharRecurrent, CharTransformer, batch_norm_net, digit_net


def test_nets_map_shapes_and_attend_to_the_past_alone():
    assert batch_norm_net()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert digit_net()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    for net in (CharTransformer(5, 8), CharRecurrent(5)):
        codes = torch.randint(5, (2, 8))
        later = codes.clone()
        later[:, -1] = (later[:, -1] + 1) % 5
        a, b = net(codes), net(later)
        assert a.shape == (2, 8, 5)
        torch.testing.assert_close(a[:, :-1], b[:, :-1])
        assert not torch.allclose(a[:, -1], b[:, -1])
