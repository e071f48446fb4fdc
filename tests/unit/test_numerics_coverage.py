"""The tables of operators that exact mode can run."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from easyscale.pipeline.numerics import coverage
from easyscale.pipeline.numerics.coverage import KERNELS, Class, base_name, classify

TABLES = (
    "OURS",
    "IEEE",
    "VIEWS",
    "COPIES",
    "SELECTIONS",
    "FACTORIES",
    "COMPARISONS",
    "QUESTIONS",
    "INTEGERS",
    "COMPOSED",
)


def operators() -> list[str]:
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return [name for name in names if name.startswith("aten::")]


def test_every_name_in_a_table_is_an_operator_of_pytorch() -> None:
    there = {base_name(name) for name in operators()}
    derived = {f"{view}_copy" for view in coverage.VIEWS}  # not every view has one
    for table in TABLES:
        assert getattr(coverage, table) - there - derived == set(), table
    overloads = {f"{base_name(name)}.{name.partition('.')[2]}" for name in operators()}
    assert overloads >= coverage.EXCEPT


def test_no_name_is_in_two_tables() -> None:
    for one, other in combinations(TABLES, 2):
        assert getattr(coverage, one) & getattr(coverage, other) == set(), (one, other)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", Class.OURS),
        ("aten::mm.out", Class.OURS),
        ("aten::neg_", Class.IEEE),
        ("aten::view", Class.INSENSITIVE),
        ("aten::__ilshift__.Tensor", Class.INSENSITIVE),
        ("aten::cat.out", Class.INSENSITIVE),
        ("aten::round.decimals", Class.UNCOVERED),
        ("aten::bincount", Class.INTEGERS),
        ("aten::_foreach_trunc_", Class.COMPOSED),
        ("aten::linalg_qr", Class.UNCOVERED),
        ("aten::_no_such_operator", Class.UNCOVERED),
        ("torchvision::nms", Class.UNCOVERED),
        ("c10d::send", Class.INSENSITIVE),
    ],
)
def test_an_operator_is_classified_by_its_name_and_what_is_unknown_is_not_covered(name: str, kind: Class) -> None:
    assert classify(name) is kind


def test_what_is_made_of_others_has_no_kernel_of_its_own_on_a_cpu() -> None:
    """Where there is one, it computes by itself, and nobody would see how."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    own = {
        name
        for name in operators()
        if classify(name) is Class.COMPOSED and has(name, "CPU") and not has(name, "CompositeExplicitAutograd")
    }
    assert {base_name(name) for name in own} == set()


def test_hundreds_of_operators_are_not_covered_and_so_refused() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    uncovered = [
        name for name in operators() if classify(name) is Class.UNCOVERED and any(has(name, key) for key in KERNELS)
    ]
    assert {"aten::_fft_r2c", "aten::linalg_qr", "aten::_to_sparse", "aten::mkldnn_rnn_layer"} <= set(uncovered)
