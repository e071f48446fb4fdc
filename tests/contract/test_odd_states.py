"""States that are unusual but legal come back from every store to the bit: dtypes, shapes, layouts, names, numbers."""

from __future__ import annotations

import json
import math
import secrets
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.storage import commits, trees
from easyscale.storage.blobs import blob_key
from easyscale.storage.digest import bytes_of, tree_digest
from easyscale.storage.files import FileStore
from easyscale.storage.objects import ObjectStore, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from services import S3Server

ZERO = "0" * 64
KINDS = ["files", "moto_s3", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)]


@pytest.fixture(scope="module")
def buckets() -> dict[str, str]:
    """One bucket for each server: the first write to a new bucket is slow."""
    return {}


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: dict[str, str]
) -> ObjectStore:
    if request.param == "files":
        return FileStore(tmp_path)
    server: S3Server = request.getfixturevalue(request.param)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    if request.param not in buckets:
        buckets[request.param] = server.new_bucket()
    return open_store(f"s3://{buckets[request.param]}/{secrets.token_hex(4)}")


def commit(store: ObjectStore, snapshot: commits.Snapshot) -> commits.Commit:
    return commits.write_commit(
        store, snapshot, job="odd", parent=None, spec=ZERO, code=ZERO, ests=1, determinism={}, generation=1,
        metrics={}, history=None,
    )  # fmt: skip


def bits(tree: Any) -> tuple[Any, dict[str, tuple[Any, ...]]]:
    """Everything that must come back, bits of NaNs included."""
    skeleton, tensors = trees.flatten(tree)
    plain = {name: tensor.resolve_conj().resolve_neg().contiguous() for name, tensor in tensors.items()}
    return json.dumps(skeleton), {
        name: (tensor.dtype, tuple(tensor.shape), bytes(bytes_of(tensor))) for name, tensor in plain.items()
    }


def digest(tree: Any) -> str:
    return tree_digest(tree)


def of_every_dtype() -> dict[str, torch.Tensor]:
    raw = torch.arange(256, dtype=torch.uint8).repeat(4)
    return {
        name: (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(2, -1)
        for name, dtype in trees.DTYPES.items()
    }


def floats(*patterns: int) -> torch.Tensor:
    return torch.tensor([pattern - (pattern >> 31 << 32) for pattern in patterns], dtype=torch.int32).view(
        torch.float32
    )


def odd_state() -> dict[str, Any]:
    base = torch.arange(24.0).reshape(4, 6)
    z = torch.tensor([1 + 2j, -0.0 - 3j])
    names = [
        "w.0",
        "a/b",
        "a",
        "実験.重み",
        "ü",
        "with space",
        "tab\tnew\nline",
        "__metadata__",
        "0",
        "~1",
        "",
        "'\"\\",
    ]
    return {
        "step": 7,
        "model": {
            "parameters": {name: torch.full((2,), float(i)) for i, name in enumerate(names)},
            "buffers": of_every_dtype(),
        },
        "shapes": [
            torch.tensor(3.5),
            torch.tensor(2**40),
            torch.empty(0),
            torch.empty(3, 0, 2, dtype=torch.int8),
            torch.empty(0, dtype=torch.complex128),
            torch.ones(1, 1, 1, 1, 1, 1, 1, 1),
        ],
        "layouts": {
            "transposed": base.t(),
            "strided": base[::2, 1::3],
            "expanded": torch.ones(1).expand(5, 5),
            "row of a whole": base[1],
            "the whole": base,
            "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "conjugate": z.conj(),
            "negative": z.conj().imag,
        },
        "numbers": {
            "nans": floats(0x7FC00000, 0x7FC00001, 0x7F800001, 0xFFC12345, 0xFFFFFFFF),
            "zeros": floats(0x00000000, 0x80000000),
            "subnormals": floats(0x00000001, 0x807FFFFF),
            "infinities": torch.tensor([math.inf, -math.inf], dtype=torch.float64),
            "plain": [math.inf, -math.inf, -0.0, 5e-324, 2**200, True, None, "", "実験"],
        },
    }


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_an_odd_state_comes_back_to_the_bit(store: ObjectStore) -> None:
    state = odd_state()
    written = commit(store, commits.Snapshot.take(7, state))
    assert written.state_digest == digest(state)
    manifest, back = commits.read_commit(store, written.manifest_digest)
    assert bits(back) == bits(state)
    assert digest(back) == manifest.state_digest == written.state_digest
    assert str(back["numbers"]["plain"][2]) == "-0.0"


def test_tensors_that_share_memory_come_back_equal_and_apart(store: ObjectStore) -> None:
    base = torch.arange(10.0)
    written = commit(store, commits.Snapshot.take(7, {"step": 7, "a": base, "b": base, "part": base[2:5]}))
    _, back = commits.read_commit(store, written.manifest_digest)
    back["a"].zero_()
    assert torch.equal(back["b"], base)
    assert torch.equal(back["part"], base[2:5])


def test_ten_thousand_tensors_make_few_objects_and_a_manifest_of_moderate_size(store: ObjectStore) -> None:
    parameters = {f"blocks.{i}.attention.weight": torch.full((i % 5,), float(i)) for i in range(10_000)}
    state = {"step": 7, "model": {"parameters": parameters, "buffers": {}}}
    written = commit(store, commits.Snapshot.take(7, state))
    manifest, back = commits.read_commit(store, written.manifest_digest)
    assert bits(back) == bits(state)
    assert len(manifest.packs) == 1
    assert len(list(store.list(""))) == 3, "pack, manifest, marker"
    size = store.size(blob_key(written.manifest_digest))
    assert size is not None
    assert size < 400 * 10_000, "bytes of JSON per tensor: its name twice, and its digest"


def test_a_tensor_of_more_than_two_gibibytes_comes_back_to_the_bit(tmp_path: Path) -> None:
    size = int(2.1 * 2**30)
    generator = torch.Generator().manual_seed(1)
    piece = torch.randint(-128, 128, (64 << 20,), dtype=torch.int8, generator=generator)
    huge = torch.empty(size, dtype=torch.int8)  # as one snapshot holds it: there is no room to waste
    for start in range(0, size, len(piece)):
        huge[start : start + len(piece)] = piece[: size - start]
    huge[-1], huge[2**31] = 7, 9
    snapshot = commits.Snapshot(7, {"dict": [["x", {"tensor": "x"}]]}, {"x": huge})
    store = FileStore(tmp_path)
    written = commit(store, snapshot)
    manifest, back = commits.read_commit(store, written.manifest_digest)
    assert back["x"].shape == (size,)
    assert torch.equal(back["x"], huge)
    assert manifest.packs[0].length > 2**31
    store.delete(blob_key(manifest.packs[0].digest))
