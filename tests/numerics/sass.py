"""Machine code of NVIDIA's GPUs, as far as tests look into it."""

from __future__ import annotations

import re
import struct
import subprocess
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?),", re.MULTILINE)
_LABEL = re.compile(r"^\s*(\S+):\s*$")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
_BRANCH = re.compile(r"`\((\.L_x_\d+)\)")
_USED = re.compile(
    r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
    re.DOTALL,
)


class Instruction(NamedTuple):
    operation: str
    operands: str


class Code:
    """A kernel's instructions, in the order of memory, without the subroutines that follow it: those that the compiler
    brings for division and square root of all numbers (`$__internal_0_$__cuda_sm20_sqrt_rn_f32_slowpath`)."""

    def __init__(self, text: str) -> None:
        self.main: list[Instruction] = []
        self._labels: dict[str, int] = {}
        for line in text.splitlines():
            if label := _LABEL.match(line):
                if "$__internal_" in label[1]:
                    break
                self._labels[label[1]] = len(self.main)
            elif found := _INSTRUCTION.match(line):
                self.main.append(Instruction(found[1], found[2]))

    def count(self, pattern: str) -> int:
        """Instructions whose operation begins like this."""
        return _count(self.main, pattern)

    @cached_property
    def loops(self) -> list[list[Instruction]]:
        """From where a branch goes back to, to the branch."""
        found = []
        for at, one in enumerate(self.main):
            to = _BRANCH.search(one.operands) if one.operation.startswith("BRA") else None
            if to and self._labels.get(to[1], at + 1) <= at:
                found.append(self.main[self._labels[to[1]] : at + 1])
        return found

    def multiply_adds(self) -> list[int]:
        """Those of floats in each loop; one that does two counts twice."""
        return [multiply_adds(loop) for loop in self.loops]


def _count(code: list[Instruction], pattern: str) -> int:
    return sum(bool(re.match(pattern, one.operation)) for one in code)


def multiply_adds(code: list[Instruction]) -> int:
    return _count(code, "FFMA") + _count(code, "FFMA2")


def disassemble(cubin: Path) -> dict[str, Code]:
    """Each kernel's code, by its symbol."""
    import nvidia

    (nvdisasm,) = [path for root in nvidia.__path__ for path in Path(root).glob("cu*/bin/nvdisasm")]
    text = subprocess.run([str(nvdisasm), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    parts = _SECTION.split(text)
    return {symbol: Code(code) for symbol, code in zip(parts[1::2], parts[2::2], strict=True)}


class Used(NamedTuple):
    registers: int
    spilled: int  # bytes, stored and loaded


def resources(log: str) -> dict[str, Used]:
    """What each kernel needs, by its symbol, as ptxas says."""
    return {symbol: Used(int(used), int(out) + int(back)) for symbol, out, back, used in _USED.findall(log)}


def parameters(cubin: bytes) -> dict[str, tuple[int, ...]]:
    """Bytes of each parameter of each kernel, by its symbol: what the driver goes by (EIATTR_KPARAM_INFO)."""
    table, entry, count, names = struct.unpack_from("<Q10xHHH", cubin, 0x28)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + number * entry) for number in range(count)]
    found = {}
    for name, _, _, _, offset, size in headers:
        start = headers[names][4] + name
        section = cubin[start : cubin.index(b"\0", start)].decode()
        if section.startswith(".nv.info."):
            found[section.removeprefix(".nv.info.")] = _sizes(cubin[offset : offset + size])
    return found


def _sizes(info: bytes) -> tuple[int, ...]:
    at, sizes = 0, {}
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:  # a value of so many bytes follows
            if attribute == 0x17:
                _, ordinal, _, flags = struct.unpack_from("<IHHI", info, at)
                sizes[ordinal] = flags >> 18
            at += value
    return tuple(sizes[ordinal] for ordinal in sorted(sizes))
