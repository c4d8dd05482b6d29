"""Problems: a loss, its parameters and its data, by name; a new problem is one entry in a table."""

from infhess_bench.problems.convex_problems import ConvexProblem, convex_problem, squares
from infhess_bench.problems.curvature_problems import CURVATURE, CurvatureProblem
from infhess_bench.problems.net_problems import NetProblem
from infhess_bench.problems.nets import paper_net
from infhess_bench.problems.shuffled import CountedStream, Data, Shuffled, seeded

__all__ = [
    "CURVATURE", "ConvexProblem", "CurvatureProblem", "NetProblem", "convex_problem", "paper_net", "squares",
    "CountedStream", "Data", "Shuffled", "seeded",
]  # fmt: skip
