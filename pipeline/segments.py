"""Memory that other processes of the same machine can map: see `shared.py`.

A segment is a file without a name, which processes of the same user open through /proc; it ends with the last process
that has it, whoever is killed, and cannot shrink under anybody.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import warnings
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

_files: dict[int, tuple[int, int]] = {}
"""Address of a segment -> the file that it is: descriptor and inode."""

_retired: set[int] = set()
"""Inodes of segments."""


class Place(NamedTuple):
    """Where a tensor lies: its owner's file, and bytes from the beginning of that.

    Descriptors are used again for other files, inodes are not.
    """

    fd: int = 0
    inode: int = 0
    begin: int = 0
    size: int = 0


def zeros(size: int, dtype: torch.dtype) -> Tensor:
    """A 1-d tensor in a segment of its own; in ordinary memory if the system gives none, or if it has no elements."""
    nbytes = size * dtype.itemsize
    if not nbytes or not hasattr(os, "memfd_create"):
        return torch.zeros(size, dtype=dtype)
    try:
        fd = os.memfd_create("easyscale", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:  # no more descriptors, or not allowed
        return torch.zeros(size, dtype=dtype)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        memory = mmap.mmap(fd, nbytes)
    except OSError:
        os.close(fd)
        return torch.zeros(size, dtype=dtype)
    tensor = torch.frombuffer(memory, dtype=dtype)
    file = fd, os.fstat(fd).st_ino
    _files[tensor.data_ptr()] = file
    weakref.finalize(memory, _end, tensor.data_ptr(), file).atexit = False
    return tensor


def _end(address: int, file: tuple[int, int]) -> None:
    if _files.get(address) == file:  # its memory is gone already, and another thread's segment may have its address
        del _files[address]
    _retired.discard(file[1])
    os.close(file[0])


def place(tensor: Tensor) -> Place | None:
    """Where a contiguous tensor lies, if in a segment."""
    base = tensor.untyped_storage().data_ptr()
    file = _files.get(base)
    return None if file is None else Place(*file, tensor.data_ptr() - base, tensor.nbytes)


def retire(tensor: Tensor) -> None:
    """Somebody may still read this tensor's segment, and cannot be asked: it must never be written to again."""
    file = _files.get(tensor.untyped_storage().data_ptr())
    if file is not None:
        _retired.add(file[1])


def is_retired(tensor: Tensor) -> bool:
    """Whether `retire` was called for this tensor's segment."""
    file = _files.get(tensor.untyped_storage().data_ptr())
    return file is not None and file[1] in _retired


def mapped(pid: int, fd: int, inode: int) -> Tensor:
    """All bytes of another process' segment, not to be written to.

    Raises:
        OSError, ValueError: there is none.
    """
    theirs = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if os.fstat(theirs).st_ino != inode:
            raise FileNotFoundError(f"descriptor {fd} of process {pid} is another file by now")
        memory = mmap.mmap(theirs, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(theirs)
    with warnings.catch_warnings():  # torch knows no tensors that must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(memory, dtype=torch.uint8)
