"""An object store in a folder, shared by all processes of one machine (or of a file system that keeps POSIX promises).

Writes go to a temporary file and are then renamed (`put`) or linked (`create`) into place, so a reader sees all bytes
or none and exactly one creator wins, whoever is killed or out of space on the way. Durable writes are on disk when
the call returns. Keys that nest (`a` beside `a/b`) are refused by the file system, as they are by some S3 servers.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import shutil
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import AddressError, NotFoundError, OutcomeUnknownError, UnavailableError
from .objects import KEY_PATTERN, Seen, check_key, length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .objects import Body, Data


TEMPORARY = "~tmp"
"""Folder of unfinished writes: on the file system of the objects, and `~` can be in no key."""

ABANDONED_AFTER = 24 * 3600.0
"""Seconds after which the temporary file of a process that died is swept away by the next one to open the store."""

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the kernel answers when a write does not fit: disk full, quota, limit of file sizes."""

WRITE_BUFFER = 1 << 20
"""Bytes of small pieces that are gathered for one write; larger pieces are written from where they are."""

MADV_POPULATE_READ = 22
"""From Linux's uapi/asm-generic/mman-common.h: read a mapping's pages now, and say so if that fails."""

PLACE_ATTEMPTS = 10
"""How often a folder may be removed by `delete` of its last object just before we move a new one into it."""


