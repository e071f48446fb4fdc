"""Memory that other processes can map: found, read, outliving its owner, and left alone once it is retired."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from easyscale.pipeline import segments
from easyscale.pipeline.flat import GradientLayout, GradientPool

OWNER = """
import sys, torch
from easyscale.pipeline import segments
mine = segments.zeros(1000, torch.float64)
mine += torch.arange(1000)
place = segments.place(mine[10:20])
print(*place, flush=True)
sys.stdin.readline()
mine += 1
print("done", flush=True)
sys.stdin.readline()
del mine
import gc; gc.collect()
again = segments.zeros(1000, torch.float64)
assert segments.place(again).fd == place.fd
print("again", flush=True)
sys.stdin.readline()
"""


def test_another_process_reads_it_and_keeps_it_when_its_owner_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    assert owner.stdin
    try:
        fd, inode, begin, size = map(int, owner.stdout.readline().split())
        assert (begin, size) == (80, 80)
        theirs = segments.mapped(owner.pid, fd, inode)
        assert theirs.numel() == 8000
        part = theirs[begin : begin + size].view(torch.float64)
        assert part.tolist() == [*range(10, 20)]
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "done\n"
        assert part.tolist() == [*range(11, 21)], "it is one memory, and not a copy"
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "again\n"
        with pytest.raises(FileNotFoundError, match="another file by now"):
            segments.mapped(owner.pid, fd, inode)
    finally:
        owner.kill()
        owner.communicate()
    assert part.tolist() == [*range(11, 21)]
    with pytest.raises(OSError, match=str(fd)):
        segments.mapped(owner.pid, fd, inode)


def test_it_is_gone_with_its_last_tensor() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    mine = segments.zeros(10, torch.float32)
    part = mine[2:4]
    place = segments.place(part)
    assert place is not None
    assert (place.begin, place.size) == (8, 8)
    del mine
    assert segments.place(part) == place, "a part keeps it"
    del part
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize("size", [0, 3])
def test_ordinary_memory_has_no_place(size: int) -> None:
    assert segments.place(torch.zeros(size)) is None
    assert not segments.is_retired(torch.zeros(size))
    segments.retire(torch.zeros(size))
    assert segments.place(segments.zeros(0, torch.float32)) is None


def test_without_the_means_it_is_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    mine = segments.zeros(5, torch.bfloat16)
    assert (mine.dtype, mine.tolist()) == (torch.bfloat16, [0.0] * 5)
    assert segments.place(mine) is None
    monkeypatch.delattr(os, "memfd_create")
    assert segments.place(segments.zeros(5, torch.float32)) is None


def test_what_is_retired_is_never_used_again() -> None:
    pool = GradientPool(GradientLayout(torch.nn.Linear(3, 2).named_parameters()), torch.device("cpu"))
    read, other = pool.take(), pool.take()
    segments.retire(read.flat[0])
    pool.reclaim()
    again = [pool.take(), pool.take(), pool.take()]
    assert any(one is other for one in again)
    assert not any(one is read for one in again)
    assert segments.is_retired(read.flat[0])
    assert Path(f"/proc/self/fd/{segments.place(read.flat[0]).fd}").exists(), "while somebody has it"  # type: ignore[union-attr]


def test_an_address_may_have_been_given_to_another_when_the_end_of_the_first_is_noticed() -> None:
    """The memory goes before its finalizer is called; meanwhile another thread may have got a segment there."""
    mine = segments.zeros(1000, torch.float32)
    place = segments.place(mine)
    assert place is not None
    segments.retire(mine)
    other = os.open("/dev/null", os.O_RDONLY)
    segments._end(mine.data_ptr(), (other, place.inode + 1))
    assert segments.place(mine) == place
    assert segments.is_retired(mine)
