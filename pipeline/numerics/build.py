"""Builds the library of exact kernels from `csrc/`, once for each compiler, PyTorch and state of the sources.

Every file is compiled by itself and kept under the hash of all that goes into it (its text, that of the headers it
includes, the flags, the compiler), so a change costs one file and several checkouts share their objects. The files of
`csrc/cpu` are compiled once for each instruction set; those of `csrc/torch` need PyTorch's headers. Those of
`csrc/cuda`, where PyTorch has CUDA, are what starts kernels on GPUs: the machine code of these comes from `cuda.py`.
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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...errors import EasyScaleError, UserError, listed
from ...storage.files import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOURCES = Path(__file__).parents[2] / "csrc"

COMPILERS = ("c++", "g++", "clang++")
"""The first that is there is used, unless CXX names one."""

MATH = ("-std=c++20", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
"""No flag may let the compiler change a result: `-fno-trapping-math` only says that nobody looks at exception flags."""

ONCE = ("isa.cc", "parallel.cc")
"""Files of `csrc/cpu` that are the same for all instruction sets."""

CUDA = "EASYSCALE_CUDA"
"""Environment variable, for tests: 1 brings CUDA's kernels along even if PyTorch has no CUDA, 0 leaves them out.
Without a GPU they are run by the processor, a thread at a time."""

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class BuildError(UserError):
    """The exact kernels cannot be built on this machine."""


Isas = dict[str, tuple[str, ...]]
"""Instruction sets of a family of processors, and the compiler's flags for each."""

X86: Isas = {
    "baseline": ("-march=x86-64",),
    "avx2": ("-march=haswell",),
    "avx512": ("-march=skylake-avx512", "-mprefer-vector-width=512"),
}
ARM: Isas = {"neon": ("-march=armv8-a",)}


def isas() -> Isas:
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
    for name in (named,) if named else COMPILERS:
        if found := shutil.which(name):
            return found
    looked = f"CXX={named}" if named else listed(COMPILERS)
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


class Unit(NamedTuple):
    """One compilation.

    Args:
        source: the file. flags: all that is given to the compiler beside it.
    """

    source: Path
    flags: tuple[str, ...]


class Sources:
    """What goes into a compilation. Each file is read once."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[bytes, list[Path]]] = {}

    def hash(self, unit: Unit, compiler: str) -> str:
        """Of everything that decides what comes out.

        Args:
            compiler: its version.
        """
        found = hashlib.sha256(compiler.encode())
        found.update("\0".join(unit.flags).encode())
        for path in [unit.source, *sorted(self._included(unit.source))]:
            found.update(path.name.encode() + b"\0" + self._file(path)[0])
        return found.hexdigest()[:24]

    def _included(self, source: Path) -> set[Path]:
        """Our own headers that a file includes, directly or not."""
        found: set[Path] = set()
        todo = [source]
        while todo:
            new = set(self._file(todo.pop())[1]) - found
            found |= new
            todo += new
        return found

    def _file(self, path: Path) -> tuple[bytes, list[Path]]:
        if path not in self._read:
            data = path.read_bytes()
            headers = [(path.parent / name).resolve() for name in _INCLUDE.findall(data.decode())]
            self._read[path] = data, [header for header in headers if header.is_file()]
        return self._read[path]


def _hashes(units: list[Unit], program: str) -> list[str]:
    sources, version = Sources(), _version(program)
    return [sources.hash(unit, version) for unit in units]


def kernel_units(isas: Isas, only: Callable[[str], bool] = lambda _: True) -> list[Unit]:
    """The compilations of `csrc/cpu`, which needs nothing but a compiler."""
    units = []
    for source in sorted((SOURCES / "cpu").glob("*.cc")):
        if source.name in ONCE:
            units.append(Unit(source, (*MATH, "-O2")))
        elif only(source.name):
            units += [Unit(source, (*MATH, "-O3", f"-DES_ISA={isa}", *flags)) for isa, flags in isas.items()]
    return units


def cuda_units(flags: tuple[str, ...] = ()) -> list[Unit]:
    """The compilations of `csrc/cuda` by a C++ compiler, which needs nothing else.

    Args:
        flags: of the compiler, beside ours. Nothing that is looked for at run time: what runs on no GPU runs on this
            machine's processor alone, see `processor_flags`.
    """
    mine = (*MATH, "-O2", "-DES_ISA=cuda", "-Wno-unknown-pragmas", *flags, "-x", "c++")
    return [Unit(source, mine) for source in sorted((SOURCES / "cuda").glob("*.c[cu]"))]


def processor_flags() -> tuple[str, ...]:
    """What the processor that stands in for a GPU can do itself, and would else be a call for every product."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    return ("-mfma",) if " fma " in Path("/proc/cpuinfo").read_text() else ()


