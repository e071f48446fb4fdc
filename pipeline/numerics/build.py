"""Builds the library of exact kernels from `csrc/`, once for each compiler, PyTorch and state of the sources.

Every file is compiled by itself and kept under the hash of all that goes into it (its text, that of the headers it
includes, the flags, the compiler), so a change costs one file and several checkouts share their objects. The files of
`csrc/cpu` are compiled once for each instruction set; those of `csrc/torch` need PyTorch's headers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import EasyScaleError, UserError, listed
from ...storage.files import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = Path(__file__).parents[2] / "csrc"

MAKE_LIKE = ("CXX", "c++", "g++", "clang++")
"""The environment variable, and the programs, of which the first that is there compiles."""

MATH = ("-std=c++20", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
"""No flag may let the compiler change a result: `-fno-trapping-math` only says that nobody looks at exception flags."""

ONCE = ("isa.cc", "parallel.cc")
"""Files of `csrc/cpu` that are the same for all instruction sets."""

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class BuildError(UserError):
    """The exact kernels cannot be built on this machine."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor family.

    Args:
        isas: flags by instruction set.
        compiler: a program that compiles for it; None: this machine's.
    """

    isas: dict[str, tuple[str, ...]]
    compiler: str | None = None


X86 = Target(
    {
        "baseline": ("-march=x86-64",),
        "avx2": ("-march=haswell",),
        "avx512": ("-march=skylake-avx512", "-mprefer-vector-width=512"),
    }
)
ARM = Target({"neon": ("-march=armv8-a",)})


def target() -> Target:
    """This machine's.

    Raises:
        BuildError: there are no kernels for it.
    """
    machine = platform.machine()
    found = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}.get(machine)
    if found is None:
        raise BuildError(f"there are no exact kernels for {machine} processors", 'use numerics="native" here')
    return found


def cache_folder() -> Path:
    """Where objects and libraries are kept: EASYSCALE_BUILD_FOLDER, or `easyscale` in the user's cache folder."""
    if named := os.environ.get("EASYSCALE_BUILD_FOLDER"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "easyscale"


def compiler() -> str:
    """The C++ compiler.

    Raises:
        BuildError: there is none.
    """
    named = os.environ.get("CXX")
    for name in (named,) if named else MAKE_LIKE[1:]:
        if name and (found := shutil.which(name)):
            return found
    looked = f"CXX={named}" if named else listed(MAKE_LIKE[1:])
    raise BuildError(
        f"exact numerics need a C++ compiler, and none was found ({looked})",
        'install one (Debian: apt install g++), or name it with CXX; numerics="native" needs none',
    )


@cache
def _version(program: str) -> str:
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"{program} does not work as a C++ compiler: `{program} --version` failed ({error})",
            "name another with CXX",
        ) from error


@dataclass(frozen=True, slots=True)
class Unit:
    """One compilation.

    Args:
        source: the file. flags: all that is given to the compiler beside it.
    """

    source: Path
    flags: tuple[str, ...]

    def key(self, program: str) -> str:
        """Hash of everything that decides what comes out."""
        found = hashlib.sha256(_version(program).encode())
        found.update("\0".join(self.flags).encode())
        for path in [self.source, *sorted(_included(self.source))]:
            found.update(path.name.encode() + b"\0" + path.read_bytes())
        return found.hexdigest()[:24]


def _included(source: Path) -> set[Path]:
    """Our own headers that a file includes, directly or not."""
    found: set[Path] = set()
    todo = [source]
    while todo:
        path = todo.pop()
        for name in _INCLUDE.findall(path.read_text()):
            header = (path.parent / name).resolve()
            if header.is_file() and header not in found:
                found.add(header)
                todo.append(header)
    return found


def joint_key(units: list[Unit], program: str) -> str:
    """Hash of everything that decides what a link of these gives."""
    return hashlib.sha256("".join(unit.key(program) for unit in units).encode()).hexdigest()[:24]


