"""What the paper claims, what was found, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infhess.harness.tables import markdown

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the numbers found, a verdict, and the reason where it deviates."""

    paper: str
    found: str
    verdict: str
    why: str = ""


def verdict(holds: Sequence[bool]) -> str:
    """All, some or none of the checks."""
    return HOLDS if all(holds) else IN_PART if any(holds) else FAILS


def claim_table(claims: Sequence[Claim]) -> str:
    """In Markdown."""
    cells = [[c.paper, f"{c.found} {c.why}".strip(), c.verdict] for c in claims]
    return markdown([["the paper", "found here", "verdict"], *cells])