def torch_units(*, cuda: bool = False) -> list[Unit]:
    """The compilations of `csrc/torch`.

    Args:
        cuda: whether the kernels of `csrc/cuda` will be there, too.
    """
    import torch

    root = Path(torch.__file__).parent / "include"
    flags = [
        *("-isystem", str(root), "-isystem", str(root / "torch/csrc/api/include")),
        f"-DES_TORCH={torch.__version__}",  # so that another PyTorch in the same place is another key
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    if platform.machine() in ("x86_64", "AMD64"):
        flags += ["-DHAVE_AVX2_CPU_DEFINITION", "-DHAVE_AVX512_CPU_DEFINITION"]  # as PyTorch was built
    sources = sorted((SOURCES / "torch").glob("*.cc"))
    return [Unit(source, (*MATH, "-O2", *flags)) for source in sources if cuda or source.name != "cuda.cc"]


def objects(units: list[Unit], program: str, say: Callable[[str], None] | None = None) -> list[Path]:
    """Compile what is not there yet, on all processors.

    Returns:
        The object files, in the order of `units`.

    Raises:
        BuildError: the compiler refuses a file.
    """
    folder = cache_folder() / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    named = zip(units, _hashes(units, program), strict=True)
    paths = {unit: folder / f"{unit.source.stem}-{found}.o" for unit, found in named}
    missing = [unit for unit in units if not paths[unit].exists()]

    def compile_one(unit: Unit) -> None:
        _make(paths[unit], [program, *unit.flags, "-c", str(unit.source)])

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for number, _ in enumerate(pool.map(compile_one, missing), 1):
            if say:
                say(f"compiled {number} of {len(missing)} files")
    return list(paths.values())


def _make(path: Path, command: list[str]) -> None:
    """Run a compiler whose output is this file: all of it, or none."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        _run([*command, "-o", str(draft)])
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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


def linked(
    name: str, units: list[Unit], program: str, flags: Sequence[str] = (), say: Callable[[str], None] | None = None
) -> Path:
    """The library or program that these make, built if need be, by one process for all that wait for it.

    Args:
        name: of the file, with `{}` for the hash of everything that decides what comes out. flags: of the linker.
        say: is told about progress.

    Raises:
        BuildError: it cannot be built here.
        EasyScaleError: its folder cannot be used.
    """
    path = _place(name, units, program)
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _make(path, [program, *map(str, objects(units, program, say)), *flags])
    except OSError as error:
        raise EasyScaleError(f"exact kernels cannot be built in {path.parent}: {error.strerror or error}") from error
    return path


def _place(name: str, units: list[Unit], program: str) -> Path:
    together = hashlib.sha256("".join(_hashes(units, program)).encode()).hexdigest()[:24]
    return cache_folder() / name.format(together)


LIBRARY = "exact-{}.so"


def with_cuda() -> bool:
    """Whether the library has kernels for CUDA: if PyTorch has it, unless EASYSCALE_CUDA says otherwise."""
    import torch

    asked = os.environ.get(CUDA)
    return asked == "1" if asked else torch.version.cuda is not None


def place() -> Path:
    """Where the library for this process's PyTorch, compiler and sources is, or will be.

    Raises:
        BuildError: it cannot be built here.
    """
    return _place(LIBRARY, _units(cuda=with_cuda()), compiler())


def library(say: Callable[[str], None] | None = None, *, cuda: bool | None = None) -> Path:
    """The library for this process's PyTorch, built if need be; see `linked`.

    Args:
        say: is told about progress. cuda: with kernels for CUDA; None: see `with_cuda`.
    """
    import torch

    libraries = Path(torch.__file__).parent / "lib"
    flags = ["-shared", f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
    return linked(LIBRARY, _units(cuda=with_cuda() if cuda is None else cuda), compiler(), flags, say)


def _units(*, cuda: bool) -> list[Unit]:
    import torch

    units = kernel_units(isas()) + torch_units(cuda=cuda)
    return units + cuda_units(processor_flags() if torch.version.cuda is None else ()) if cuda else units
