"""`infhess bench`: ours and the alternatives in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infhess.cli.options import DataDir, Fresh, Out, Seed, Workers, remedies

bench = typer.Typer(no_args_is_help=True, help="Side by side with the alternatives, in one run.")


@bench.command()
def inference(
    out: Out = Path("runs/bench-inference"),
    seed: Seed = 0,
    fresh: Fresh = False,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes up to 1e5 only: seconds.")] = False,
) -> None:
    """Time and memory of the inference loop beside the bound of memory bandwidth and the printed algorithm. Minutes.

    Example: `infhess bench inference --out runs/inference`
    """
    with remedies():
        from infhess._files import atomic
        from infhess.bench import inference as comparison
        from infhess.cli import show
        from infhess.experiments.rows import RowFile

        file = RowFile(out, fresh=fresh, seed=seed)
        for piece in comparison.pieces(seed, quick=quick):
            if piece.key not in file.done():
                with show.progress(piece.title):
                    file.add(piece.run())
        show.inference(file.rows)
        with atomic(out / "summary.md") as temporary:
            temporary.write_text(comparison.markdown(file.rows), encoding="utf-8")
        figure = comparison.figure(file.rows, out / "inference.png")
        typer.echo(f"\nrows: {file.path}\nsummary: {out / 'summary.md'}\nfigure: {figure}")


@bench.command()
def curvature(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder; by default runs/bench-curvature[-coverage].")
    ] = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Do the intervals hold? Trials against the exact spectrum.")
    ] = False,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials a cell of --coverage.")] = 200,
    quick: Annotated[bool, typer.Option("--quick", help="Two small problems that need no data folder.")] = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Top eigenvalues from mini-batches beside other tools, at equal work; or the coverage of our intervals.

    Example: `infhess bench curvature --coverage --trials 50 --data-dir data`
    """
    with remedies():
        from infhess._files import atomic
        from infhess.bench import coverage as intervals
        from infhess.bench import curvature as comparison
        from infhess.bench import peers
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments.rows import RowFile

        use(data_dir)
        folder = out or Path("runs/bench-curvature-coverage" if coverage else "runs/bench-curvature")
        file = RowFile(folder, fresh=fresh, seed=seed)
        if coverage:
            problems = comparison.QUICK if quick else intervals.PROBLEMS
            show.run(list(intervals.pieces(seed, trials, problems)), file, workers)
            text = intervals.markdown(file.rows)
        else:
            for method, package in peers.missing().items():
                typer.echo(f"not installed, so not run: {method} (pip install '{package}')")
            show.run(list(comparison.pieces(seed, quick=quick)), file, workers)
            text = comparison.markdown(file.rows)
            comparison.figure(file.rows, folder / "curvature.png")
        with atomic(folder / "summary.md") as temporary:
            temporary.write_text(text, encoding="utf-8")
        typer.echo(f"{text}\nrows: {file.path}\nsummary: {folder / 'summary.md'}")


@bench.command()
def convex(
    out: Annotated[Path | None, typer.Option("--out", help="Folder; by default runs/bench-convex[-tuning].")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds.")] = 5,
    tune: Annotated[bool, typer.Option("--tune", help="Find the peers' best settings, on a seed of its own.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two small problems that need no data, one seed.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Convex problems: ours and what users would pick instead, in data points read, in work and in seconds.

    Example: `infhess bench convex --seed 100 --data-dir data`
    """
    with remedies():
        from infhess.bench import convex as comparison
        from infhess.bench import convex_peers, convex_report
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import plots
        from infhess.experiments.rows import RowFile

        plots.require()
        use(data_dir)
        for method, package in convex_peers.missing().items():
            typer.echo(f"not installed, so not run: {method} (pip install '{package}')")
        folder = out or Path("runs/bench-convex-tuning" if tune else "runs/bench-convex")
        file = RowFile(folder, fresh=fresh)
        budgets = comparison.QUICK if quick else comparison.BUDGETS
        if tune:
            show.run(list(comparison.tuning(budgets)), file, workers)
            typer.echo(f"rows: {file.path}\nsettings: {convex_report.write_settings(file.rows, folder)}")
            return
        reported = list(range(seed, seed + (1 if quick else seeds)))
        show.run(list(comparison.pieces(reported, budgets)), file, workers)
        show.run(list(comparison.stability(reported, budgets)), file, workers)
        text = convex_report.write(file.rows, reported, folder)
        typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


@bench.command()
def deep(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder; by default runs/bench-deep[-tuning|-cost|-safety].")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds.")] = 3,
    tune: Annotated[bool, typer.Option("--tune", help="Find the best rates of sgd, momentum and Adam.")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="What a step and an estimate cost on the paper's net.")] = False,
    safety: Annotated[bool, typer.Option("--safety", help="The paper's net from rates of 1e-6 to 100.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two problems, 100 steps, one seed.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's net at its full width too.")] = False,
    problem: Annotated[
        list[str] | None, typer.Option("--problem", help="This problem alone; give it again for more.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="This method alone; give it again for more.")
    ] = None,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Nets: ours and what users would pick instead, from any rate and in any units; or what the optimizer costs.

    Example: `infhess bench deep --seed 100 --data-dir data`

    Example: `infhess bench deep --problem mnist-mlp --method "ours, RateFree" --method Adam`
    """
    with remedies():
        from infhess.bench import deep as comparison
        from infhess.bench import deep_peers, deep_results
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import plots
        from infhess.experiments.rows import RowFile

        if tune + cost + safety > 1:
            raise ValueError("expected at most one of --tune, --cost and --safety")
        if (cost or safety) and (problem or method):
            raise ValueError("--problem and --method: not with --cost or --safety, which are of the paper's net")
        use(data_dir)
        if cost or safety:
            _optimizer_in_nets(out, seed, cost=cost, quick=quick, fresh=fresh, workers=workers)
            return
        plots.require()
        for name, package in deep_peers.missing().items():
            typer.echo(f"not installed, so not run: {name} (pip install '{package}')")
        folder = out or Path("runs/bench-deep-tuning" if tune else "runs/bench-deep")
        names, steps = comparison.names(problem or (), quick=quick, full=full), 100 if quick else 0
        chosen = comparison.methods(method or ())
        file = RowFile(folder, fresh=fresh)
        if tune:
            show.run(list(comparison.tuning(names, chosen, steps=steps)), file, workers)
            typer.echo(f"rows: {file.path}\nsettings: {deep_results.write_settings(file.rows, folder)}")
            return
        reported = list(range(seed, seed + (1 if quick else seeds)))
        for pieces in (comparison.pieces, comparison.starts, comparison.units):
            show.run(list(pieces(names, reported, chosen, steps=steps)), file, workers)
        text = deep_results.write(file.rows, reported, folder)
        typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


def _optimizer_in_nets(out: Path | None, seed: int, *, cost: bool, quick: bool, fresh: bool, workers: int) -> None:
    """What it costs beside its base, or whether any rate to start from is safe, on the paper's net."""
    from infhess._files import atomic
    from infhess.bench import cost as costs
    from infhess.bench import safety as starts
    from infhess.cli import show
    from infhess.experiments.rows import RowFile

    folder = out or Path(f"runs/bench-deep-{'cost' if cost else 'safety'}")
    file = RowFile(folder, fresh=fresh, seed=seed)
    # Times are taken one after the other, in this process.
    comparison, hands = (costs, 1) if cost else (starts, workers)
    show.run(list(comparison.pieces(seed, quick=quick)), file, hands)
    text = comparison.markdown(file.rows)
    with atomic(folder / "summary.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"{text}\nrows: {file.path}\nsummary: {folder / 'summary.md'}")
