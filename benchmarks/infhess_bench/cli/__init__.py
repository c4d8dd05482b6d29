"""The commands `infhess bench`, `infhess reproduce` and `infhess data`."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    """Add them to `infhess`; pyproject.toml names this function as an entry point."""
    from infhess_bench.cli.bench import bench
    from infhess_bench.cli.data import data
    from infhess_bench.cli.paper import reproduce

    app.command()(reproduce)
    app.add_typer(bench, name="bench")
    app.add_typer(data, name="data")
