from __future__ import annotations

import json
import struct
from typing import Any

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from easyscale.errors import CorruptError
from easyscale.storage import packs, trees
from easyscale.storage.digest import bytes_of, tensor_digest
from hypothesis import given


def hostile(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("dtype", trees.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(2, 4), (), (0, 3), (1, 1, 1)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    raw = torch.arange(1, count * dtype.itemsize + 1, dtype=torch.uint8)
    tensor = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(shape)
    back = packs.unstored(packs.decode(packs.encode({"x": tensor}))["x"], dtype)
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert bytes_of(back) == bytes_of(tensor)
    assert tensor_digest(back) == tensor_digest(tensor)


def test_other_tools_can_read_a_pack() -> None:
    pack = {
        "model/parameters/w": torch.randn(3, 5),
        "model/parameters/ü": torch.randn(2).bfloat16(),
        "model/parameters/mask": torch.tensor([True, False, True]),
        "model/parameters/n": torch.tensor(7),
        "model/parameters/none": torch.empty(0, 3, dtype=torch.float16),
    }
    read = safetensors.torch.load(packs.encode(pack))
    assert read.keys() == pack.keys()
    assert all(torch.equal(read[name], pack[name]) for name in pack)


def test_every_tensor_of_a_pack_is_aligned_to_its_type() -> None:
    data = packs.encode({"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(1).double(), "c": torch.ones(1)})
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    sizes = {"U8": 1, "F64": 8, "F32": 4}
    assert all((8 + length + tensor["data_offsets"][0]) % sizes[tensor["dtype"]] == 0 for tensor in header.values())


def test_parameters_buffers_and_optimizer_lie_in_packs_of_their_own() -> None:
    one = torch.ones(1)
    names = ["optimizer/state/0/exp_avg", "model/buffers/mean", "model/parameters/w", "ests/0/x", "step", "ests/1/x"]
    parts = packs.partition(dict.fromkeys(names, one))
    assert [list(part) for part in parts] == [
        ["ests/0/x", "ests/1/x"],
        ["model/buffers/mean"],
        ["model/parameters/w"],
        ["optimizer/state/0/exp_avg"],
        ["step"],
    ]


def test_partition_and_bytes_do_not_depend_on_the_order_of_the_state() -> None:
    tensors = {f"model/parameters/{i}": torch.full((i,), i) for i in range(20)}
    backwards = dict(reversed(tensors.items()))
    one, two = ([packs.encode(part) for part in packs.partition(some, limit=100)] for some in (tensors, backwards))
    assert one == two
    assert len(one) > 5


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 500))
def test_packs_keep_to_the_limit_unless_one_tensor_is_larger(sizes: list[int], limit: int) -> None:
    tensors = {f"t{i:02d}": torch.zeros(size, dtype=torch.uint8) for i, size in enumerate(sizes)}
    parts = packs.partition(tensors, limit)
    assert [name for part in parts for name in part] == sorted(f"t{i:02d}" for i in range(len(sizes)))
    for part in parts:
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= limit


def test_ten_thousand_small_tensors_make_one_pack() -> None:
    tensors = {f"model/parameters/{i}": torch.full((3,), i) for i in range(10_000)}
    (part,) = packs.partition(tensors)
    back = packs.decode(packs.encode(part))
    assert back.keys() == tensors.keys()
    assert back["model/parameters/9999"].tolist() == [9999] * 3


def test_what_is_read_may_be_written_to_without_touching_its_neighbours() -> None:
    back = packs.decode(packs.encode({"a": torch.ones(2), "b": torch.ones(2)}))
    back["a"].add_(1)
    assert back["b"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        hostile(b"{}", length=2**63),
        hostile(b"{}", length=2**64 - 1),
        hostile(b"{}", length=99_000_000),
        hostile(b"\xff\xfe"),
        hostile(b"[" * 10_000),
        hostile(b"not json"),
        hostile({"a": entry("F32", [2], 0, 8)}, b"1234"),
        hostile({"a": entry("F32", [1], 0, 4)}, b"1234tail"),
        hostile({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, b"123456"),
        hostile({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"1234"),
        hostile({"a": entry("F32", [1], 4, 8)}, b"12345678"),
        hostile({"a": entry("F32", [1], 4, 0)}, b"1234"),
        hostile({"a": entry("F32", [1], 0, -4)}, b"1234"),
        hostile({"a": entry("Q9", [1], 0, 4)}, b"1234"),
        hostile({"a": entry("F4", [2], 0, 1)}, b"1"),
        hostile({"a": entry("F8_E5M2", [1], 0, 1)}, b"1"),
        hostile({"a": entry("F32", [2**62, 2**62], 0, 4)}, b"1234"),
        hostile({"a": entry("F32", [0, 2**64 - 1], 0, 0)}),
        hostile({"a": {"dtype": "F32"}}),
        hostile({"__metadata__": {"x": 3}}),
    ],
    ids=lambda data: data[:60].decode(errors="replace"),
)
def test_hostile_bytes_are_corrupt_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(CorruptError, match="safetensors file"):
        packs.decode(data)


def test_a_file_cut_short_anywhere_is_corrupt() -> None:
    data = packs.encode({"a": torch.ones(2), "b": torch.ones(3, dtype=torch.int8)})
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            packs.decode(data[:length])


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (torch.ones(2), torch.float64),
        (torch.ones(3), torch.complex64),
        (torch.tensor(1.0), torch.complex64),
        (torch.ones(2), torch.float8_e5m2),
        (torch.ones(2, dtype=torch.uint8), torch.bool),
    ],
)
def test_a_tensor_stored_as_something_else_is_corrupt(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    with pytest.raises(CorruptError, match="is stored as"):
        packs.unstored(tensor, dtype)
