"""Machine code of `csrc/cuda` for GPUs: compiled by NVRTC, kept, and handed to the library, which starts the kernels.

The library knows its kernels by name; each file's are one program. What comes out is kept beside the library under the
hash of all that goes in. So a machine without a GPU can make it beforehand, for any architecture.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import DeviceError, EasyScaleError, listed
from . import build
from .nvrtc import Nvrtc, NvrtcError, Program, compile_all, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OLDEST = 75
"""The first architecture: Turing's."""

OPTIONS = (
    "--std=c++20",
    "--fmad=false",
    "--device-as-default-execution-space",  # headers declare what only the host has: it is unused here
    "-DES_ISA=cuda",
    "--diag-suppress=161",  # other compilers' pragmas
    "--ptxas-options=-v",  # what each kernel needs, for the log
)
"""Of NVRTC. No flag may let it change a result: `--fmad=false` is -ffp-contract=off; the rest is precise by default."""

HEADERS = {
    "cstddef": "",
    "cstdint": """
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
""",
    "cstring": "",
}
"""What NVRTC lacks of the standard library; it knows memcpy."""


class Kernel(NamedTuple):
    """A kernel of the library.

    Args:
        file: of `csrc/cuda`. name: with its template arguments, as the source would write it.
        parameters: bytes of each.
    """

    file: str
    name: str
    parameters: tuple[int, ...]


class Cubin(NamedTuple):
    """Machine code of a file.

    Args:
        file: of `csrc/cuda`. arch: as `sm_90`. path: of the machine code. symbols: what each kernel is called there.
        log: what ptxas says of them.
    """

    file: str
    arch: str
    path: Path
    symbols: dict[str, str]
    log: str


@cache
def compiler() -> Nvrtc:
    """NVRTC.

    Raises:
        BuildError: there is none.
    """
    try:
        return find()
    except NvrtcError as error:
        raise build.BuildError(
            f"exact numerics on GPUs need NVRTC: {error}",
            "install it (pip install nvidia-cuda-nvrtc): PyTorch's CUDA wheels bring it along",
        ) from None


def architectures() -> tuple[str, ...]:
    """Those that kernels can be compiled for here, as `sm_90`, oldest first.

    Raises:
        BuildError: there is no NVRTC.
    """
    return tuple(arch for arch in compiler().architectures() if _number(arch) >= OLDEST)


def chosen(archs: Iterable[str]) -> tuple[str, ...]:
    """The architectures that a user has named; `all` is all.

    Raises:
        BuildError: one is unknown, or too old.
    """
    known, asked = architectures(), list(dict.fromkeys(archs))
    if "all" in asked:
        return known
    for arch in asked:
        if re.fullmatch(r"sm_\d+", arch) and _number(arch) < OLDEST:
            raise build.BuildError(
                f"exact numerics have no kernels for {arch}: the oldest architecture is sm_{OLDEST} (Turing)",
                f"leave it out, or name others of {listed(known)}",
            )
        if arch not in known:
            raise build.BuildError(
                f"NVRTC {compiler().version()} knows no architecture {arch!r}", f"it knows {listed(known)}; all is all"
            )
    return tuple(asked)


