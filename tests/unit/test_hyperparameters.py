"""`fork --set lr=...` on real optimizers and schedulers: they go on as if they had been made with the other value."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import UserError
from easyscale.pipeline.hyperparameters import with_changes
from easyscale.storage import trees
from torch.optim import lr_scheduler as schedulers

if TYPE_CHECKING:
    from torch.optim import Optimizer


def trained(rate: float, schedule: Any, groups: int = 1, steps: int = 10) -> tuple[Optimizer, Any]:
    """An optimizer and its scheduler after some steps."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(groups)]
    optimizer = torch.optim.SGD([{"params": [one]} for one in parameters], lr=rate, momentum=0.9)
    scheduler = schedule(optimizer) if schedule is not None else None
    for _ in range(steps):
        for one in parameters:
            one.grad = torch.ones(2)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return optimizer, scheduler


def state_of(optimizer: Optimizer, scheduler: Any) -> Any:
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict() if scheduler else None}
    return trees.flatten(state)


def changed(optimizer: Optimizer, scheduler: Any, **changes: str) -> dict[str, Any]:
    skeleton, tensors = state_of(optimizer, scheduler)
    state: dict[str, Any] = trees.restore(with_changes(skeleton, changes), tensors)
    return state


SCHEDULES = {
    "none": None,
    "step": lambda o: schedulers.StepLR(o, 3, 0.5),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.9),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 40),
    "one cycle": lambda o: schedulers.OneCycleLR(o, max_lr=25 * o.param_groups[0]["lr"], total_steps=60),
    "sequence": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=5), schedulers.ExponentialLR(o, 0.9)], [5]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_with_another_base_rate_the_schedule_goes_on_as_if_it_had_had_it_from_the_beginning(name: str) -> None:
    schedule: Any = SCHEDULES[name]
    optimizer, scheduler = trained(0.1, schedule)
    state = changed(optimizer, scheduler, lr="0.02")
    wanted, wanted_scheduler = trained(0.02, schedule)
    optimizer.load_state_dict(state["optimizer"])
    if scheduler is not None:
        scheduler.load_state_dict(state["scheduler"])
    for _ in range(15):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted.param_groups[0]["lr"], rel=1e-9)
        for it, its in ((optimizer, scheduler), (wanted, wanted_scheduler)):
            it.step()
            if its is not None:
                its.step()


def test_nothing_else_of_the_state_changes_and_the_given_one_not_at_all() -> None:
    skeleton, _ = state_of(*trained(0.1, SCHEDULES["step"]))
    before = copy.deepcopy(skeleton)
    after = with_changes(skeleton, {"momentum": "0.5"})
    assert skeleton == before
    leaves, others = dict(trees.leaves(before)), dict(trees.leaves(after))
    assert {path for path in leaves if leaves[path] != others[path]} == {"optimizer/param_groups/0/momentum"}
    assert others["optimizer/param_groups/0/momentum"] == 0.5


def test_a_rate_that_no_schedule_has_moved_is_set_to_the_very_number() -> None:
    state = changed(*trained(0.1, SCHEDULES["step"], steps=1), lr="0.07")
    (group,) = state["optimizer"]["param_groups"]
    assert (group["lr"], group["initial_lr"]) == (0.07, 0.07)
    assert state["scheduler"]["base_lrs"] == [0.07]


def test_one_group_is_set_by_its_number_and_all_groups_only_if_they_are_alike() -> None:
    optimizer, _ = trained(0.1, None, groups=2)
    state = changed(optimizer, None, **{"lr.1": "0.5"})
    assert [group["lr"] for group in state["optimizer"]["param_groups"]] == [0.1, 0.5]
    state = changed(optimizer, None, lr="0.5")
    assert [group["lr"] for group in state["optimizer"]["param_groups"]] == [0.5, 0.5]
    optimizer.param_groups[1]["lr"] = 0.2
    with pytest.raises(UserError, match=r"lr.0=0.1, lr.1=0.2"):
        changed(optimizer, None, lr="0.5")


def test_flags_and_whole_numbers_stay_what_they_are() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1, momentum=0.9)
    optimizer.param_groups[0]["every"] = 3
    state = changed(optimizer, None, nesterov="true", every="4", lr="2")
    group = state["optimizer"]["param_groups"][0]
    assert (group["nesterov"], group["every"], group["lr"]) == (True, 4, 2.0)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("lrr", "0.1", "no such hyper-parameter\n.*lr, maximize, momentum"),
        ("params", "1", "no such hyper-parameter"),
        ("lr.7", "0.1", "no such hyper-parameter in parameter group 7"),
        ("lr", "fast", "it must be a number"),
        ("lr", "NaN", "it must be a number"),
        ("lr", "true", "it must be a number"),
        ("nesterov", "1", "it must be true or false"),
        ("foreach", "true", "only numbers, true and false can be set"),
    ],
)
def test_what_cannot_be_set_is_refused_with_what_can(key: str, text: str, words: str) -> None:
    optimizer, _ = trained(0.1, None)
    with pytest.raises(UserError, match=f"(?s){words}"):
        changed(optimizer, None, **{key: text})


def test_a_rate_that_is_a_tensor_cannot_be_set() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=torch.tensor(0.1))
    with pytest.raises(UserError, match="only one that is a number"):
        changed(optimizer, None, lr="0.5")
