"""What hostile tests share: a small file system that can be filled, and a cluster that shows its logs on failure."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cluster import FAILED, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without processes on the embedded stores; shows all its logs when the test fails."""
    with Cluster(tmp_path / "cluster") as it:
        yield it
        if request.node.stash.get(FAILED, False):
            print(it.logs(), file=sys.stderr)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`disk(size)` mounts a file system of that many kilobytes; again, with its path, gives it another size."""
    mounted: list[Path] = []

    def mount(kilobytes: int, again: Path | None = None) -> Path:
        place = again or tmp_path / f"disk{len(mounted)}"
        place.mkdir(exist_ok=True)
        options = f"size={kilobytes}k" + (",remount" if again else "")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}; run as root")
        mounted.append(place)
        return place

    yield mount
    for place in set(mounted):
        subprocess.run(["umount", "-l", str(place)], check=True)
