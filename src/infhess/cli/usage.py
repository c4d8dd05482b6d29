"""Wrong options end as any other bad input does: with status 2 and one line that says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

# ClickException, wherever this version of Typer has it.
USAGE: type[Exception] = typer.BadParameter.__mro__[2]

INTERRUPTED = 130  # the status after Ctrl-C, as of any program


class OneLine(TyperGroup):
    """A group of commands whose usage errors are one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command of these arguments, and end the process with its status."""
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            status = run()
        except typer.Abort:
            status = 1
        except USAGE as error:
            status = _told(error)
        if status == INTERRUPTED:
            raise KeyboardInterrupt  # infhess.__main__ says so
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C in it has the same status in every version of Typer."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


def _told(error: Any) -> int:
    """Print the error in one line; it is empty if a group without arguments has shown its help."""
    message = " ".join(error.format_message().split())
    command = getattr(getattr(error, "ctx", None), "command_path", "infhess")
    if message:
        typer.secho(f"infhess: {message.rstrip('.')}; see {command} --help", err=True, fg="red")
    return int(error.exit_code)


@contextmanager
def remedies() -> Iterator[None]:
    """Bad input ends with status 2 and one line that says what to do."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        typer.secho(f"infhess: {' '.join(str(error).split())}", err=True, fg="red")
        raise typer.Exit(2) from error


def with_out(out: Path | None, *, fresh: bool) -> None:
    """Raise an error if rows are to be set aside and none are written."""
    if fresh and out is None:
        raise ValueError("--fresh sets aside the rows of an earlier --out; give --out as well, or leave --fresh out")


def one_kind(given: Mapping[str, bool]) -> str:
    """The requested comparison; "" if there is none."""
    kind, *more = [name for name, chosen in given.items() if chosen] or [""]
    if more:
        raise ValueError(f"expected at most one of --{', --'.join(given)}; got --{kind} and --{more[0]}")
    return kind
