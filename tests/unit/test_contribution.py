"""Contributions travel as bytes, to the bit, and damaged ones are refused."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import safetensors.torch
import torch
from easyscale.errors import CorruptError
from easyscale.pipeline.contribution import Contribution
from easyscale.storage import trees
from hypothesis import given
from hypothesis import strategies as st

DTYPES = [dtype for dtype in trees.DTYPES.values() if dtype != torch.float4_e2m1fn_x2]


def bits(value: Any) -> Any:
    """The value with each tensor replaced by all that is to be kept of it."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return (str(value.dtype), tuple(value.shape), raw)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(bits(item) for item in value)
    return repr(value)


def parts(contribution: Contribution) -> Any:
    return {name: bits(getattr(contribution, name)) for name in Contribution.__slots__}


def random_bytes(dtype: torch.dtype, count: int) -> torch.Tensor:
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return (raw % 2 if dtype == torch.bool else raw).view(dtype)


def full() -> Contribution:
    torch.manual_seed(0)
    return Contribution(
        step=9007199254740993,
        nodes={(0, 2): [torch.randn(5), random_bytes(torch.bfloat16, 3)], (2, 3): [-torch.zeros(5), torch.ones(3)]},
        used=bytes([1, 0, 1]),
        losses={0: 0.1, 1: math.nan, 2: -math.inf},
        contexts={
            0: {"buffers": {str(dtype): random_bytes(dtype, 4).reshape(2, 2) for dtype in DTYPES}},
            2: {"user": {"a/b": {1: (None, True, [1.5, "ü"], torch.tensor(3)), "1": torch.empty(0, 7)}}},
        },
        buffers={"mean": torch.randn(4, 3).T, "calls": torch.tensor(2**62)},
    )


def test_every_bit_comes_back_whatever_the_dtype() -> None:
    contribution = full()
    assert parts(Contribution.from_bytes(contribution.to_bytes())) == parts(contribution)


def test_an_empty_contribution_comes_back() -> None:
    empty = Contribution(step=0, nodes={}, used=b"")
    assert Contribution.from_bytes(empty.to_bytes()) == empty


@given(st.data())
def test_damaged_bytes_are_refused_or_read_without_harm(data: st.DataObject) -> None:
    whole = full().to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptError, match="not a contribution"):
        Contribution.from_bytes(whole[:cut])
    flipped = bytearray(whole)
    header = 8 + int.from_bytes(whole[:8], "little")
    flipped[data.draw(st.integers(0, header - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptError):
        Contribution.from_bytes(bytes(flipped))


def test_a_safetensors_file_that_is_no_contribution_is_refused() -> None:
    for text in (b"3", b"{", b'[{"dict": []}, {}]', b"[[], {}]"):
        structure = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        for tensors in ({"structure": structure}, {"structure": structure.float()}, {"other": structure}):
            with pytest.raises(CorruptError, match="not a contribution"):
                Contribution.from_bytes(safetensors.torch.save(tensors))
