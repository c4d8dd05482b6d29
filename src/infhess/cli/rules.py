"""Which rule a row of results was computed by, from its names: none for what other packages compute."""

from __future__ import annotations

import re

from infhess._rules import RULES

# Patterns of an experiment and of the beginning of a method's name; the first line that matches both counts.
PATTERNS = (
    ("demo, convex", "infhess", "convex"),
    ("demo.*", "(value|low|high)$", "spectrum"),
    ("bench-deep-cost", "probe|rotated", "rate-free"),
    ("bench-deep-cost", "", "nets"),
    ("(bench|reproduce)-(deep|convex|regression|logistic).*", "paper", "paper"),
    (".*", r"infhess, no learning rate|infhess\.RateFree", "rate-free"),
    ("bench-(convex|convex-stability)|reproduce-(regression|logistic)", "infhess", "convex"),
    ("bench-convex-accuracy", r"infhess\.minimize", "minimize"),
    ("bench-convex-calibration", "pool|memory", "minimize"),
    ("(bench|reproduce)-(deep|overhead).*", "infhess", "nets"),
    ("bench-inference", "(?!copy)", "inference"),
    ("bench-density-coverage", "", "density"),
    ("bench-curvature-seconds", "infhess: density", "density"),
    ("bench-curvature-(seconds|trace|coverage)", r"(infhess[^:]*: )?trace|infhess\.trace", "trace"),
    ("bench-curvature-edge|spectrum-watch", "", "tracker"),
    ("bench-curvature-tracker", ".*Tracker", "tracker"),
    ("bench-curvature-(coverage|large|tracker)|spectrum", "", "spectrum"),
    ("bench-curvature.*", "infhess", "spectrum"),
)
# Rows without a rule are from before rules had versions: those of this version of the package were made with these.
UNNAMED, BEFORE = "0.2.0", dict.fromkeys(RULES, 1) | {"rate-free": 5}
DEMO, CONVEX = "demo", "digits 3 against 5"  # the one experiment with two rules of one name, told apart by problem


def rule_of(experiment: str, problem: str, method: str) -> str:
    """The rule that computed a row, "" if it is another package's.

    >>> rule_of("bench-deep", "digits", "infhess, no learning rate"), rule_of("bench-deep", "digits", "Adam, 0.1")
    ('rate-free', '')
    """
    place = f"{experiment}, convex" if (experiment, problem) == (DEMO, CONVEX) else experiment
    found = (rule for where, name, rule in PATTERNS if re.fullmatch(where, place) and re.match(name, method))
    return next(found, "")


def rule_before(experiment: str, problem: str, method: str, version: str) -> str:
    """The rule of a row that does not name it, with the version it had then: "older" from earlier versions of the package."""
    rule = rule_of(experiment, problem, method)
    return rule and f"{rule} {BEFORE[rule] if version == UNNAMED else 'older'}"
