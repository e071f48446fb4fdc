"""Hyper-parameters of an optimizer changed within a state: what `fork --set lr=0.01` does. Pure.

Only the skeleton of the state is touched, no tensor, so a fork shares all packs. A base learning rate is changed along
with everything that the schedule has derived from it: where the schedule stands, it stands, and scaled by as much.
"""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

from ..errors import UserError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..storage.trees import Skeleton

_SCALED = ("lr", "max_lr", "min_lr")
"""Values of a parameter group that follow its base learning rate (PyTorch's schedulers keep them there)."""

_LISTS = ("base_lrs", "_last_lr", "min_lrs")
"""The same in a scheduler's own state, one number for each parameter group."""

_FIXED = ("params", "initial_lr", "max_lr", "min_lr")
"""Values of a parameter group that are not for the user to set."""


def with_changes(skeleton: Skeleton, changes: Mapping[str, str]) -> Skeleton:
    """The skeleton of a state (see `trees.flatten`) with other hyper-parameters.

    Args:
        skeleton: of the whole state; it is not changed.
        changes: name -> value as text, JSON. `lr` is the base learning rate of all parameter groups, `lr.1` that of
            group 1; so with all other names.

    Raises:
        UserError: there is no such hyper-parameter, or no such value for it.
    """
    changed = copy.deepcopy(skeleton)
    groups = [_entries(group) for group in _items(_at(changed, "optimizer", "param_groups"))]
    for name, text in changes.items():
        key, dot, number = name.rpartition(".")
        if not (dot and number.isdigit()):
            key, number = name, ""
        which = _which(groups, name, key, number)
        values = [_node(groups[i], key) for i in which]
        if key == "lr":
            value = _number(name, text, float)
            base = [_base(groups[i]) for i in which]
            if not number and len(set(base)) > 1:
                raise UserError(
                    f"--set {name}={text}: the parameter groups have different learning rates: "
                    + ", ".join(f"lr.{i}={rate:g}" for i, rate in enumerate(base)),
                    "set them one by one",
                )
            for i in which:
                _set_rate(changed, groups[i], i, value)
            continue
        kind = type(values[0])
        if kind not in (bool, int, float) or any(isinstance(value, dict) for value in values):
            raise UserError(f"--set {name}: it is {shown(values[0])} there", "only numbers, true and false can be set")
        for i in which:
            _put(groups[i], key, _number(name, text, kind))
    return changed


def _which(groups: list[list[list[Any]]], name: str, key: str, number: str) -> list[int]:
    known = [i for i, group in enumerate(groups) if any(entry[0] == key for entry in group)]
    wanted = [int(number)] if number else [*range(len(groups))]
    if key in _FIXED or not wanted or not set(wanted) <= set(known):
        numbers = {entry[0] for group in groups for entry in group if isinstance(entry[1], (bool, int, float))}
        raise UserError(
            f"--set {name}: the optimizer has no such hyper-parameter"
            + (f" in parameter group {number}" if number and known else ""),
            f"give a setting of the job, or one of: {', '.join(sorted(numbers - {*_FIXED}))}",
        )
    return wanted


def _number(name: str, text: str, kind: Callable[..., Any]) -> Any:
    """Text as a value of a kind: bool, int, float."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    good = isinstance(value, bool) if kind is bool else isinstance(value, (int, float)) and not isinstance(value, bool)
    if good and kind is not bool:
        good = math.isfinite(value) and (kind is float or isinstance(value, int))
    if not good:
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]  # type: ignore[index]
        raise UserError(f"--set {name}={text}: that is no value for it", f"it must be {wanted}")
    return kind(value)


def _set_rate(skeleton: Skeleton, group: list[list[Any]], number: int, value: float) -> None:
    base = _base(group)
    factor = value / base if base else None  # of nothing, nothing has been derived that could be scaled
    for key in _SCALED:
        node = _node(group, key)
        if isinstance(node, (int, float)) and not isinstance(node, bool):
            _put(group, key, value if factor is None or node == base else node * factor)
    if _node(group, "initial_lr") is not None:
        _put(group, "initial_lr", value)
    _scale_lists(_at(skeleton, "scheduler"), number, base, value, factor)


def _scale_lists(node: Skeleton, number: int, base: float, value: float, factor: float | None) -> None:
    """In a scheduler's state, and in those of the schedulers that it consists of."""
    if isinstance(node, list) or (isinstance(node, dict) and "tuple" in node):
        for child in _items(node):
            _scale_lists(child, number, base, value, factor)
    elif isinstance(node, dict) and "dict" in node:
        for key, child in _entries(node):
            if key in _LISTS and isinstance(child, list) and number < len(child):
                rate = child[number]
                if isinstance(rate, (int, float)):
                    child[number] = value if factor is None or rate == base else rate * factor
            else:
                _scale_lists(child, number, base, value, factor)


def _base(group: list[list[Any]]) -> float:
    """What the learning rate of a parameter group is before its schedule."""
    initial, rate = _node(group, "initial_lr"), _node(group, "lr")
    found = initial if isinstance(initial, (int, float)) else rate
    if not isinstance(found, (int, float)):
        raise UserError(f"--set lr: the learning rate is {shown(rate)} there", "only one that is a number can be set")
    return float(found)


def _at(node: Skeleton, *path: str) -> Skeleton:
    for key in path:
        node = next((value for found, value in _entries(node) if found == key), None)
    return node


def _entries(node: Skeleton) -> list[list[Any]]:
    entries: list[list[Any]] = node["dict"] if isinstance(node, dict) and "dict" in node else []
    return entries


def _items(node: Skeleton) -> list[Any]:
    if isinstance(node, dict):
        return list(node.get("tuple", []))
    return node if isinstance(node, list) else []


def _node(group: list[list[Any]], key: Any) -> Any:
    return next((value for found, value in group if found == key), None)


def _put(group: list[list[Any]], key: str, value: Any) -> None:
    for entry in group:
        if entry[0] == key:
            entry[1] = value
