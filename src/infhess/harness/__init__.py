"""The harness: training runs, budgets, counting and tuning; problems × methods × budgets → rows."""

from infhess.harness.comparison import TUNING_SEED, Cell
from infhess.harness.curves import EXACT, GAPS, START, Axes, Curves, ends_of, optimum, shown, thinned
from infhess.harness.jobs import Job
from infhess.harness.methods import Baseline, Make, Setting, fixed, missing, online, paper, schedule_free, sgd, updated
from infhess.harness.rows import Row, RowFile
from infhess.harness.tables import Cells, Target, at_least, at_most, markdown, target_cells, write, written
from infhess.harness.training import (
    ACCURACY,
    AVERAGED,
    BESIDE,
    RATE,
    WALL,
    MakeOptimizer,
    Method,
    Online,
    Problem,
    Run,
    Training,
    curve,
)  # fmt: skip

__all__ = [
    "Job", "Row", "RowFile",
    "ACCURACY", "AVERAGED", "BESIDE", "MakeOptimizer", "Method", "Online", "Problem", "RATE", "Run", "Training",
    "WALL", "curve",
    "Baseline", "Make", "Setting", "fixed", "missing", "online", "paper", "schedule_free", "sgd", "updated",
    "Axes", "Cell", "Curves", "EXACT", "GAPS", "START", "TUNING_SEED", "ends_of", "optimum", "shown", "thinned",
    "Cells", "Target", "at_least", "at_most", "markdown", "target_cells", "write", "written",
]  # fmt: skip