class FileStore:
    """Objects as files below `root`, which is made if it is not there.

    Raises:
        AddressError: the folder cannot be made or written to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._temporary = self._root / TEMPORARY
        self.address = f"file://{quote(str(self._root))}"
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            self._write_temporary(b"", durable=False).unlink()
            self._sweep()
        except OSError as error:
            raise AddressError(
                f"object store {self.address}: cannot write to the folder: {_reason(error)}",
                "name a folder that you can write to (option --store or EASYSCALE_STORE)",
            ) from error

    def path(self, key: str) -> Path:
        """The file that holds an object. Raises `ValueError` for a key that is not portable."""
        check_key(key)
        return self._root / key

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        path = self.path(key)
        with self._explained("read", path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFoundError(f"{self.address}: no object {key!r}") from None

    def view(self, key: str) -> memoryview:
        """See `ObjectStore.view`. The file is mapped, copy on write: no object is ever changed in place."""
        path = self.path(key)
        with self._explained("read", path):
            try:
                with path.open("rb", buffering=0) as file:
                    return _mapped(file.fileno())
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFoundError(f"{self.address}: no object {key!r}") from None

    def put(self, key: str, data: Body, *, durable: bool = True) -> None:
        """See `ObjectStore.put`. Raises `UnavailableError` (disk full, read-only, ...) with the old object intact."""
        path = self.path(key)
        explained = self._explained("write", path, length(data))
        with explained, self._temporary_file(data, durable=durable) as temporary:
            _place(path, lambda: temporary.replace(path))
        if durable:
            self._settle(path)

    def create(self, key: str, data: Data) -> bool:
        """See `ObjectStore.create`. Raises `UnavailableError` (disk full, ...) when nothing was created."""
        path = self.path(key)
        explained = self._explained("create", path, length(data))
        with explained, self._temporary_file(data, durable=True) as temporary:
            try:
                # A link, unlike a rename, fails when the name is taken: that makes exactly one winner.
                _place(path, lambda: os.link(temporary, path))
                created = True
            except FileExistsError:
                created = False
        # The loser syncs too: it will act on the winner's object, whose name may not be on disk yet.
        self._settle(path)
        return created

    def exists(self, key: str) -> bool:
        """See `ObjectStore.exists`."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        seen = self.look(key)
        return seen.size if seen is not None else None

    def look(self, key: str) -> Seen | None:
        """See `ObjectStore.look`. The clock is this machine's, as for all who share the folder."""
        path = self.path(key)
        with self._explained("look at", path):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            if not stat.S_ISREG(status.st_mode):
                return None
            return Seen(key, status.st_size, time.time() - status.st_mtime)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`. Folders that become empty go too, so that passing objects leave nothing."""
        path = self.path(key)
        with self._explained("remove", path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
        with suppress(OSError):  # not empty, or another process was here first
            for folder in self._folders(path)[:-1]:
                folder.rmdir()

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list`."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder)
        for parent, _, names in os.walk(self._root / folder, onerror=self._cannot_list):
            relative = Path(parent).relative_to(self._root)
            for name in names:
                key = (relative / name).as_posix()
                if key.startswith(prefix) and KEY_PATTERN.fullmatch(key):
                    yield key

    def survey(self, prefix: str) -> Iterator[Seen]:
        """See `ObjectStore.survey`."""
        for key in self.list(prefix):
            if (seen := self.look(key)) is not None:  # else it was removed meanwhile
                yield seen

    def _cannot_list(self, error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise UnavailableError(f"{self.address}: cannot list {error.filename}: {_reason(error)}") from error

    @contextmanager
    def _explained(self, doing: str, path: Path, needed: int = 0) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            room = self._room(needed) if error.errno in NO_ROOM else ""
            raise UnavailableError(f"{self.address}: cannot {doing} {path}: {_reason(error)}{room}") from error

    def _room(self, needed: int) -> str:
        """How much there should be, how much there is, and what to do."""
        free = "an unknown amount"
        with suppress(OSError):
            free = f"{shutil.disk_usage(self._root).free:,} bytes"
        return (
            f": {needed:,} bytes needed, {free} free\n"
            f"  make room on the disk of {self._root} (or raise its quota, or the limit of file sizes): what was "
            "committed before is intact, and the next commit is tried without your help"
        )

    def _folders(self, path: Path) -> tuple[Path, ...]:
        """The folders that lead to a file, from the innermost to the root of the store."""
        return tuple(path.parents[: len(path.relative_to(self._root).parts)])

    @contextmanager
    def _temporary_file(self, data: Body, *, durable: bool) -> Iterator[Path]:
        temporary = self._write_temporary(data, durable=durable)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _write_temporary(self, data: Body, *, durable: bool) -> Path:
        path = self._temporary / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with path.open("xb", buffering=WRITE_BUFFER) as file:
                file.writelines([data] if isinstance(data, (bytes, bytearray, memoryview)) else data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)  # a full disk needs the room
            raise
        return path

    def _settle(self, path: Path) -> None:
        """Make the names that lead to a file durable: a folder's entries are written only when it is synced itself."""
        try:
            for folder in self._folders(path):
                _sync_folder(folder)
        except OSError as error:
            raise OutcomeUnknownError(f"{self.address}: {path} may not be durable: {_reason(error)}") from error

    def _sweep(self) -> None:
        oldest = time.time() - ABANDONED_AFTER
        for path in self._temporary.iterdir():
            with suppress(FileNotFoundError):  # its writer has just finished
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _mapped(descriptor: int) -> memoryview:
    """A whole file as private memory. Raises `OSError` if it cannot be read: later that would be a SIGBUS."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return memoryview(bytearray())
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # Not by `memory.madvise`, which would hold the GIL until the disk has answered.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_READ) != 0:
        number = ctypes.get_errno()
        if number != errno.EINVAL:  # a kernel older than 5.14 does not know it, and reads at the first touch
            raise OSError(errno.EIO if number == errno.EFAULT else number, os.strerror(number))
    return memoryview(memory)


def _place(path: Path, move: Callable[[], object]) -> None:
    """Make the folder of `path` and move a file into it, also while others delete from there."""
    for _ in range(PLACE_ATTEMPTS):
        with suppress(FileNotFoundError):
            _make_folder(path.parent)
            move()
            return
    raise FileNotFoundError(errno.ENOENT, "its folder keeps being removed", str(path))


def _make_folder(folder: Path) -> None:
    """Like `mkdir -p`; a file in the way must not look like the `FileExistsError` by which a creator learns it lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        if any(parent.is_file() for parent in (folder, *folder.parents)):
            raise NotADirectoryError(errno.ENOTDIR, "an object is where its folder should be", str(folder)) from None
        raise FileNotFoundError(errno.ENOENT, "removed again", str(folder)) from error


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return  # the object has been deleted since, and its folder with it
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
