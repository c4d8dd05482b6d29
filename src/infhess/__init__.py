"""Curvature of PyTorch losses from noisy mini-batches, with error bars, and training without a learning rate."""

from __future__ import annotations

from importlib import import_module

from infhess._version import __version__ as __version__

TYPE_CHECKING = (
    False  # as typing's, which takes longer to import than all else here: the command line starts with this file
)
if TYPE_CHECKING:
    from typing import Any

    from infhess._api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import public names when one is first used: `infhess --help` does not need torch."""
    if name == "integrations":
        return import_module("infhess.integrations")
    if name == "__all__" or not name.startswith("_"):
        api = import_module("infhess._api")
        globals().update({key: getattr(api, key) for key in api.__all__}, __all__=api.__all__)
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
