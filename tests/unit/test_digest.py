from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from easyscale.storage import digest, trees

FLOATS = [dtype for dtype in trees.DTYPES.values() if dtype.is_floating_point and dtype.itemsize > 1]
TINY_FLOATS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]


def of(tree: Any) -> str:
    skeleton, tensors = trees.flatten(tree)
    return digest.state_digest(skeleton, {name: digest.tensor_digest(t) for name, t in tensors.items()})


def state() -> dict[str, Any]:
    return {
        "model": {"parameters": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2, dtype=torch.bfloat16)}},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 0.999), "nesterov": False},
        "step": 7,
        "best": float("inf"),
    }


def reordered(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: reordered(value) for key, value in reversed(node.items())}
    return node


def test_the_digest_is_defined_by_its_documentation() -> None:
    tensor = torch.tensor([[1, -2]], dtype=torch.int16)
    by_hand = hashlib.sha256(b"easyscale tensor 1\nint16\n[1, 2]\n\x01\x00\xfe\xff").hexdigest()
    assert digest.tensor_digest(tensor) == by_hand
    text = '{"dict":[["a",{"tuple":[0.5,null]}],[1,{"tensor":"' + by_hand + '"}]]}'
    assert of({1: tensor, "a": (0.5, None)}) == hashlib.sha256(f"easyscale state 1\n{text}".encode()).hexdigest()


def test_the_order_of_dicts_does_not_matter() -> None:
    assert list(reordered(state())) != list(state())
    assert of(reordered(state())) == of(state())


@pytest.mark.parametrize("name", ["model/parameters/w", "model/parameters/b", "optimizer/state/0/step"])
def test_one_bit_of_any_tensor_matters(name: str) -> None:
    skeleton, tensors = trees.flatten(state())
    digests = {key: digest.tensor_digest(t) for key, t in tensors.items()}
    before = digest.state_digest(skeleton, digests)
    raw = tensors[name].reshape(-1).view(torch.uint8)
    for byte in range(len(raw)):
        raw[byte] ^= 1
        assert digest.state_digest(skeleton, digests | {name: digest.tensor_digest(tensors[name])}) != before
        raw[byte] ^= 1


@pytest.mark.parametrize(
    "change",
    [
        {"step": 8},
        {"step": 7.0},
        {"step": "7"},
        {"step": True},
        {"step": None},
        {"best": float("-inf")},
        {"best": float("nan")},
        {"best": "inf"},
        {"optimizer": [0.9, 0.999]},
        {"optimizer": (0.9, 0.999)},
        {"optimizer": {}},
        {"optimizer": {0: 1}},
        {"optimizer": {"0": 1}},
        {"extra": None},
    ],
)
def test_every_scalar_type_key_and_container_matters(change: dict[str, Any]) -> None:
    variants = [{"step": 7, "optimizer": None, "best": 1.0} | other for other in ({}, change)]
    assert of(variants[0]) != of(variants[1])


@pytest.mark.parametrize(
    "pair", [(0.0, -0.0), (0.1, 0.1 + 2**-56), ({0: 1}, {"0": 1}), ([1], (1,)), (1, True), (10**30, 1e30)]
)
def test_values_that_compare_equal_or_nearly_are_told_apart(pair: tuple[Any, Any]) -> None:
    assert of({"x": pair[0]}) != of({"x": pair[1]})


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_any_nan_is_the_same_nan_and_nothing_else_is(dtype: torch.dtype) -> None:
    width = dtype.itemsize
    every = torch.arange(256, dtype=torch.uint8)
    top = torch.zeros(256, width, dtype=torch.uint8)
    top[:, 0] = 1
    top[:, -1] = every  # all signs, exponents and quiet bits there are in the top byte
    if width > 1:
        top[:, -2] = 0xF0
    values = top.reshape(-1).view(dtype)
    nan = torch.isnan(values.float())
    assert nan.sum() >= 2
    distinct = {digest.tensor_digest(value) for value in values[nan]}
    assert len(distinct) == 1
    finite = {digest.tensor_digest(value) for value in values[~nan]}
    assert len(finite) == int((~nan).sum())
    assert not finite & distinct


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_nans_inside_complex_numbers_are_one_too(dtype: torch.dtype) -> None:
    a = torch.tensor([complex(float("nan"), 1), 2j]).to(dtype)
    b = a.clone()
    torch.view_as_real(b)[0, 0].neg_()
    assert digest.bytes_of(a).tobytes() != digest.bytes_of(b).tobytes()
    assert digest.tensor_digest(a) == digest.tensor_digest(b)
    torch.view_as_real(b)[0, 1] = 3
    assert digest.tensor_digest(a) != digest.tensor_digest(b)


def test_hashing_leaves_the_tensor_and_its_nans_alone() -> None:
    tensor = torch.tensor([0x7FC00001, 0x7F800001, 1], dtype=torch.int32).view(torch.float32)
    before = digest.bytes_of(tensor).tobytes()
    digest.tensor_digest(tensor)
    assert digest.bytes_of(tensor).tobytes() == before


def test_infinities_that_cancel_to_nan_in_a_sum_are_not_taken_for_nans() -> None:
    inf = float("inf")
    assert digest.tensor_digest(torch.tensor([inf, -inf])) != digest.tensor_digest(torch.tensor([-inf, inf]))


@pytest.mark.parametrize("dtype", trees.DTYPES.values(), ids=str)
def test_every_dtype_in_every_layout_has_a_digest_of_its_own_type_and_shape(dtype: torch.dtype) -> None:
    raw = torch.arange(48 * dtype.itemsize, dtype=torch.uint8) % 2
    values = raw.view(dtype).reshape(6, 8)
    assert digest.tensor_digest(values.t()) == digest.tensor_digest(values.t().contiguous())
    shapes = [values, values.reshape(8, 6), values[0, 0], values[0, :1], values[:0], values[:, :0]]
    assert len({digest.tensor_digest(tensor) for tensor in shapes}) == len(shapes)


def test_types_of_equal_bytes_have_different_digests() -> None:
    zeros = torch.zeros(16, dtype=torch.uint8)
    digests = {digest.tensor_digest(zeros.view(dtype)) for dtype in trees.DTYPES.values()}
    assert len(digests) == len(trees.DTYPES)


def test_lazy_conjugates_and_negatives_hash_as_their_values() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert digest.tensor_digest(z.conj()) == digest.tensor_digest(z.conj().resolve_conj())
    assert digest.tensor_digest(z.conj().imag) == digest.tensor_digest(z.conj().imag.clone())


@pytest.mark.parametrize("dtype", [*FLOATS, *TINY_FLOATS, torch.complex64], ids=str)
def test_a_nan_or_infinity_is_noticed_and_large_numbers_are_not(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    assert not digest.has_nonfinite(torch.full((9,), largest, dtype=torch.float64).to(dtype))
    assert digest.has_nonfinite(torch.tensor([1.0, float("nan")]).to(dtype))


def test_infinities_are_noticed_and_integers_never() -> None:
    assert digest.has_nonfinite(torch.tensor([float("inf"), float("-inf")]))
    assert not digest.has_nonfinite(torch.tensor([2**62, 2**62]))
    assert not digest.has_nonfinite(torch.tensor([True]))
    assert not digest.has_nonfinite(torch.empty(0))
