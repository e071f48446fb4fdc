"""A pipeline's stages as they are now, and what can be done next. Pure, but for `read`.

Only what is committed counts: a stage can be submitted when the stages that it builds on are done, since only then it
is known what it starts from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import structlog

from ..coordinator import keys, records, views
from ..errors import CorruptError
from .summary import summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..coordinator.kv import KeyValue, KeyValueStore

log = structlog.get_logger()

Fate = Literal["new", "going", "done", "failed"]
"""What became of a stage: `new`: not submitted by who asks; `failed`: it came to nothing, or cannot be submitted."""


class Moves(NamedTuple):
    """What follows from the fates of all stages.

    Args:
        submit: stages that can be submitted now.
        waiting: stages that cannot be yet -> the stages that they wait for.
        blocked: stages that never will be as things are -> the failed stages behind that.
        over: nothing is going, and nothing can be submitted.
    """

    submit: list[str]
    waiting: dict[str, list[str]]
    blocked: dict[str, list[str]]
    over: bool


def moves(stages: Sequence[records.StageRecord], fates: Mapping[str, Fate]) -> Moves:
    """What can be done next.

    Args:
        stages: each after its inputs. fates: of all of them.
    """
    submit: list[str] = []
    waiting: dict[str, list[str]] = {}
    blocked: dict[str, list[str]] = {}
    for stage in stages:
        if fates[stage.name] != "new":
            continue
        behind = [cause for name in stage.inputs for cause in blocked.get(name, [])]
        behind += [name for name in stage.inputs if fates[name] == "failed"]
        missing = [name for name in stage.inputs if fates[name] != "done"]
        if behind:
            blocked[stage.name] = list(dict.fromkeys(behind))
        elif missing:
            waiting[stage.name] = missing
        else:
            submit.append(stage.name)
    return Moves(submit, waiting, blocked, not submit and "going" not in fates.values())


class StageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as people see it.

    Args:
        stage: its name in the pipeline; job: that of its job.
        kind: `training` or `function`. inputs: earlier stages whose results it gets.
        state, reason, step, steps, committed, metrics, state_digest: as of a job (`Summary`); of a stage that is not
            submitted yet the state is `waiting`, and the reason says for what.
        submitted: whether it is a job already.
    """

    stage: str
    job: str
    kind: records.JobKind
    inputs: list[str]
    state: records.JobState
    reason: str
    submitted: bool
    step: int = 0
    steps: int = 0
    committed: int = 0
    metrics: dict[str, float] = {}
    state_digest: str | None = None


class Picture(NamedTuple):
    """A pipeline: its record, and its stages' jobs as far as there are any, by stage."""

    record: records.PipelineRecord
    jobs: dict[str, views.JobView]

    @property
    def name(self) -> str:
        """The pipeline's."""
        return self.record.name

    def summaries(self) -> list[StageSummary]:
        """Its stages, in order."""
        return [self._summary(stage) for stage in self.record.stages]

    def _summary(self, stage: records.StageRecord) -> StageSummary:
        view = self.jobs.get(stage.name)
        plain: dict[str, Any] = {
            "stage": stage.name,
            "job": f"{self.name}.{stage.name}",
            "kind": stage.kind,
            "inputs": list(stage.inputs),
        }
        if view is None:
            return StageSummary(**plain, state="waiting", reason=self._lacks(stage), submitted=False)
        job = summarize(view)
        return StageSummary(
            **plain,
            state=job.state,
            reason=job.reason,
            submitted=True,
            step=job.step,
            steps=job.steps,
            committed=job.committed,
            metrics=job.metrics,
            state_digest=job.state_digest,
        )

    def _lacks(self, stage: records.StageRecord) -> str:
        missing = [name for name in stage.inputs if name not in self.jobs or self.jobs[name].state != "done"]
        return f"waits for {', '.join(missing)}" if missing else "waits to be submitted: run its script again"

    @property
    def state(self) -> records.JobState:
        """Of the whole: `done` if all stages are; else that of the first that is none of `done` and `waiting`."""
        states = [stage.state for stage in self.summaries()]
        if all(state == "done" for state in states):
            return "done"
        return next((state for state in states if state not in ("done", "waiting")), "waiting")


def read(kv: KeyValueStore, name: str) -> Picture | None:
    """A pipeline as it is now, or None if there is no such pipeline.

    Raises:
        CorruptError: there is one, but its record cannot be read.
        UnavailableError: the key-value store does not answer.
    """
    entry = kv.get(keys.pipeline(name))
    if entry is None:
        return None
    record = records.decode(entry.value, records.PipelineRecord, entry.key)
    return Picture(record, read_stages(kv, record))


def read_all(kv: KeyValueStore, jobs: Mapping[str, views.JobView]) -> list[Picture]:
    """All pipelines that can be read, by name; `jobs` are all that there are, by name."""
    return pictures(kv.range(keys.PIPELINES), jobs)


def pictures(entries: Iterable[KeyValue], jobs: Mapping[str, views.JobView]) -> list[Picture]:
    """The pipelines among what was read, as far as their records can be, in order of their keys.

    Args:
        entries: of any keys. jobs: by name; all that there are.
    """
    found = []
    for entry in entries:
        if entry.key.startswith(keys.PIPELINES):
            try:
                record = records.decode(entry.value, records.PipelineRecord, entry.key)
                found.append(Picture(record, _among(jobs, record)))
            except CorruptError as error:
                log.warning("pipelines.unreadable", what=str(error))
    return found


def prefix(record: records.PipelineRecord) -> str:
    """What all keys of its stages begin with."""
    return keys.stages(record.name)


def read_stages(kv: KeyValueStore, record: records.PipelineRecord) -> dict[str, views.JobView]:
    """The jobs of a pipeline's stages, as far as there are any, by stage."""
    return _among(views.parse(kv.range(prefix(record))).jobs, record)


def _among(jobs: Mapping[str, views.JobView], record: records.PipelineRecord) -> dict[str, views.JobView]:
    found = {}
    for stage in record.stages:
        view = jobs.get(f"{record.name}.{stage.name}")
        if view is not None and view.spec is not None and view.record.pipeline == record.name:
            found[stage.name] = view
    return found
