"""Packs on their way to the object store and back: several at once, and every bit that is read is checked.

Hashing costs most here and runs without the GIL, so threads use the cores and hide the latency of the store.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ..errors import CorruptError
from . import packs, trees
from .blobs import blob_digest, blob_key, put_blob, read_twice, ready_to_use
from .digest import raw_digest, tensor_digest
from .manifests import TensorEntry
from .objects import length
from .outlines import PackEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from .objects import ObjectStore
    from .packs import Pack

THREADS = 4
"""Packs that are hashed and moved at the same time: hides the latency of the store, and uses more cores than one."""

MAX_POLL = 1.0
"""Longest pause, in seconds, between looks for a pack that another replica uploads."""

A = TypeVar("A")
B = TypeVar("B")


def store_packs(
    store: ObjectStore, parts: list[dict[str, torch.Tensor]], ours: set[int], *, overwrite: bool
) -> tuple[list[PackEntry], dict[str, str]]:
    """Entries of all packs and digests of all tensors; `ours` are uploaded."""

    def one(i: int) -> tuple[PackEntry, dict[str, str]]:
        pieces = packs.pieces(parts[i])
        digest = put_blob(store, *pieces, overwrite=overwrite) if i in ours else blob_digest(*pieces)
        digests = {name: tensor_digest(tensor) for name, tensor in parts[i].items()}
        return PackEntry(digest, length(pieces)), digests

    results = at_once(one, range(len(parts)), lambda i: weight(parts[i]))
    return [entry for entry, _ in results], {k: v for _, digests in results for k, v in digests.items()}


def wait_for(
    store: ObjectStore,
    wanted: list[int],
    entries: list[PackEntry],
    patience: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[int]:
    """Wait until the wanted packs are in the store; return those that are not when patience ends."""
    deadline, pause = clock() + patience, 0.02
    while True:
        wanted = [i for i in wanted if not ready_to_use(store, entries[i].digest, entries[i].length)]
        left = deadline - clock()
        if not wanted or left <= 0:
            return wanted
        sleep(min(pause, left))
        pause = min(2 * pause, MAX_POLL)


def read_pack(store: ObjectStore, pack: PackEntry, wanted: list[TensorEntry]) -> dict[str, torch.Tensor]:
    """The tensors of a pack, every bit checked.

    The digests of its tensors vouch for all that is in a pack, unless there are NaNs: then its own digest must. One of
    the two is enough, and hashing is what reading a state costs.
    """
    return read_twice(lambda: _read_pack(store, pack, wanted))


def _read_pack(store: ObjectStore, pack: PackEntry, wanted: list[TensorEntry]) -> dict[str, torch.Tensor]:
    data = store.view(blob_key(pack.digest))
    try:
        if len(data) != pack.length:
            raise CorruptError(f"is damaged: it has {len(data)} bytes instead of {pack.length}")
        tensors, exact = _checked(packs.decode(data), wanted)
        if not exact and (found := blob_digest(data)) != pack.digest:
            raise CorruptError(f"is damaged: its {len(data)} bytes have the digest {found}")
    except CorruptError as error:
        raise CorruptError(f"{store.address}: {blob_key(pack.digest)} {error}") from error
    return tensors


def _checked(found: Pack, wanted: list[TensorEntry]) -> tuple[dict[str, torch.Tensor], bool]:
    """The wanted tensors, and whether their digests vouch for every bit."""
    if found.keys() != {entry.name for entry in wanted}:
        raise CorruptError("holds other tensors than its manifest says")
    tensors: dict[str, torch.Tensor] = {}
    all_exact = True
    for entry in wanted:
        tensor = packs.unstored(found[entry.name], trees.DTYPES[entry.dtype])
        digest = raw_digest(tensor)
        if digest != entry.digest:
            all_exact, digest = False, tensor_digest(tensor)
        if digest != entry.digest or list(tensor.shape) != entry.shape:
            raise CorruptError(
                f"is not what its manifest says: tensor {entry.name!r} {list(tensor.shape)} has the digest {digest}, "
                f"expected {entry.shape} and {entry.digest}"
            )
        tensors[entry.name] = tensor
    return tensors, all_exact


def tensor_entries(parts: list[dict[str, torch.Tensor]], digests: Mapping[str, str]) -> list[TensorEntry]:
    """What a manifest says of the tensors of these packs."""
    return [
        TensorEntry(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=list(tensor.shape),
            digest=digests[name],
            pack=i,
            codec=packs.codec(tensor.dtype),
        )
        for i, part in enumerate(parts)
        for name, tensor in part.items()
    ]


def weight(pack: Pack) -> int:
    """Bytes of its tensors."""
    return sum(tensor.nbytes for tensor in pack.values())


def at_once(action: Callable[[A], B], items: Sequence[A], heaviness: Callable[[A], int]) -> list[B]:
    """Results in the order of the items, computed in threads. The heaviest begin first: else one ends alone."""
    order = sorted(range(len(items)), key=lambda i: -heaviness(items[i]))
    with ThreadPoolExecutor(THREADS) as pool:
        done = dict(zip(order, pool.map(lambda i: action(items[i]), order), strict=True))
    return [done[i] for i in range(len(items))]
