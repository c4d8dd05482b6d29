"""Tiny nets trained twenty times as long as they need to fit their data: their loss at the end, the best and the worst one.

usage: python tools/soak.py [SEED ...]

One line a run; the long tests of tests/optim/test_soak.py run the same and hold the end against the best.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from soak_cases import NETS, OPTIMIZERS, losses


def main(seeds: list[int]) -> None:
    """Print the table."""
    print(f"{'net':<12}{'optimizer':<12}{'seed':>4}{'end':>12}{'best':>12}{'worst':>12}")
    for net in NETS:
        for name in OPTIMIZERS:
            for seed in seeds:
                found = losses(NETS[net], name, seed)
                numbers = found[-1], min(found), max(found[len(found) // 4 :])
                print(f"{net:<12}{name:<12}{seed:>4}" + "".join(f"{x:>12.2g}" for x in numbers), flush=True)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2])
