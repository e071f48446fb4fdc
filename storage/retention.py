"""Which commits of a job are kept. Pure: steps and metrics in, steps out.

The rules are joined: a commit that any of them keeps is kept. Whatever they say, the newest commits are: should the
head turn out damaged, its parent is what the job goes on from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

LEAST = 2
"""So many of the newest commits are kept by every policy."""

MODES: tuple[Literal["max", "min"], ...] = ("max", "min")


class Best(NamedTuple):
    """A rule: the commit with the largest or the smallest value of a metric; of equals the earliest."""

    metric: str
    mode: Literal["max", "min"] = "max"


@dataclass(frozen=True, slots=True)
class Policy:
    """What to keep. Without any rule, everything.

    Args:
        last: so many of the newest commits.
        every: the first commit in each stretch of so many steps: with 1000, from step 0, from step 1000, ...
        best: see `Best`.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[Best, ...] = ()

    @property
    def keeps_all(self) -> bool:
        """Whether there is no rule."""
        return self.last is None and self.every is None and not self.best


def parse_best(text: str) -> Best:
    """A rule as the command line has it: `METRIC`, `METRIC:max` or `METRIC:min`.

    Raises:
        UserError: it is none.
    """
    metric, colon, mode = text.rpartition(":")
    if not colon:
        return Best(text)
    for known in MODES:
        if mode == known and metric:
            return Best(metric, known)
    raise UserError(f"--keep-best {text!r}: {mode!r} is neither max nor min", "write METRIC:max or METRIC:min")


def kept(commits: Mapping[int, Mapping[str, float]], policy: Policy, always: Iterable[int] = ()) -> set[int]:
    """The steps of a job whose commits are kept.

    Args:
        commits: of each commit that is there, its step and its metrics. Those that were collected before are not
            among them, so that a rule chooses among what can still be had.
        policy: the rules.
        always: steps to be kept whatever it says.
    """
    steps = sorted(commits)
    if policy.keeps_all:
        return set(steps)
    found = set(steps[-max(LEAST, policy.last or 0) :]) | (set(always) & set(steps))
    if policy.every is not None:
        found |= _first_of_each(steps, policy.every)
    for rule in policy.best:
        best = _best(commits, rule)
        found |= set() if best is None else {best}
    return found


def require_metrics(policy: Policy, metrics: Collection[str]) -> None:
    """Refuse a rule about a metric that no commit has: it is misspelt, and would keep nothing.

    Raises:
        UserError: names those that there are.
    """
    for rule in policy.best:
        if rule.metric not in metrics:
            there = ", ".join(sorted(metrics)) or "none: `evaluate` of the job's Training returns them"
            raise UserError(f"--keep-best {rule.metric}: no commit has such a metric", f"the metrics are {there}")


def _first_of_each(steps: list[int], every: int) -> set[int]:
    """Later commits never change the answer, so what one collection keeps for this rule, the next one keeps too."""
    first: dict[int, int] = {}
    for step in steps:
        first.setdefault(step // every, step)
    return set(first.values())


def _best(commits: Mapping[int, Mapping[str, float]], rule: Best) -> int | None:
    sign = -1.0 if rule.mode == "max" else 1.0
    values = [
        (sign * metrics[rule.metric], step)
        for step, metrics in commits.items()
        if rule.metric in metrics and not math.isnan(metrics[rule.metric])
    ]
    return min(values)[1] if values else None