def architecture_of(capability: tuple[int, int]) -> str:
    """What to compile for a device of this compute capability: code runs on later devices of the same generation.

    Raises:
        DeviceError: there is no such architecture.
    """
    major, minor = capability
    known = [_number(arch) for arch in architectures()]
    fitting = [number for number in known if number // 10 == major and number % 10 <= minor]
    if fitting:
        return f"sm_{max(fitting)}"
    what = f"exact numerics cannot run on a GPU of compute capability {major}.{minor}"
    if major * 10 + minor < OLDEST:
        raise DeviceError(f"{what}: the oldest is {OLDEST // 10}.{OLDEST % 10} (Turing)")
    raise DeviceError(f"{what}: NVRTC {compiler().version()} does not know it; a newer PyTorch brings a newer one")


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def cubins(kernels: Iterable[Kernel], archs: Iterable[str], say: Callable[[str], None] | None = None) -> list[Cubin]:
    """The machine code of all files that these kernels are of, for all architectures; compiled if need be.

    Args:
        kernels: all kernels of the files. archs: architectures. say: is told about progress.

    Raises:
        BuildError: it cannot be compiled here.
        EasyScaleError: the folder cannot be used.
    """
    names: dict[str, list[str]] = {}
    for kernel in kernels:
        names.setdefault(kernel.file, []).append(kernel.name)
    sources = build.Sources()
    work = [_Work(file, arch, tuple(sorted(names[file])), sources) for arch in archs for file in sorted(names)]
    try:
        if not all(one.there() for one in work):
            _compile(work, say)
        return [one.cubin() for one in work]
    except OSError as error:
        raise EasyScaleError(f"exact kernels cannot be built in {folder()}: {error.strerror or error}") from error


def folder() -> Path:
    """Where machine code is kept."""
    return build.cache_folder() / "cuda"


class _Work:
    """One file for one architecture."""

    def __init__(self, file: str, arch: str, names: tuple[str, ...], sources: build.Sources) -> None:
        self.file, self.arch = file, arch
        options = (*OPTIONS, f"--gpu-architecture={arch}")
        # At the end: the compiler on our side writes types as they are seen from inside of our namespace.
        text = f'#include "cuda/{file}"\nusing namespace es;\n'
        with_folder = (*options, f"--include-path={build.SOURCES}")  # which is not part of what comes out
        self.program = Program(text, HEADERS, names, with_folder)
        library = Path(compiler().path).resolve()
        who = f"{compiler().version()} {library.name} {library.stat().st_size if library.is_file() else ''}"
        source = sources.hash(build.Unit(build.SOURCES / "cuda" / file, options), who)
        whole = json.dumps([source, text, HEADERS, names])
        self._stem = f"{Path(file).stem}-{arch}-{hashlib.sha256(whole.encode()).hexdigest()[:24]}"

    def _path(self, ending: str) -> Path:
        return folder() / f"{self._stem}.{ending}"

    def there(self) -> bool:
        return self._path("json").exists()  # which is written last

    def keep(self, cubin: bytes, symbols: dict[str, str], log: str) -> None:
        _write(self._path("cubin"), cubin)
        _write(self._path("json"), json.dumps({"symbols": symbols, "log": log}, indent=1).encode())

    def cubin(self) -> Cubin:
        return Cubin(self.file, self.arch, self._path("cubin"), **json.loads(self._path("json").read_text()))


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _compile(work: list[_Work], say: Callable[[str], None] | None) -> None:
    """One process for all that wait for it."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [one for one in work if not one.there()]
        try:
            for number, (one, done) in enumerate(
                zip(missing, compile_all(compiler(), [one.program for one in missing]), strict=True), 1
            ):
                one.keep(*done)
                if say:
                    say(f"compiled {number} of {len(missing)} files for GPUs")
        except NvrtcError as error:
            lines = str(error).splitlines()
            errors = [line for line in lines if "error" in line] or lines
            raise build.BuildError(
                f"NVRTC {compiler().version()} cannot compile the exact kernels: " + "\n  ".join(errors[:5]),
                "it must be of CUDA 12 or 13, as PyTorch's wheels bring it",
            ) from error


def present() -> tuple[str, ...]:
    """The architectures of this machine's GPUs, as far as PyTorch can use them, and there can be kernels for them.

    Raises:
        BuildError: there is a GPU, but no NVRTC.
    """
    import torch

    found = set()
    for number in range(torch.cuda.device_count()):
        with suppress(DeviceError):
            found.add(architecture_of(torch.cuda.get_device_capability(number)))
    return tuple(sorted(found, key=_number))


def kernels_in(library: Path) -> list[Kernel]:
    """The kernels of a library that was built with them, which is loaded for that if this process has none yet."""
    import torch

    if not hasattr(torch.ops.easyscale, "cuda_kernels"):
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    return kernels(torch.ops.easyscale)


def kernels(operators: Any) -> list[Kernel]:
    """The kernels of a library that has been loaded (`torch.ops.easyscale`)."""
    return [kernel(line) for line in operators.cuda_kernels()]


def kernel(line: str) -> Kernel:
    """A kernel as the library writes it: file, name and bytes of its parameters, between tabs."""
    file, name, *sizes = line.split("\t")
    return Kernel(file, name, tuple(map(int, sizes)))


def start(operators: Any, device: int, say: Callable[[str], None] | None = None) -> None:
    """Let the kernels of a library run on a GPU from now on.

    Args:
        operators: the library's (`torch.ops.easyscale`). device: number of the GPU. say: is told about progress.

    Raises:
        BuildError: they cannot be compiled here.
        DeviceError: there are none for this GPU, or its driver does not take them.
    """
    import torch

    arch = architecture_of(torch.cuda.get_device_capability(device))
    try:
        for one in cubins(kernels(operators), [arch], say):
            operators.cuda_load(one.file, str(one.path), list(one.symbols), list(one.symbols.values()))
        operators.cuda_start("libcuda.so.1")
    except RuntimeError as error:
        raise DeviceError(str(error).splitlines()[0]) from None
