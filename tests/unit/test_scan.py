"""A scan tells every operator of one step with its class and its place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import forked
import pytest
from easyscale.errors import ScriptError
from easyscale.pipeline.scan import Row, scan_script
from user import User

if TYPE_CHECKING:
    from pathlib import Path

    from user import Ran

SCRIPT = """
import torch
import easyscale as es
from torch import nn

class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), float(index))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.words = nn.Embedding(3, 4)

    def forward(self, x):
        x = -self.layer(x) * self.words(torch.ones(len(x), dtype=torch.long))
        return CHANGE

def evaluate(model):
    return {"max": torch.argmax(model(torch.ones(2, 4))).item()}

def build():
    model = Net()
    return es.Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=Waves(),
        step=lambda model, batch: model(batch).sum(),
        evaluate=evaluate,
    )

job = es.Job("net", build, ests=2, batch_size=2, steps=1)
"""


def line(text: str) -> int:
    return 1 + next(number for number, found in enumerate(SCRIPT.splitlines()) if text in found)


def scanned(folder: Path, change: str) -> list[Row]:
    (folder / "train.py").write_text(SCRIPT.replace("CHANGE", change))
    return scan_script(folder / "train.py", fork_server=forked.shared())


def one(rows: list[Row], operator: str, part: str) -> Row:
    (found,) = [row for row in rows if row.operator.partition(".")[0] == f"aten::{operator}" and row.part == part]
    return found


def test_each_operator_has_its_class_and_its_place_in_every_part_of_a_job(tmp_path: Path) -> None:
    rows = scanned(tmp_path, "x")
    addmm = one(rows, "addmm", "forward")
    assert (addmm.kind, addmm.calls) == ("exact by our kernel", 1)
    assert addmm.places == [f"train.py:{line('self.layer(x)')}, module 'layer'"]
    assert one(rows, "mm", "backward").places == addmm.places, "told by the forward operator"
    assert one(rows, "neg", "forward").kind == "exact by IEEE-754"
    assert one(rows, "full", "data").places == [f"train.py:{line('torch.full')}"]
    assert one(rows, "normal_", "build").places == [f"train.py:{line('self.words =')}"]
    assert one(rows, "full", "data").kind == "order-insensitive"
    assert one(rows, "argmax", "evaluate").covered
    assert {row.part for row in rows} >= {"build", "data", "forward", "backward", "update", "evaluate"}
    assert all("pipeline/" not in place for row in rows for place in row.places)


@pytest.mark.parametrize(
    ("change", "operator", "part"),
    [
        ("torch.fft.rfft(x).real", "_fft_r2c", "forward"),
        ("x * x.detach().unique().numel()", "_unique2", "forward"),
        ("x.double().exp()", "exp", "forward"),
        ("x * torch.view_as_complex(torch.ones(4, 2)).abs()", "abs", "forward"),
    ],
)
def test_an_operator_that_is_not_covered_is_told_with_its_line(
    tmp_path: Path, change: str, operator: str, part: str
) -> None:
    found = one(scanned(tmp_path, change), operator, part)
    assert not found.covered
    assert found.kind == "not covered"
    assert found.places == [f"train.py:{line('return CHANGE')}"]


def test_the_exit_code_says_whether_exact_numerics_can_run_it_and_mistakes_are_told_as_everywhere(
    tmp_path: Path,
) -> None:
    user = User(tmp_path)

    def scan(text: str, *more: str) -> Ran:
        user.write(text)
        return user.run("scan", "train.py", *more)

    bad = scan(SCRIPT.replace("CHANGE", "torch.fft.rfft(x).real"))
    assert bad.code == 1
    assert "do not cover: " in bad.err
    assert "aten::_fft_r2c" in bad.err
    assert f"train.py:{line('return CHANGE')}" in bad.out
    told = scan(SCRIPT.replace("CHANGE", "torch.fft.rfft(x).real"), "-o", "json")
    answer = json.loads(told.out)
    assert not answer["covered"]
    assert {row["operator"] for row in answer["operators"] if not row["covered"]} >= {"aten::_fft_r2c"}
    assert scan("x = 1").code == 2
    raised = scan(SCRIPT.replace("CHANGE", "1 / 0"))
    assert raised.code == 2
    assert "ZeroDivisionError" in raised.err


def test_a_step_that_raises_is_told_as_the_users(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="cannot run job 'net': ZeroDivisionError"):
        scanned(tmp_path, "1 / 0")
