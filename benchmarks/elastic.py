"""What elasticity costs and brings, each part against its rivals: one command for all tables.

    python benchmarks/elastic.py [--only ddp recovery moves digest] [--torchft PYTHON]

`ddp` is speed against PyTorch's DDP, `recovery` what a `kill -9` costs beside torchrun and torchft, `moves` what a
leave and a join cost, `digest` what comparing states costs. Each part is a program of its own, with its own options.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def ddp(_: argparse.Namespace) -> None:
    """Samples per second against DDP."""
    import ddp

    ddp.tables()
    ddp.tables(sockets=True)


def recovery(chosen: argparse.Namespace) -> None:
    """What a kill costs."""
    import recovery

    recovery.tables(torchft=chosen.torchft)


def moves(_: argparse.Namespace) -> None:
    """What leaves and joins cost."""
    import moves

    moves.tables()


def digest(_: argparse.Namespace) -> None:
    """What comparing states costs."""
    import integrity

    integrity.tables()


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "ddp": ddp,
    "recovery": recovery,
    "moves": moves,
    "digest": digest,
}


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument(
        "--torchft", default="", metavar="PYTHON", help="an interpreter that has torchft: see recovery.py"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    for name in chosen.only:
        print(f"\n## {name}", flush=True)
        PARTS[name](chosen)


if __name__ == "__main__":
    main()
