"""The manifest of a commit: what S(t) consists of, who its parent is, and under which conditions it was computed.

A manifest is a blob of JSON, so its digest names it and nobody can change it. Two workers that commit the same step
may write different manifests (their generation, their clock), but with the same state digest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import CorruptError
from .blobs import Digest, get_blob
from .outlines import Number, PackEntry, decode, where_is
from .packs import Codec  # noqa: TC001 - msgspec reads annotations
from .trees import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .objects import ObjectStore


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor.

    Args:
        name: its path in the skeleton, and its name in the pack.
        dtype: a name of `trees.DTYPES`.
        shape: its true shape.
        digest: see `digest.tensor_digest`.
        pack: index into `Manifest.packs`.
        codec: how it lies in the pack, see `packs.codec`.
    """

    name: str
    dtype: str
    shape: list[int]
    digest: Digest
    pack: int
    codec: Codec


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One commit.

    Args:
        format: `FORMAT` of the writer.
        job: name of the job.
        step: the t of S(t).
        parent: digest of the manifest before this one; None for the first of a job.
        spec, code: digests of the job's specification and code bundle.
        ests: number of ESTs.
        determinism: the determinism class that computed it.
        generation: membership that wrote it.
        state_digest: digest of the meaning of S(t), see `digest.state_digest`.
        metrics: numbers about the training at this step; `nan`, `inf` and `-inf` as text (JSON has none).
        history: digest of a JSON-lines blob with a record per step since the parent.
        created: Unix time of the writer's clock. For people: nothing compares it.
        packs, tensors, skeleton: the state itself.
    """

    format: int
    job: str
    step: int
    parent: Digest | None
    spec: Digest
    code: Digest
    ests: int
    determinism: dict[str, str]
    generation: int
    state_digest: Digest
    metrics: dict[str, Number]
    history: Digest | None
    created: float
    packs: list[PackEntry]
    tensors: list[TensorEntry]
    skeleton: Any


def encode_manifest(manifest: Manifest) -> bytes:
    """The canonical JSON of a manifest: equal manifests give equal bytes."""
    return msgspec.json.encode(manifest, order="deterministic")


def decode_manifest(data: bytes, where: str = "manifest") -> Manifest:
    """Read a manifest and check that it makes sense in itself.

    Args:
        data: its JSON.
        where: what to call it in an error.

    Raises:
        CorruptError: not a manifest, written by another version of EasyScale, or contradicting itself.
    """
    manifest = decode(data, where, Manifest)
    seen: set[str] = set()
    for entry in manifest.tensors:
        if entry.name in seen or not 0 <= entry.pack < len(manifest.packs) or entry.dtype not in DTYPES:
            raise CorruptError(
                f"{where}: tensor {entry.name!r} is listed twice, in no pack, or of unknown type {entry.dtype!r}"
            )
        seen.add(entry.name)
    return manifest


def read_manifest(store: ObjectStore, digest: str) -> Manifest:
    """Read the manifest with this digest. Raises `NotFoundError` or `CorruptError`, naming the key."""
    return decode_manifest(get_blob(store, digest), where_is(store, digest))


def plain_metrics(metrics: Mapping[str, float]) -> dict[str, Number]:
    """Metrics as a manifest keeps them. `float()` of each value gives it back."""
    plain: dict[str, Number] = {}
    for name, value in metrics.items():
        if math.isfinite(value):
            plain[name] = float(value)
        else:
            plain[name] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return plain
