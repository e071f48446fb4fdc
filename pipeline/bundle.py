"""The code bundle: the Python sources of a script's folder as one archive, which is all that workers get.

Equal files give equal bytes on every machine, so the SHA-256 of the archive is the digest of the code, and
the archive is stored and verified like any other blob. Data, installed packages and caches are left out.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import re
import stat
import struct
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import CorruptError, ScriptError, UnavailableError
from ..settings import IGNORE_ALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_FILES = 2000
MAX_BYTES = 20_000_000

NOT_CODE = frozenset({"__pycache__", "node_modules", "build", "dist"})
"""Folders that hold what tools made. Hidden folders (`.git`, `.venv`, `.easyscale`) are left out too."""

DIFF_LINES = 20
"""Lines of unified diff that are shown of a change."""


@dataclass(frozen=True)
class Bundle:
    """The code of a job.

    Args:
        data: the archive: a zip without compression, whose bytes depend on nothing but names and contents.
        script: path of the script inside it, with `/`.
    """

    data: bytes
    script: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the archive, that is of all names and contents."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def names(self) -> frozenset[str]:
        """The paths of the files inside it, with `/`."""
        return frozenset(_read(self.data))

    @staticmethod
    def collect(script: Path, files: Sequence[str] = ()) -> Bundle:
        """Gather the script, every `*.py` under its folder, and the files that the globs match.

        Links are followed as long as they stay inside the folder.

        Raises:
            ScriptError: too many files, too much, unreadable, or a glob that matches nothing.
        """
        script = script.resolve()
        folder = script.parent
        paths = {script}
        for path in _sources(folder, folder):
            paths.add(path)
            if len(paths) > MAX_FILES:
                raise _too_many(folder, paths)
        for pattern in files:
            paths |= _matches(folder, pattern)
        if len(paths) > MAX_FILES:
            raise _too_many(folder, paths)
        return Bundle(_archive(_contents(folder, paths)), _name(folder, script))


def unpack(data: bytes, folder: Path) -> Path:
    """Unpack an archive to `folder/<digest>`, unless it is there already and intact.

    The files appear there all at once, so several processes may unpack the same bundle at the same time.

    Returns:
        The folder with the code.

    Raises:
        CorruptError: not an archive that `Bundle.collect` could have made; nothing was written.
        UnavailableError: the folder cannot be written.
    """
    contents = _read(data)
    target = folder / hashlib.sha256(data).hexdigest()
    try:
        if _is_intact(target, contents):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="unpacking-", dir=folder) as scratch:
            fresh = Path(scratch, "new")
            for name, content in contents.items():
                path = fresh / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if target.exists():  # damaged, by a power cut perhaps
                target.rename(Path(scratch, "old"))
            fresh.rename(target)
    except OSError as error:
        if _is_intact(target, contents):  # another process was quicker
            return target
        raise UnavailableError(f"cannot unpack code to {target}: {error}") from error
    return target


def difference(old: bytes, new: bytes) -> list[str]:
    """Lines that tell a user what changed between two archives: file names, then the beginning of a diff."""
    before, after = _read(old), _read(new)
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    names = [f"changed: {name}" for name in changed]
    names += [f"added: {name}" for name in sorted(after.keys() - before.keys())]
    names += [f"removed: {name}" for name in sorted(before.keys() - after.keys())]
    diff = [line for name in changed for line in _diff(name, before[name], after[name])]
    return _head(names, "files") + _head(diff, "lines")


def _head(lines: list[str], what: str) -> list[str]:
    if len(lines) <= DIFF_LINES:
        return lines
    return [*lines[:DIFF_LINES], f"... and {len(lines) - DIFF_LINES} more {what}"]


def _diff(name: str, old: bytes, new: bytes) -> Iterator[str]:
    try:
        before, after = old.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return
    for line in difflib.unified_diff(before, after, f"{name} before", f"{name} now", n=1, lineterm=""):
        yield line[:200]


def _sources(folder: Path, root: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Every `*.py` below a folder. `above` are the real paths of the folders above: links may go round."""
    real = folder.resolve()
    if real in above or not real.is_relative_to(root):
        return
    try:
        entries = list(folder.iterdir())
    except PermissionError:
        return  # the script itself could not import anything from here either
    for path in entries:
        if _is_folder(path):
            if not _is_skipped(path):
                yield from _sources(path, root, above | {real})
        elif path.suffix == ".py" and path.is_file() and path.resolve().is_relative_to(root):
            yield path


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a link into somebody else's folder
        return False


def _is_skipped(folder: Path) -> bool:
    tools = folder.name.startswith(".") or folder.name in NOT_CODE or (folder / "pyvenv.cfg").exists()
    return tools or _is_local_folder(folder) or bool(re.fullmatch("[0-9a-f]{64}", folder.name))  # unpacked by `unpack`


