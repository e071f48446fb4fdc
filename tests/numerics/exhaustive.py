"""Every function of one number on every number: its hash under each instruction set is the one in exhaustive.json.

python tests/numerics/exhaustive.py            all 2^32 inputs (minutes), for the instruction sets with fma
python tests/numerics/exhaustive.py --sample   2^24 of them, for all instruction sets
... --record                                   writes exhaustive.json
... NAME...                                    only these
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from easyscale.pipeline.numerics import build

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = Path(__file__).with_name("exhaustive.json")


def program() -> Path:
    """Built from the same objects as the library."""
    units = build.kernel_units(build.isas(), lambda name: name == "pointwise.cc")
    units.append(build.Unit(build.SOURCES / "exhaustive" / "main.cc", (*build.MATH, "-O3")))
    return build.linked("exhaustive-{}", units, build.compiler(), ["-pthread"])


def hashes(isa: str, kind: str, names: list[str]) -> Iterator[tuple[str, str]]:
    """By function, one after the other. None: this processor lacks the instruction set."""
    with subprocess.Popen([str(program()), isa, kind, *names], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            name, found = line.split()
            yield name, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--isa", action="append")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    kind = "sample" if asked.sample else "all"
    isas = asked.isa or (["neon"] if platform.machine() == "aarch64" else ["avx512", "avx2"])
    if asked.sample and "avx2" in isas and not asked.isa:
        isas.append("baseline")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    wrong = 0
    for isa in isas:
        for name, found in hashes(isa, kind, asked.names):
            known = record.setdefault(kind, {}).get(name)
            if asked.record and known is None:
                record[kind][name] = found
                RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            elif known == found:
                print(f"{name} under {isa}: as recorded", flush=True)
            else:
                wrong += 1
                print(f"{name} under {isa}, {kind}: {found}, and recorded is {known}", flush=True)
    print(f"{kind}, {', '.join(isas)}: {wrong} differences")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
