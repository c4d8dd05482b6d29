"""`infhess data`: data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infhess.cli.usage import remedies
from infhess_bench.cli.options import DataDir

data = typer.Typer(
    no_args_is_help=True,
    help="Data sets: what there is, and how to get it.",
    epilog="Example: `infhess data get mnist`",
)


@data.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """The data sets, and where each is found.

    Example: `infhess data list --data-dir data`
    """
    with remedies():
        from infhess_bench.cli import show
        from infhess_bench.data import use

        use(data_dir)
        show.datasets()


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="sarcos, mnist or cifar10.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", "--out", help="Folder to put it in; by default the cache.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="An address that has the files by name, asked first.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds without a byte before giving up.")
    ] = 30.0,
) -> None:
    """Download a data set from where it was published, and check it.

    Example: `infhess data get mnist --data-dir data`
    """
    with remedies():
        from infhess_bench.cli import show
        from infhess_bench.data import get

        with show.downloads() as bar:
            for path in get(name, data_dir, mirror=mirror, timeout=timeout, bar=bar):
                typer.echo(path)
