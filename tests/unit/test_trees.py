from __future__ import annotations

import math
import struct
from collections import OrderedDict
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from easyscale.errors import CorruptError, UserError
from easyscale.storage import trees
from hypothesis import given, settings


def round_trip(tree: Any) -> Any:
    skeleton, tensors = trees.flatten(tree)
    return trees.restore(msgspec.json.decode(msgspec.json.encode(skeleton)), trees.snapshot(tensors)[0])


def exact(value: Any) -> Any:
    """A form of a tree that is equal only for the same types, key order and bits."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).tolist()
        return ("tensor", str(value.dtype), tuple(value.shape), raw)
    if isinstance(value, dict):
        return ("dict", [(type(key), key, exact(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [exact(item) for item in value])
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else struct.pack("<d", value))
    return (type(value), value)


keys = st.one_of(st.integers(), st.text(max_size=5), st.sampled_from(["0", "-1", "a/b", "a", "~", "__metadata__", ""]))
scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    st.integers(-(2**200), 2**200),
    st.lists(st.floats(width=32), max_size=3).map(lambda values: torch.tensor(values, dtype=torch.float32)),
)
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(nested)
def test_any_tree_comes_back_with_types_order_and_bits(tree: Any) -> None:
    assert exact(round_trip(tree)) == exact(tree)


@pytest.mark.parametrize("dtype", trees.DTYPES.values(), ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_bit_pattern_of_every_dtype_survives_a_snapshot(dtype: torch.dtype) -> None:
    raw = torch.arange(256, dtype=torch.uint8).repeat(2)
    values = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(2, -1)
    for tensor in (values, values.t(), values[0, 0], values[:, :0]):
        assert exact(round_trip({"x": tensor})) == exact({"x": tensor})


def test_an_optimizer_and_a_scheduler_come_back_and_go_on() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    _, tensors = trees.flatten(state)
    assert "optimizer/state/0/exp_avg" in tensors
    assert "model/weight" in tensors
    back = round_trip(state)
    assert exact(back["optimizer"]) == exact(state["optimizer"])
    optimizer.load_state_dict(back["optimizer"])
    scheduler.load_state_dict(back["scheduler"])


def test_keys_that_look_alike_get_names_of_their_own() -> None:
    one = torch.ones(1)
    tree = {0: one, "0": one, "a/b": one, "a": {"b": one}, "~1": one, "/": one, "__metadata__": one, "~2": one}
    _, tensors = trees.flatten(tree)
    assert len(tensors) == 8
    assert {"0", "~20", "a~1b", "a/b"} <= tensors.keys()
    assert "__metadata__" not in tensors


def test_a_tensor_that_occurs_twice_is_stored_twice() -> None:
    shared = torch.ones(2)
    back = round_trip([shared, shared])
    back[0].add_(1)
    assert back[1].tolist() == [1, 1]


def test_dict_subclasses_and_parameters_come_back_plain() -> None:
    back = round_trip(OrderedDict(w=torch.nn.Parameter(torch.ones(1))))
    assert type(back) is dict
    assert type(back["w"]) is torch.Tensor
    assert not back["w"].requires_grad


class Unknown:
    pass


class Odd(torch.Tensor):
    pass


def endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (Unknown(), "Unknown"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        (torch.Size([1]), "torch.Size"),
        (torch.float32, "dtype"),
        (__import__("numpy").float64(1), "numpy.float64"),
        ({True: 1}, "bool"),
        ({(1, 2): 1}, "tuple"),
        ({None: 1}, "NoneType"),
        ("\ud800", "Unicode"),
        ({"\ud800": 1}, "Unicode"),
        (1 << 5000, "5001 bits"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(1, device="meta"), "meta"),
        (torch.empty(1, dtype=torch.bits8), "bits8"),
        (torch.ones(1).as_subclass(Odd), "Odd"),
        (endless(), "deeper"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_path_and_type(bad: Any, named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        trees.flatten({"user": {"thing": [1, bad]}})
    assert "user/thing/1" in str(error.value)


@pytest.mark.parametrize(
    "skeleton",
    [
        {},
        {"dict": []} | {"tuple": []},
        {"dict": [["a"]]},
        {"dict": [["a", 1], ["a", 2]]},
        {"dict": [[True, 1]]},
        {"dict": [[[1], 1]]},
        {"dict": {"a": 1}},
        {"tuple": "ab"},
        {"float": "1.0"},
        {"float": 1.0},
        {"tensor": "missing"},
        {"tensor": ["x"]},
        {"pickle": "cos\nsystem"},
    ],
)
def test_a_malformed_skeleton_is_corrupt(skeleton: Any) -> None:
    with pytest.raises(CorruptError):
        trees.restore(skeleton, {})


@pytest.mark.parametrize("skeleton", [[{"tensor": "x"}, {"tensor": "x"}], []], ids=["twice", "never"])
def test_each_tensor_has_exactly_one_place(skeleton: Any) -> None:
    with pytest.raises(CorruptError, match="'x'"):
        trees.restore(skeleton, {"x": torch.ones(1)})


def test_a_skeleton_nested_without_end_is_corrupt() -> None:
    skeleton: Any = None
    for _ in range(5000):
        skeleton = [skeleton]
    with pytest.raises(CorruptError, match="deeper"):
        trees.restore(skeleton, {})


def test_a_snapshot_is_out_of_reach_of_training_and_reuses_buffers_that_fit() -> None:
    live = {"a": torch.ones(4), "b": torch.ones(2, 2).t(), "c": torch.ones(3)}
    first = trees.snapshot(live)[0]
    live["a"].add_(1)
    assert first["a"].tolist() == [1, 1, 1, 1]
    addresses = {name: tensor.data_ptr() for name, tensor in first.items()}
    live["b"] = torch.ones(2, 3)
    live["c"] = torch.ones(3, dtype=torch.float64)
    second = trees.snapshot(live, first)[0]
    assert second["a"].data_ptr() == addresses["a"]
    assert second["a"].tolist() == [2, 2, 2, 2]
    assert second["b"].shape == (2, 3)
    assert second["c"].dtype == torch.float64


def test_leaves_name_every_value_and_empty_container() -> None:
    skeleton, _ = trees.flatten({"a": [1, (2.5, None)], "b": {}, 3: torch.ones(1)})
    assert dict(trees.leaves(skeleton)) == {
        "a/0": 1,
        "a/1/0": 2.5,
        "a/1/1": None,
        "b": {"dict": []},
        "3": {"tensor": "3"},
    }
