"""`infhess bench deep`: nets."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infhess.cli.options import Fresh, flag
from infhess.cli.usage import remedies
from infhess_bench.cli.options import (
    DataDir,
    FirstSeed,
    Folder,
    Methods,
    Problems,
    Seeds,
    Workers,
    one_kind,
    seed_range,
)

if TYPE_CHECKING:
    from infhess.cli.rows import RowFile
    from infhess_bench.bench.deep_bench import Selection


def deep(
    out: Folder = None,
    seed: FirstSeed = 0,
    seeds: Seeds = 3,
    starts: Annotated[bool, flag("starts", "infhess around sgd, momentum and Adam from any rate.")] = False,
    tune: Annotated[bool, flag("tune", "Find the best rates of sgd and momentum for --starts.")] = False,
    cost: Annotated[bool, flag("cost", "What a step and an estimate cost on the paper's net.")] = False,
    safety: Annotated[bool, flag("safety", "500 short runs of RateFree in any units, batch and precision.")] = False,
    batches: Annotated[bool, flag("batches", "Batches of 16 to 1,024 at equal data.")] = False,
    variants: Annotated[bool, flag("variants", "RateFree's rule with one thing changed at a time.")] = False,
    large: Annotated[bool, flag("large", "A transformer of five million weights, 2,000 steps.")] = False,
    quick: Annotated[bool, flag("quick", "Two problems, 100 steps, one seed.")] = False,
    defaults: Annotated[bool, flag("defaults", "Every method at its default alone.")] = False,
    length: Annotated[
        list[int] | None, typer.Option("--length", min=1, help="Times the steps; may be repeated.")
    ] = None,
    problem_set: Annotated[
        list[str] | None, flag("set", "development, held-out, final, fresh or full width; may be repeated.")
    ] = None,
    problem: Problems = None,
    method: Methods = None,
    again: Annotated[
        bool, flag("again", "Run --method anew: its earlier rows of these problems and seeds go.")
    ] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Nets: infhess and what users would pick instead, at all rates; from any rate; or what the optimizer costs.

    Example: `infhess bench deep --set final --length 1 --length 4 --seed 100 --data-dir data`

    Example: `infhess bench deep --problem mnist-mlp --method "infhess, no learning rate" --method Adam`
    """
    with remedies():
        from infhess.cli.rows import RowFile
        from infhess_bench.bench import deep_bench
        from infhess_bench.cli import show
        from infhess_bench.data import use

        kinds = {"tune": tune, "starts": starts, "batches": batches, "variants": variants, "large": large}
        kinds |= {"cost": cost, "safety": safety}
        kind = one_kind(kinds)
        if (cost or safety) and (problem or method):
            raise ValueError("--problem and --method: not with --cost or --safety, which have their own")
        if kind and defaults:
            raise ValueError(f"--defaults: not with --{kind}, which has its own methods and rates")
        if again and not method:
            raise ValueError("--again: expected the methods to run anew; name each by --method")
        use(data_dir)
        folder = out or Path(f"runs/bench-deep-{kind}" if kind else "runs/bench-deep")
        if cost or safety:
            module = import_module(f"infhess_bench.bench.{kind}")
            file = RowFile(folder, fresh=fresh, seed=seed)
            # Times are taken one after the other, in this process.
            show.run(list(module.jobs(seed, quick=quick)), file, 1 if cost else workers)
            return show.summarised(file.path, module.summary(file.rows))
        chosen = deep_bench.selection(kind, problem or (), problem_set or (), method or (), length or (1,), quick=quick)
        chosen = chosen._replace(seeds=seed_range(seed, seeds, quick))
        chosen = chosen._replace(as_they_come=chosen.methods) if defaults else chosen
        file = RowFile(folder, fresh=fresh)
        if again:
            file.drop(partial(deep_bench.chosen_rows, chosen))
        return _compare(kind, chosen, file, workers)


def _compare(kind: str, chosen: Selection, file: RowFile, workers: int) -> None:
    """Run what is not in the file yet, and write tables and pages."""
    from infhess_bench.bench import any_rate, batch_sizes, deep_bench, deep_results, rule_variants
    from infhess_bench.bench.deep_baselines import METHODS
    from infhess_bench.cli import show
    from infhess_bench.harness import missing, on_threads, write_settings

    show.not_installed(missing(METHODS))
    folder, summaries = file.path.parent, {"batches": batch_sizes, "variants": rule_variants}
    rounds = {"tune": any_rate.tuning, "starts": any_rate.jobs, **{name: m.jobs for name, m in summaries.items()}}
    with on_threads(1):  # CPU seconds are of one thread
        show.run(list(rounds.get(kind, deep_bench.jobs)(chosen)), file, workers)
        if kind not in rounds:
            show.run(list(deep_bench.beyond(chosen, file.rows)), file, workers)
    if kind in summaries:
        return show.summarised(file.path, summaries[kind].summary(file.rows))
    if kind == "tune":
        text = f"settings: {write_settings(any_rate.best(file.rows), folder / 'tuned-deep.json')}"
    else:
        report = any_rate.report if kind == "starts" else deep_results.report
        text = report(file.rows, chosen.seeds, folder)
    return typer.echo(f"{text}\nrows and tables: {folder}")
