"""The history of a job as its commits tell it: who committed which step, and the numbers of every step between.

Each manifest names its parent and a blob with a line per step, so nothing is kept twice and nothing but the object
store is read. Needs no torch: only what is told to people is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ..errors import CorruptError
from ..storage.blobs import Digest, blob_key, get_blob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..storage.objects import ObjectStore

Number = float | Literal["nan", "inf", "-inf"]


class _Pack(msgspec.Struct, frozen=True):
    digest: Digest
    length: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What people want to know of a manifest (see `storage.manifests.Manifest`), `manifest` being its digest.

    Args:
        packs: the blobs that hold the state, with their lengths in bytes.
    """

    job: str
    step: int
    parent: Digest | None
    generation: int
    state_digest: Digest
    metrics: dict[str, Number]
    history: Digest | None
    created: float
    packs: list[_Pack]
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


_commit = msgspec.json.Decoder(Commit)
_steps = msgspec.json.Decoder(Step)


def commits(store: ObjectStore, manifest: str) -> Iterator[Commit]:
    """A commit and its ancestors, newest first. The history of a fork ends with its own first commit.

    Raises:
        CorruptError, NotFoundError: one of them is damaged or missing; the message names it.
        UnavailableError: the store does not answer.
    """
    digest: str | None = manifest
    above: Commit | None = None
    while digest is not None:
        found = read_commit(store, digest)
        if above is not None and found.job != above.job:
            return
        if above is not None and found.step >= above.step:
            raise CorruptError(f"{store.address}: manifest {digest} is of step {found.step} and parent of {above.step}")
        yield found
        digest, above = found.parent, found


def read_commit(store: ObjectStore, manifest: str) -> Commit:
    """One commit. Raises as `commits`."""
    try:
        return msgspec.structs.replace(_commit.decode(get_blob(store, manifest)), manifest=manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{store.address}: {blob_key(manifest)} is not a valid manifest: {error}") from error


def steps(store: ObjectStore, commit: Commit) -> list[Step]:
    """The steps between a commit's parent and the commit, oldest first. Raises as `commits`."""
    if commit.history is None:
        return []
    try:
        return _steps.decode_lines(get_blob(store, commit.history))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{store.address}: {blob_key(commit.history)} is no record of steps: {error}") from error