def _is_local_folder(folder: Path) -> bool:
    """Whether it is a local folder of ours (`--folder`), which another run may have left beside the script."""
    try:
        return (folder / ".gitignore").read_text() == IGNORE_ALL
    except (OSError, ValueError):
        return False


def _matches(folder: Path, pattern: str) -> set[Path]:
    try:
        found = {
            path
            for path in folder.glob(pattern)
            if path.is_file()
            and path.resolve().is_relative_to(folder)
            and not any(_is_skipped(parent) for parent in path.parents if folder in parent.parents)
        }
    except (ValueError, NotImplementedError) as error:  # empty or absolute
        raise ScriptError(f"files: {pattern!r} cannot be used ({error})", f"give globs below {folder}") from error
    if not found:
        raise ScriptError(
            f"files: {pattern!r} matches no file below {folder}",
            "mend the glob; files in hidden folders, environments and caches are never taken",
        )
    return found


def _contents(folder: Path, paths: set[Path]) -> dict[str, bytes]:
    sizes = {}
    contents = {}
    try:
        for path in paths:
            sizes[path] = path.stat().st_size
        if sum(sizes.values()) > MAX_BYTES:
            raise _too_big(folder, sizes)
        for path in paths:
            contents[_name(folder, path)] = path.read_bytes()
    except OSError as error:
        raise ScriptError(
            f"code cannot be read: {error}", "make the file readable, or move it out of the script's folder"
        ) from error
    return contents


def _name(folder: Path, path: Path) -> str:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ScriptError(
            f"file name {name!r} in {folder} is not valid UTF-8 in this locale",
            "rename the file, or use a UTF-8 locale (LC_ALL=C.UTF-8)",
        ) from None
    if not _is_safe(name):
        raise ScriptError(f"file name {name!r} in {folder} cannot be used everywhere", "rename the file")
    return name


def _too_many(folder: Path, paths: set[Path]) -> ScriptError:
    counts: dict[str, int] = {}
    for path in paths:
        inside = path.relative_to(folder).parts
        place = inside[0] + "/" if len(inside) > 1 else "the folder itself"
        counts[place] = counts.get(place, 0) + 1
    most = sorted(counts, key=lambda place: -counts[place])[:3]
    return ScriptError(
        f"the script's folder {folder} holds more than {MAX_FILES} files of code, counted so far: "
        + ", ".join(f"{counts[place]} in {place}" for place in most),
        "the whole folder travels to the workers: give the script a folder of its own",
    )


def _too_big(folder: Path, sizes: Mapping[Path, int]) -> ScriptError:
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    return ScriptError(
        f"the code in {folder} has {sum(sizes.values()) / 1e6:.1f} MB of at most {MAX_BYTES / 1e6:.0f}; largest: "
        + ", ".join(f"{path.relative_to(folder)} ({sizes[path] / 1e6:.1f} MB)" for path in largest),
        "the whole folder travels to the workers: give the script a folder of its own, and keep data outside",
    )


def _archive(contents: Mapping[str, bytes]) -> bytes:
    """Stored, not deflated: zlib's output differs between versions. Order, times and modes are fixed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            member = zipfile.ZipInfo(name)
            member.create_system = 3  # Unix, whatever this machine is
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(member, contents[name])
    return buffer.getvalue()


def _read(data: bytes) -> dict[str, bytes]:
    """Names and contents of an archive, refusing everything that `_archive` does not write."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members)
            contents = {member.filename: archive.read(member) for member in members}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, struct.error) as error:
        raise CorruptError(f"code bundle: not an archive of ours ({error})") from error
    parents = {str(parent) for name in contents for parent in PurePosixPath(name).parents}
    if clash := sorted(parents & contents.keys()):
        raise CorruptError(f"code bundle: {clash[0]!r} is both a file and a folder")
    return contents


def _check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_FILES or sum(member.file_size for member in members) > MAX_BYTES:
        raise CorruptError(f"code bundle: more than {MAX_FILES} files or {MAX_BYTES} bytes")
    seen: set[str] = set()
    for member in members:
        # zipfile cuts names at a NUL; compare with what the archive really says
        if not _is_safe(member.orig_filename) or member.orig_filename != member.filename:
            raise CorruptError(f"code bundle: the name {member.orig_filename!r} leaves the folder or is odd")
        if not stat.S_ISREG(member.external_attr >> 16) or member.compress_type != zipfile.ZIP_STORED:
            raise CorruptError(f"code bundle: {member.filename!r} is not a plain stored file")
        if member.filename in seen:
            raise CorruptError(f"code bundle: {member.filename!r} is there twice")
        seen.add(member.filename)


def _is_safe(name: str) -> bool:
    """A relative path of plain parts, on Windows too."""
    parts = name.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not set(name) & set("\\:\0")


def _is_intact(target: Path, contents: Mapping[str, bytes]) -> bool:
    try:
        return all((target / name).read_bytes() == content for name, content in contents.items())
    except OSError:
        return False
