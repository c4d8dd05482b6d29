"""`infhess`, or `python -m infhess`: where the command line begins, light enough that Ctrl-C finds it from the start."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = "infhess: interrupted; finished rows are kept, and the same command computes the rest\n"
STATUS = 130  # as of any program that Ctrl-C has ended


def main() -> None:
    """Run the command line; Ctrl-C ends it, also while modules are imported, with one sentence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored here, as in the background
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from infhess.cli import app

        app(prog_name="infhess")
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        sys.exit(STATUS)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt, but the end at once during an import: exceptions are lost there, in callbacks or as ImportErrors."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            os.write(2, INTERRUPTED.encode())
            os._exit(STATUS)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
