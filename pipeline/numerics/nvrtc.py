"""NVIDIA's runtime compiler, NVRTC: CUDA C++ in, machine code out. It comes with PyTorch's CUDA wheels.

NVRTC compiles one program at a time in a process. So `compile_all` starts processes, and this file is what they run: it
imports nothing but the standard library, which takes 30 ms.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSIONS = (13, 12)
"""Of NVRTC: the first that is found. 12 is the oldest that knows C++20."""

_MAPPED = re.compile(r"(/\S*/libnvrtc\.so\.(\d+)\S*)$", re.MULTILINE)


class NvrtcError(Exception):
    """It is not there, or does not do what it should; the text says which."""


class Program(NamedTuple):
    """What is to be compiled.

    Args:
        text: the source. headers: by name, what the source includes from memory. names: kernels as the source would
            write them, with their template arguments. options: of NVRTC.
    """

    text: str
    headers: dict[str, str]
    names: tuple[str, ...]
    options: tuple[str, ...]


class Compiled(NamedTuple):
    """What came of it.

    Args:
        cubin: machine code. symbols: what each kernel is called there. log: NVRTC's and ptxas's remarks.
    """

    cubin: bytes
    symbols: dict[str, str]
    log: str


class Nvrtc:
    """The library.

    Args:
        path: of it, or a name for the loader.

    Raises:
        NvrtcError: it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # NVRTC looks for its other half by name: it must be there already if its folder is not the loader's.
            for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NvrtcError(f"{path} cannot be loaded: {error}") from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> str:
        """As `13.0`."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> tuple[str, ...]:
        """Those it can make machine code for, as `sm_90`, oldest first."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(f"sm_{number}" for number in numbers)

    def compile(self, program: Program) -> Compiled:
        """Compile it.

        Raises:
            NvrtcError: it has errors, or lacks a kernel.
        """
        handle = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(handle),
            program.text.encode(),
            b"program.cu",
            len(program.headers),
            _texts(program.headers.values()),
            _texts(program.headers),
        )
        try:
            for name in program.names:
                self._call("nvrtcAddNameExpression", handle, name.encode())
            failed = self._library.nvrtcCompileProgram(handle, len(program.options), _texts(program.options))
            log = self._bytes(handle, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if failed:
                raise NvrtcError(log or self._text(failed))
            symbols = {name: self._symbol(handle, name) for name in program.names}
            return Compiled(self._bytes(handle, "CUBIN"), symbols, log)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(handle))

    def _bytes(self, handle: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", handle, data)
        return data.raw

    def _symbol(self, handle: ctypes.c_void_p, name: str) -> str:
        symbol = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", handle, name.encode(), ctypes.byref(symbol))
        return (symbol.value or b"").decode()

    def _call(self, function: str, *arguments: object) -> None:
        if status := getattr(self._library, function)(*arguments):
            raise NvrtcError(f"{function}: {self._text(status)}")

    def _text(self, status: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(status)
        return text.decode()


def _texts(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def find() -> Nvrtc:
    """The one that this process has loaded, else one of an installed wheel, else one that the loader knows.

    Raises:
        NvrtcError: there is none.
    """
    for path in _places():
        try:
            return Nvrtc(path)
        except NvrtcError:
            continue
    raise NvrtcError(f"NVRTC, the CUDA compiler, was not found (libnvrtc.so.{' or .'.join(map(str, VERSIONS))})")


def _places() -> Iterator[str]:
    try:
        mapped = _MAPPED.findall(Path("/proc/self/maps").read_text())
    except OSError:
        mapped = []
    yield from (path for path, version in dict.fromkeys(mapped) if int(version) in VERSIONS)
    shared = importlib.util.find_spec("nvidia")  # a namespace that several wheels share
    roots = list(shared.submodule_search_locations or ()) if shared else []
    for version in VERSIONS:
        for root in roots:
            for folder in (f"cu{version}", "cuda_nvrtc"):
                yield from map(str, Path(root, folder, "lib").glob(f"libnvrtc.so.{version}"))
        yield f"libnvrtc.so.{version}"


def compile_all(nvrtc: Nvrtc, programs: Iterable[Program]) -> Iterator[Compiled]:
    """Compile them on all processors, each in a process of its own.

    Yields:
        What came of each, in their order.

    Raises:
        NvrtcError: one of them has errors.
    """
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        try:
            yield from pool.map(lambda program: _compile_apart(nvrtc.path, program), programs)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _compile_apart(library: str, program: Program) -> Compiled:
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), library]
    done = subprocess.run(command, input=json.dumps(program._asdict()).encode(), capture_output=True, check=False)
    if done.returncode:
        raise NvrtcError(done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}")
    head, _, cubin = done.stdout.partition(b"\n")
    return Compiled(cubin, **json.loads(head))


def _serve(library: str) -> None:
    """Compile the program on standard input: a line about it, then the machine code."""
    asked = json.load(sys.stdin)
    try:
        done = Nvrtc(library).compile(Program(**asked))
    except NvrtcError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(json.dumps({"symbols": done.symbols, "log": done.log}).encode() + b"\n" + done.cubin)


if __name__ == "__main__":
    _serve(sys.argv[1])
