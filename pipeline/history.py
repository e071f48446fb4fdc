"""The history of a job as its commits tell it: who committed which step, and the numbers of every step between.

Each manifest names its parent and a blob with a line per step, so nothing is kept twice and nothing but the object
store is read. Needs no torch: only what is told to people is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import CorruptError
from ..storage.blobs import blob_key, get_blob
from ..storage.outlines import Outline, descend, read_outline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..storage.objects import ObjectStore


class Commit(Outline, frozen=True, kw_only=True):
    """What people want to know of a manifest, `manifest` being its digest."""

    manifest: str = ""

    @property
    def size(self) -> int:
        """Bytes of the state in the store; blobs that are shared with other commits count as well."""
        return sum(pack.length for pack in self.packs)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one step: see `engine.StepReport`. JSON has no NaN and no infinity, so such a loss is None."""

    step: int
    epoch: int = 0
    loss: float | None = None
    lr: list[float | None] = []
    grad_norm: float | None = None
    skipped: bool = False


_steps = msgspec.json.Decoder(Step)


def commits(store: ObjectStore, manifest: str) -> Iterator[Commit]:
    """A commit and its ancestors, newest first. The history of a fork ends with its own first commit.

    Raises:
        CorruptError, NotFoundError: one of them is damaged or missing; the message names it.
        UnavailableError: the store does not answer.
    """
    return (found for _, found in descend(store, manifest, read_commit))


def read_commit(store: ObjectStore, manifest: str) -> Commit:
    """One commit. Raises as `commits`."""
    return msgspec.structs.replace(read_outline(store, manifest, Commit), manifest=manifest)


def steps(store: ObjectStore, commit: Commit) -> list[Step]:
    """The steps between a commit's parent and the commit, oldest first. Raises as `commits`."""
    if commit.history is None:
        return []
    try:
        return _steps.decode_lines(get_blob(store, commit.history))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{store.address}: {blob_key(commit.history)} is no record of steps: {error}") from error
