"""What moves a pipeline on from stage to stage: it submits each stage as soon as what it builds on is committed.

Whoever drives may die on any line: the jobs go on, and the next one finds by content what is there already. What can be
done next is decided in `stages.py`; where stages run is left to others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from .. import logs
from ..errors import EasyScaleError, RemoteError, UnavailableError
from . import stages
from .addresses import open_both
from .names import place_pipeline
from .spec import Input
from .submit import POLL_SECONDS, Result, place, result_of
from .summary import Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ..coordinator import records
    from ..coordinator.kv import KeyValueStore
    from ..coordinator.views import JobView
    from ..storage.objects import ObjectStore
    from .bundle import Bundle
    from .forkserver import ForkServer
    from .inspect import Outline
    from .pipelines import Pipeline
    from .spec import JobSpec
    from .submit import How

log = structlog.get_logger()

AGAIN_SECONDS = 5.0
"""From a stage that a store kept from being submitted to the next try."""


class Driver:
    """One pipeline's way through its stages.

    Args:
        record: its outline.
        kv, store: where its stages' records and commits are.
        describe: `(stage, inputs) -> specification, code`.
        accept_changes: see `Job.submit`.
        submitted: called when a stage has been submitted, or was found: `(stage, how, its job)`.

    Raises:
        UserError: its name is taken.
        UnavailableError: the key-value store does not answer.
    """

    def __init__(
        self,
        record: records.PipelineRecord,
        kv: KeyValueStore,
        store: ObjectStore,
        describe: Callable[[str, Mapping[str, Input]], tuple[JobSpec, Bundle]],
        *,
        accept_changes: bool = False,
        submitted: Callable[[str, How, Summary], None] = lambda *_: None,
    ) -> None:
        self.record = record
        self.jobs: dict[str, JobView] = {}
        """Stages that were submitted here, or found, as they are now."""
        self.errors: dict[str, EasyScaleError] = {}
        """Why stages could not be submitted."""
        self._kv, self._store, self._describe = kv, store, describe
        self._accept, self._submitted = accept_changes, submitted
        self._mine: set[str] = set()
        self._again = float("-inf")
        place_pipeline(kv, record)

    @property
    def summaries(self) -> dict[str, Summary]:
        """The stages that were submitted, in order."""
        return {stage.name: summarize(self.jobs[stage.name]) for stage in self.record.stages if stage.name in self.jobs}

    @property
    def moves(self) -> stages.Moves:
        """What can be done now."""
        return stages.moves(self.record.stages, {stage.name: self._fate(stage.name) for stage in self.record.stages})

    @property
    def done(self) -> bool:
        """Whether all stages are done."""
        return all(self._fate(stage.name) == "done" for stage in self.record.stages)

    def follow(self) -> Iterator[stages.Moves]:
        """Submit what can be submitted, again and again, until all stages are done or nothing more can be.

        Yields:
            After each look, what can be done next; what can be submitted is, afterwards.
        """
        watch = self._kv.watch(stages.prefix(self.record))
        try:
            while True:
                self.look()
                now = self.moves
                yield now
                if now.over:
                    return
                if now.submit and time.monotonic() >= self._again:
                    self._submit(now.submit[0])
                else:
                    watch.wait(POLL_SECONDS)
        finally:
            watch.close()

    def _fate(self, stage: str) -> stages.Fate:
        if stage in self.errors:
            return "failed"
        job = self.jobs.get(stage)
        if job is None:
            return "new"
        return {"done": "done", "failed": "failed", "cancelled": "failed"}.get(job.state, "going")  # type: ignore[return-value]

    def look(self) -> None:
        """See how far the stages are that were submitted."""
        if not self._mine:
            return
        try:
            found = stages.read_stages(self._kv, self.record)
        except UnavailableError as error:
            log.warning("pipeline.unavailable", pipeline=self.record.name, error=str(error))
            return
        self.jobs.update({stage: job for stage, job in found.items() if stage in self._mine})

    def _submit(self, stage: str) -> None:
        """Describe and submit a stage; what keeps it from that for good is remembered as its error."""
        try:
            spec, bundle = self._describe(stage, self._inputs(stage))
            how = place(self._kv, self._store, spec, bundle, accept_changes=self._accept)
            self._mine.add(stage)
            self.look()
            self._submitted(stage, how, summarize(self.jobs[stage]))
        except UnavailableError as error:
            log.warning("pipeline.unavailable", pipeline=self.record.name, stage=stage, error=str(error))
            self._again = time.monotonic() + AGAIN_SECONDS
        except EasyScaleError as error:
            self.errors[stage] = error

    def _inputs(self, stage: str) -> dict[str, Input]:
        names = next(one.inputs for one in self.record.stages if one.name == stage)
        inputs = {}
        for name in names:
            head = self.jobs[name].head
            assert head is not None, "a job that is done has a commit"
            inputs[name] = Input(job=self.jobs[name].name, step=head.value.step, state_digest=head.value.state_digest)
        return inputs


def describing(
    script: Path, outline: Outline, settings: Mapping[str, str], store: ObjectStore, fork_server: ForkServer
) -> Callable[[str, Mapping[str, Input]], tuple[JobSpec, Bundle]]:
    """How a driver describes the stages of a script's pipeline.

    Args:
        script: its path. outline: what it was when the command began. settings: see `inspect.inspect_any`.
        store: where the commits are.
        fork_server: where processes for the user's code come from.
    """
    from .inspect import StageOrder, inspect_any

    def describe(stage: str, inputs: Mapping[str, Input]) -> tuple[JobSpec, Bundle]:
        order = StageOrder(stage=stage, inputs=dict(inputs), store=store.address, code=outline.code)
        found = inspect_any(script, outline.chosen, settings, stage=order, fork_server=fork_server)
        assert isinstance(found, tuple), "a stage was asked for"
        return found

    return describe


def run_here(pipeline: Pipeline, *, kv: str | None, store: str | None, accept_changes: bool) -> dict[str, Result]:
    """Drive a pipeline of the script that is running: see `Pipeline.run`."""
    from .forkserver import ForkServer
    from .inspect import Outline, inspect_any
    from .pipelines import function_of
    from .script import script_of

    if not structlog.is_configured():
        logs.configure()
    script = script_of(function_of(pipeline.stages[0]))
    with ForkServer() as fork_server:
        outline = inspect_any(script, pipeline.name, fork_server=fork_server)
        assert isinstance(outline, Outline), "a pipeline was asked for"
        _, records_at, objects_at = open_both(kv, store)
        describe = describing(script, outline, {}, objects_at, fork_server)
        driver = Driver(outline.record, records_at, objects_at, describe, accept_changes=accept_changes, submitted=_log)
        said: dict[str, tuple[str, str]] = {}
        for _ in driver.follow():
            for stage, job in driver.summaries.items():
                if said.get(stage) != (job.state, job.reason):
                    said[stage] = job.state, job.reason
                    log.info("pipeline.stage", job=job.job, state=job.state, reason=job.reason)
    for error in driver.errors.values():
        raise error
    for stage, job in driver.summaries.items():
        if job.state != "done":
            raise RemoteError(f"stage {stage!r} {job.state}: {job.reason}\n{job.traceback}".rstrip())
    return {stage: result_of(job, objects_at.address) for stage, job in driver.summaries.items()}


def _log(stage: str, how: How, job: Summary) -> None:
    log.info("pipeline.submitted", job=job.job, stage=stage, how=how)


def stage_error(stage: str, error: EasyScaleError) -> str:
    """Why a stage could not be submitted, for people."""
    detail = getattr(error, "detail", "")
    return f"stage {stage!r}: {error}" + (f"\n{detail}" if detail else "")
