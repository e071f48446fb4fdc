"""What a cluster consists of: given in words, or as Alibaba's list of nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ...errors import UserError
from .lines import read, whole

NODES = "sn,cpu_milli,memory_mib,gpu,model"


def cluster(text: str) -> dict[str, int]:
    """Devices by kind, of `v100:32,p100:16` or of a file of nodes.

    Raises:
        UserError: it is neither, or has no devices.
    """
    found = _of_nodes(Path(text)) if Path(text).is_file() else _of_words(text)
    devices = {kind: count for kind, count in found.items() if count}
    if not devices:
        raise UserError(f"cluster {text!r} has no devices")
    return devices


def _of_words(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in text.split(","):
        kind, colon, count = part.strip().partition(":")
        if not colon or not kind or not count.isdecimal():
            raise UserError(
                f"cluster {text!r}: {part!r} is no kind and number of devices",
                "write it like v100:32,p100:16, or name a file of nodes",
            )
        found[kind] += int(count)
    return found


def _of_nodes(path: Path) -> Counter[str]:
    def parse(_: int, row: list[str]) -> tuple[str, int]:
        return row[4], whole(row[3], "gpu")

    found: Counter[str] = Counter()
    for kind, count in read(path, ",", parse, fields=5, header=NODES, skip=False):
        found[kind] += count
    return found
