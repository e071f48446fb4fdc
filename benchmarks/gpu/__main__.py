"""One part in a process of its own: `python -m easyscale.benchmarks.gpu PART OPTIONS FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .checks import Options, Teller
from .parts import PARTS


def main() -> None:
    """Run it; what it finds goes to the file."""
    name, options, file = sys.argv[1:]
    PARTS[name].run(Options(**json.loads(options)), Teller(Path(file)))


if __name__ == "__main__":
    main()
