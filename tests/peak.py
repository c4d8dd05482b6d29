"""The most bytes that tensors of a piece of code hold at once."""

from __future__ import annotations

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """Counted by storage, after each operation; what `known` tensors hold is left out."""

    def __init__(self, known):
        super().__init__()
        self.known, self.held, self.most = {t.untyped_storage()._cdata for t in known}, {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        storages = [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.held |= {s._cdata: (StorageWeakRef(s), s.nbytes()) for s in storages if s._cdata not in self.known}
        self.held = {key: pair for key, pair in self.held.items() if not pair[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.held.values()))
        return out
