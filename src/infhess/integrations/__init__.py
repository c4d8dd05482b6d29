"""Training frameworks: callbacks for Lightning, Transformers and skorch, and an adapter for Accelerate; imported on demand."""

from importlib import import_module
from typing import Any

FRAMEWORKS = ("accelerate", "lightning", "skorch", "transformers")


def __getattr__(name: str) -> Any:
    """Import a framework only with its module: `infhess.integrations.lightning`."""
    if name not in FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(FRAMEWORKS)}")
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        remedy = "pip install 'infhess[integrations]'"
        raise ModuleNotFoundError(f"{__name__}.{name} needs {missing}; {remedy}", name=error.name) from error
