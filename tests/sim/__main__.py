"""Long runs, and replays: `python -m sim --from 17 --seeds 1`, or `make simulate FROM=17 SEEDS=1`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

from .scenario import simulate


def main() -> int:
    """Simulate seeds until one fails. Exit status 1 if one did."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seeds", type=int, default=2000)
    options = parser.parse_args()
    began = told = time.monotonic()
    injected: Counter[str] = Counter()
    for number in range(options.seeds):
        outcome = simulate(options.first + number)
        injected += outcome.injected
        if outcome.violation:
            print(f"\n{outcome.explain()}")
            return 1
        now = time.monotonic()
        if now - told > 2.0 or number + 1 == options.seeds:
            told = now
            rate = (number + 1) / (now - began)
            print(f"\r{number + 1} seeds, {injected.total()} faults, {rate:.1f} seeds/s", end="", flush=True)
            gc.collect()
    print()
    for kind, count in injected.most_common():
        print(f"{count:8d}  {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
