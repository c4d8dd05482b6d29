"""The harness: training runs, budgets, counting and tuning; problems × methods × budgets → rows."""

from infhess.cli.rows import Key, Row, RowFile
from infhess_bench.harness.comparison import TUNING_SEED, Cell, Comparison, best_settings, read_settings, write_settings
from infhess_bench.harness.curves import EXACT, GAPS, START, Axes, Curves, ends_of, optimum, shown, thinned
from infhess_bench.harness.jobs import Job
from infhess_bench.harness.methods import (
    Baseline,
    Make,
    Setting,
    fixed,
    missing,
    online,
    paper,
    schedule_free,
    sgd,
    updated,
)
from infhess_bench.harness.tables import Cells, Target, at_least, at_most, markdown, plain, target_cells, write, written
from infhess_bench.harness.timing import on_threads, processor_seconds, timed
from infhess_bench.harness.training import (
    ACCURACY,
    AVERAGED,
    BESIDE,
    ITERATES,
    RATE,
    WALL,
    MakeOptimizer,
    Method,
    Online,
    Problem,
    Run,
    Training,
    curve,
    ends,
)

__all__ = [
    "Job", "Key", "Row", "RowFile",
    "TUNING_SEED", "Cell", "Comparison", "best_settings", "read_settings", "write_settings",
    "ACCURACY", "AVERAGED", "BESIDE", "ITERATES", "RATE", "WALL", "MakeOptimizer", "Method", "Online", "Problem", "Run",
    "Training", "curve", "ends",
    "Baseline", "Make", "Setting", "fixed", "missing", "online", "paper", "schedule_free", "sgd",
    "updated",
    "EXACT", "GAPS", "START", "Axes", "Curves", "ends_of", "optimum", "shown", "thinned",
    "Cells", "Target", "at_least", "at_most", "markdown", "plain", "target_cells", "write", "written",
    "on_threads", "processor_seconds", "timed",
]  # fmt: skip
