"""Sums over bits: the same for the same bits however they lie in memory, never the same after one bit has flipped."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from easyscale.errors import UserError
from easyscale.storage import sums, trees
from easyscale.storage.digest import tree_digest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

DTYPES = [dtype for name, dtype in trees.DTYPES.items() if not name.startswith("float4")]
MASK = 2**64 - 1


def of_bytes(data: bytes, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def value(tensor: Tensor) -> int:
    return int(sums.bit_sum(tensor)) & MASK


def expected(data: bytes, size: int) -> int:
    """By the definition: whole 64-bit words, then what is left element by element, all as signed numbers."""
    whole = len(data) - len(data) % 8
    numbers = [int.from_bytes(data[i : i + 8], "little", signed=True) for i in range(0, whole, 8)]
    numbers += [int.from_bytes(data[i : i + size], "little", signed=True) for i in range(whole, len(data), size)]
    return sum(numbers) & MASK


def width(dtype: torch.dtype) -> int:
    """Bytes of what is added up: complex numbers have two."""
    return dtype.itemsize // (2 if dtype.is_complex else 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(st.data())
def test_a_sum_is_that_of_the_words_in_memory(dtype: torch.dtype, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    raw = data.draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    assert value(of_bytes(raw, dtype, count)) == expected(raw, width(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(st.data())
def test_one_flipped_bit_always_shows(dtype: torch.dtype, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40)) * dtype.itemsize
    raw = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    before = value(of_bytes(bytes(raw), dtype, size // dtype.itemsize))
    raw[data.draw(st.integers(0, size - 1))] ^= 1 << (0 if dtype == torch.bool else data.draw(st.integers(0, 7)))
    assert value(of_bytes(bytes(raw), dtype, size // dtype.itemsize)) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.complex64], ids=str)
def test_it_does_not_matter_how_a_tensor_lies_in_memory(dtype: torch.dtype) -> None:
    plain = torch.arange(105).reshape(7, 15).to(dtype)
    wider = torch.zeros(9, 31, dtype=dtype)
    wider[1:8, 3:18] = plain
    shifted = torch.cat([torch.zeros(1, dtype=dtype), plain.reshape(-1)])[1:].view(7, 15)
    for other in (wider[1:8, 3:18], plain.t().contiguous().t(), shifted):
        assert torch.equal(other, plain)
        assert value(other) == value(plain)
    if dtype.is_complex:
        assert value(plain.conj().resolve_conj()) == value(plain.conj())
        assert value(plain.conj().imag.contiguous()) == value(plain.conj().imag), "a negative view"


def test_empty_tensors_and_single_numbers_have_sums() -> None:
    assert value(torch.zeros(0)) == 0
    assert value(torch.zeros(3, 0, 2)) == 0
    assert value(torch.tensor(1.0)) == 0x3F800000
    assert value(torch.tensor(True)) == 1
    assert value(torch.tensor(-1, dtype=torch.int8)) == MASK
    assert sums.pack_sums([]) == b""


STATE: dict[str, Any] = {
    "step": 3,
    "lr": 0.1,
    "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([float("nan"), 1.0])},
    "ests": {0: {"ids": torch.arange(4)}},
}


def changed(**parts: Any) -> dict[str, Any]:
    return STATE | parts


@pytest.mark.parametrize(
    ("other", "quick", "exact"),
    [
        (changed(step=4), sums.PLAIN, sums.PLAIN),
        (changed(lr=0.1 + 2**-55), sums.PLAIN, sums.PLAIN),
        (changed(model=STATE["model"] | {"w": torch.arange(6.0).reshape(3, 2)}), sums.PLAIN, "model/w"),
        (changed(model=STATE["model"] | {"w": 2 * torch.arange(6.0).reshape(2, 3)}), "model/w", "model/w"),
        (changed(ests={0: {"ids": torch.arange(4) * 2}}), "ests/0/ids", "ests/0/ids"),
    ],
)
def test_whatever_differs_shows_and_is_named(other: dict[str, Any], quick: str, exact: str) -> None:
    names = [sums.PLAIN, *trees.flatten(STATE)[1]]
    assert sums.differing([sums.state_sums(STATE), sums.state_sums(other)], names) == [quick]
    ours, theirs = sums.exact_sums(STATE), sums.exact_sums(other)
    assert [name for name in ours if ours[name] != theirs.get(name)] == [exact]


def test_numbers_too_long_for_a_message_and_types_of_dicts_and_tensors_change_nothing() -> None:
    long = STATE | {"seed": 1 << 200}
    assert sums.state_sums(long) == sums.state_sums(long | {"seed": 1 << 200})
    assert sums.state_sums(long) != sums.state_sums(long | {"seed": (1 << 200) + 1})
    assert sums.state_sums(long)[sums.SIZE :] == sums.state_sums(STATE)[sums.SIZE :]
    other = changed(ests=OrderedDict(STATE["ests"]))
    other["model"] = {name: torch.nn.Parameter(tensor) for name, tensor in STATE["model"].items()}
    assert sums.state_sums(other) == sums.state_sums(STATE)
    with pytest.raises(UserError, match="cannot be stored"):
        sums.state_sums(STATE | {"thing": object()})


def test_exact_sums_see_what_digests_see_and_no_more() -> None:
    """Another NaN and another order of keys are the same state; the quick sums need not know that."""
    nan = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    other = {"ests": STATE["ests"], "model": {"b": nan, "w": STATE["model"]["w"]}, "lr": 0.1, "step": 3}

    assert tree_digest(other) == tree_digest(STATE)
    assert sums.exact_sums(other) == sums.exact_sums(STATE)
    assert sums.state_sums(other) != sums.state_sums(STATE)


def test_a_sample_tells_gradients_apart_that_differ_nearly_everywhere() -> None:
    gradient = [torch.randn(50_001), torch.randn(7, dtype=torch.float64), torch.randn(9, dtype=torch.complex64)]
    assert sums.sample_sum(gradient) == sums.sample_sum([tensor.clone() for tensor in gradient])
    assert sums.sample_sum(gradient) != sums.sample_sum([tensor * (1 + 2**-20) for tensor in gradient])
    assert len(sums.sample_sum(gradient)) == sums.SIZE
    assert sums.sample_sum(gradient) != sums.sample_sum(gradient, "a loss")
    assert len(sums.sample_sum([])) == sums.SIZE


def test_sums_of_different_lengths_differ_everywhere() -> None:
    assert sums.differing([b"12345678", b"1234567812345678"], ["a"]) == ["a"]
    assert sums.differing([b"1234567812345678", b"1234567887654321"], ["a", "b"]) == ["b"]
    assert sums.named(b"\1" * 8 + b"\2" * 8, ["a", "b"]) == {"a": "01" * 8, "b": "02" * 8}
