"""Exported files, read by PyTorch's and safetensors' own functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import UserError
from easyscale.pipeline.exporting import SKELETON, chosen, plain_names, write
from easyscale.storage import trees
from safetensors import safe_open
from safetensors.torch import load_file

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = {"format": "pt"}
PLACES = {"a.weight": "parameters/a.weight", "tied.weight": "parameters/a.weight", "mean": "buffers/mean"}


def state() -> dict[str, Any]:
    return {
        "step": 3,
        "model": {
            "parameters": {"a.weight": torch.arange(6.0).reshape(2, 3)},
            "buffers": {"mean": torch.ones(3, dtype=torch.bfloat16), "fleeting": torch.zeros(1)},
        },
        "optimizer": {
            "state": {0: {"exp_avg": torch.full((2, 3), 0.5), "step": torch.tensor(3.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0], "fused": None}],
        },
        "ema": {"a.weight": torch.full((2, 3), 7.0)},
    }


def same(ours: Any, theirs: Any) -> bool:
    a, b = trees.flatten(ours), trees.flatten(theirs)
    pairs = [(a[1][name], b[1][name]) for name in a[1]]
    return a[0] == b[0] and all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs)


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_model_has_all_names_of_its_state_dict_and_only_these(form: Any, tmp_path: Path) -> None:
    file = tmp_path / "model"
    size = write(chosen(state(), "model", PLACES), form, file, ABOUT)
    found = torch.load(file, weights_only=True) if form == "torch" else load_file(file)
    assert list(found) == list(PLACES) or form == "safetensors"
    parts = state()["model"]
    wanted = {"a.weight": parts["parameters"]["a.weight"], "tied.weight": parts["parameters"]["a.weight"]}
    assert same(dict(sorted(found.items())), dict(sorted({**wanted, "mean": parts["buffers"]["mean"]}.items())))
    assert file.stat().st_size == size
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing is left of how it was written"


def test_the_header_of_a_safetensors_file_says_what_it_is(tmp_path: Path) -> None:
    write(chosen(state(), "model", PLACES), "safetensors", tmp_path / "m", {"format": "pt", "easyscale.job": "実験"})
    with safe_open(tmp_path / "m", "pt") as file:
        assert file.metadata() == {"format": "pt", "easyscale.job": "実験"}


@pytest.mark.parametrize("what", ["optimizer", "all"])
def test_what_is_nested_comes_back_from_both_kinds_of_file(what: Any, tmp_path: Path) -> None:
    tree = chosen(state(), what, PLACES)
    write(tree, "torch", tmp_path / "t", ABOUT)
    assert same(torch.load(tmp_path / "t", weights_only=True), tree)
    write(tree, "safetensors", tmp_path / "s", ABOUT)
    with safe_open(tmp_path / "s", "pt") as file:
        skeleton = json.loads(file.metadata()[SKELETON])
    assert same(trees.restore(skeleton, load_file(tmp_path / "s")), tree)


def test_averaged_parameters_take_the_place_of_the_trained_ones_in_their_type() -> None:
    held = state()
    held["model"]["parameters"]["a.weight"] = torch.zeros(2, 3, dtype=torch.bfloat16)
    found = chosen(held, "ema", PLACES)
    assert torch.equal(found["a.weight"], torch.full((2, 3), 7.0, dtype=torch.bfloat16))
    assert found["tied.weight"] is found["a.weight"]
    assert torch.equal(found["mean"], held["model"]["buffers"]["mean"])
    with pytest.raises(UserError, match="keeps no averages"):
        chosen({**held, "ema": None}, "ema", PLACES)


def test_without_the_code_a_model_has_its_parameters_and_all_its_buffers() -> None:
    assert [*chosen(state(), "model", plain_names(state()))] == ["a.weight", "mean", "fleeting"]


def test_a_model_that_has_changed_since_the_commit_is_refused() -> None:
    with pytest.raises(UserError, match="--plain-names"):
        chosen(state(), "model", {"b.weight": "parameters/b.weight"})


def test_a_type_that_not_every_reader_knows_is_refused_for_safetensors_and_kept_by_torch(tmp_path: Path) -> None:
    tree = {"w": torch.ones(2, dtype=torch.complex64)}
    with pytest.raises(UserError, match="--format torch"):
        write(tree, "safetensors", tmp_path / "s", ABOUT)
    write(tree, "torch", tmp_path / "t", ABOUT)
    assert same(torch.load(tmp_path / "t", weights_only=True), tree)
    assert not (tmp_path / "s").exists()


def test_a_file_that_is_there_is_left_alone_and_a_folder_that_is_not_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match="is there already"):
        write({"w": torch.ones(1)}, "torch", tmp_path / "mine", ABOUT)
    assert (tmp_path / "mine").read_text() == "precious"
    with pytest.raises(UserError, match="folder that is there"):
        write({"w": torch.ones(1)}, "torch", tmp_path / "no" / "file", ABOUT)


def test_what_shares_memory_or_is_not_contiguous_is_written_as_it_reads(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    tree = {"whole": base, "part": base[1], "turned": base.t()}
    write(tree, "safetensors", tmp_path / "s", ABOUT)
    assert same(dict(sorted(load_file(tmp_path / "s").items())), dict(sorted(tree.items())))