def kernel_units(isas: dict[str, tuple[str, ...]], only: Callable[[str], bool] = lambda _: True) -> list[Unit]:
    """The compilations of `csrc/cpu`, which needs nothing but a compiler."""
    units = []
    for source in sorted((SOURCES / "cpu").glob("*.cc")):
        if source.name in ONCE:
            units.append(Unit(source, (*MATH, "-O2")))
        elif only(source.name):
            units += [Unit(source, (*MATH, "-O3", f"-DES_ISA={isa}", *flags)) for isa, flags in isas.items()]
    return units


def torch_units() -> list[Unit]:
    """The compilations of `csrc/torch`."""
    import torch

    root = Path(torch.__file__).parent / "include"
    flags = [
        *("-isystem", str(root), "-isystem", str(root / "torch/csrc/api/include")),
        f"-DES_TORCH={torch.__version__}",  # so that another PyTorch in the same place is another key
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    if platform.machine() in ("x86_64", "AMD64"):
        flags += ["-DHAVE_AVX2_CPU_DEFINITION", "-DHAVE_AVX512_CPU_DEFINITION"]  # as PyTorch was built
    return [Unit(source, (*MATH, "-O2", *flags)) for source in sorted((SOURCES / "torch").glob("*.cc"))]


def objects(units: list[Unit], program: str, folder: Path, say: Callable[[str], None] | None = None) -> list[Path]:
    """Compile what is not there yet, on all processors.

    Returns:
        The object files, in the order of `units`.

    Raises:
        BuildError: the compiler refuses a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{unit.source.stem}-{unit.key(program)}.o" for unit in units]
    missing = [(unit, path) for unit, path in zip(units, paths, strict=True) if not path.exists()]

    def compile_one(todo: tuple[Unit, Path]) -> None:
        unit, path = todo
        draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
        try:
            _run([program, *unit.flags, "-c", str(unit.source), "-o", str(draft)])
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for number, _ in enumerate(pool.map(compile_one, missing), 1):
            if say:
                say(f"compiled {number} of {len(missing)} files")
    return paths


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if "error" in line] or lines
        if any(os.strerror(number) in done.stderr for number in NO_ROOM):
            raise EasyScaleError(f"exact kernels cannot be built: {errors[0] if errors else 'the disk is full'}")
        raise BuildError(
            f"{command[0]} cannot build the exact kernels: " + "\n  ".join(errors[:5]),
            "it must know C++20 (g++ 11 or clang++ 14, or newer); another is named with CXX",
        )


def place() -> Path:
    """Where the library for this process's PyTorch, compiler and sources is, or will be.

    Raises:
        BuildError: it cannot be built here.
    """
    units = kernel_units(target().isas) + torch_units()
    return cache_folder() / f"exact-{joint_key(units, compiler())}.so"


def library(say: Callable[[str], None] | None = None) -> Path:
    """The library for this process's PyTorch, built if need be.

    Args:
        say: is told about progress.

    Raises:
        BuildError: it cannot be built here.
        EasyScaleError: its folder cannot be used.
    """
    import torch

    path = place()
    if path.exists():
        return path
    program, folder = compiler(), path.parent
    units = kernel_units(target().isas) + torch_units()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not path.exists():
                made = objects(units, program, folder / "objects", say)
                draft = path.with_suffix(f".{os.getpid()}.draft")
                libraries = Path(torch.__file__).parent / "lib"
                linked = ["-shared", f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
                try:
                    _run([program, *map(str, made), *linked, "-o", str(draft)])
                    draft.replace(path)
                finally:
                    draft.unlink(missing_ok=True)
    except OSError as error:
        raise EasyScaleError(f"exact kernels cannot be built in {folder}: {error.strerror or error}") from error
    return path


class _locked:  # noqa: N801 - used like a function
    """One process at a time; the others find what it has built."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
