"""Verifying a job: every stored byte by its hash, and every span computed anew from the commit before it.

A span is right if the state at its end and the numbers recorded of its steps come out again. Where they do not, the
answer goes from the step to the tensors to the first operator, as far as this device and stored traces can tell.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ..errors import CorruptError, EasyScaleError, UserError
from . import commit_checks, trace
from . import replay_messages as messages
from .departures import Departure, OperatorDifference, between, class_differences, departed, parting, suspects_of
from .determinism import class_id
from .replayer import Replayer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..storage.objects import ObjectStore
    from .forkserver import ForkServer
    from .messages import Base
    from .trace import Trace


NOT_TRACED = "it is one call of a function, which is not traced operator by operator"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying came to.

    Args:
        start, end: the steps between which everything was looked at.
        commits: how many were read; steps: how many were computed anew.
        here: the determinism class of this device; there: those of the commits, by their short names.
        traced: steps of which a trace was stored.
        trouble: why not all could be computed anew, beside what was found.
    """

    job: str
    verdict: Literal["verified", "differs"]
    start: int
    end: int
    commits: int
    steps: int
    findings: list[commit_checks.Finding]
    departures: list[Departure]
    here: dict[str, str]
    there: dict[str, dict[str, str]]
    traced: list[int] = []
    trouble: str = ""


class Request(NamedTuple):
    """What to verify, and where.

    Args:
        head: the newest commit. first, last: steps, or None: the beginning, the head. trace: a step to be traced, too.
        device: `cpu`, `cuda` or `cuda:N`. folder: for unpacked code.
        show: called with how much is done, of how much, and what is being done. warn: called with a warning.
    """

    job: str
    head: Base
    first: int | None
    last: int | None
    trace: int | None
    device: str
    folder: Path
    show: Callable[[int, int, str], None]
    warn: Callable[[str], None]


def check_range(job: str, head: int, first: int | None, last: int | None, traced: int | None) -> tuple[int, int]:
    """The steps that are meant.

    Raises:
        UserError: there are no such steps.
    """
    if traced is not None and not 0 <= traced < head:
        raise UserError(f"--trace {traced}: job {job!r} has committed the steps 0 to {head - 1}", "name one of these")
    low = first if first is not None else traced if traced is not None and last is None else 0
    high = last if last is not None else traced + 1 if traced is not None and first is None else head
    if low > high:
        raise UserError(f"--from {low} is after --to {high}", "the steps between the two are verified")
    if high > head or low >= head:
        option = f"--to {high}" if high > head else f"--from {low}"
        raise UserError(
            f"{option}: the newest commit of job {job!r} is that of step {head}",
            "name steps before it, or wait for the next commit",
        )
    if traced is not None and not low <= traced < high:
        raise UserError(
            f"--trace {traced} is not among the steps that are verified, {low} to {high - 1}",
            "leave out --from and --to, or name another step",
        )
    return low, high


def loadable(stops: list[commit_checks.Stop], start: commit_checks.Stop) -> commit_checks.Stop:
    """The newest of the commits up to `start` whose state is there: that of the oldest always is."""
    return next(stop for stop in reversed(stops) if stop.step <= start.step and not stop.collected)


class Verifier:
    """One run of the command.

    Args:
        store: where the job's blobs are. fork_server: where processes for the user's code come from.
    """

    def __init__(self, store: ObjectStore, request: Request, fork_server: ForkServer) -> None:
        self._store, self._request, self._fork_server = store, request, fork_server
        self._departures: list[Departure] = []
        self._here: dict[str, str] = {}
        self._there: dict[str, dict[str, str]] = {}
        self._traced: list[int] = []
        self._end = 0
        self._done = 0

    def run(self) -> Verdict:
        """Look at what is stored, then compute it anew.

        Raises:
            UserError: the steps do not exist, or something has to be mended here before it can be done.
        """
        job, head = self._request.job, self._request.head
        low, high = check_range(job, head.step, self._request.first, self._request.last, self._request.trace)
        top = commit_checks.nearest(self._store, job, head, high)
        self._request.show(0, 1, "reading commits")
        stops, findings = commit_checks.examine(
            self._store, job, top, low,
            lambda step: self._request.show(top.step - step, max(1, top.step - low), "reading commits"),
        )  # fmt: skip
        self._there = {class_id(stop.determinism): stop.determinism for stop in stops if stop.determinism}
        self._end = stops[-1].step
        trouble = ""
        try:
            self._recompute(stops)
            if self._request.trace is not None:
                self._trace_for_others(stops, self._request.trace)
        except EasyScaleError as error:
            if not findings:
                raise
            trouble = str(error)  # what was found is worth more than this, and may be why
        return Verdict(
            job=job,
            verdict="differs" if findings or self._departures else "verified",
            start=stops[0].step,
            end=stops[-1].step,
            commits=sum(stop.base.manifest is not None for stop in stops),
            steps=self._done - stops[0].step if self._done else 0,
            findings=findings,
            departures=self._departures,
            here=self._here,
            there=self._there,
            traced=self._traced,
            trouble=trouble,
        )

    def _replayer(self, stop: commit_checks.Stop, *, loaders: bool) -> Replayer:
        request = self._request
        begin = messages.Begin(
            job=request.job, spec=stop.spec, code=stop.code, store=self._store.address, folder=str(request.folder),
            device=request.device, loaders=loaders,
        )  # fmt: skip
        return Replayer(self._fork_server, begin, lambda step: request.show(step, self._end, "computing anew"))

    def _recompute(self, stops: list[commit_checks.Stop]) -> None:
        """Compute all spans anew, up to the first whose state does not come out.

        Code and specification may have changed on the way (`--accept-changes`): each has a process of its own.
        """
        spans = [*pairwise(stops)]
        for _, group in groupby(spans, key=lambda span: (span[1].spec, span[1].code)):
            mine = [*group]
            self._require_there(mine[0][0], stops)
            with self._replayer(mine[0][1], loaders=True) as replayer:
                self._introduce(replayer)
                for start, stop in mine:
                    held = start.state_digest or replayer.begun.initial
                    order = messages.Recompute(
                        start=start.base, held=held, stop=stop.base, digest=stop.state_digest, history=stop.history,
                        whole=stop.parent == start.base.manifest,
                    )  # fmt: skip
                    found = replayer.recompute(order)
                    self._done = stop.step
                    if found.step is not None or found.digest != stop.state_digest:
                        departure = departed(start, stop, found)
                        if departure.state:
                            replayer.close()
                            self._departures.append(self._explained(departure, loadable(stops, start), stop))
                            return
                        self._departures.append(departure)

    def _require_there(self, start: commit_checks.Stop, stops: list[commit_checks.Stop]) -> None:
        """Within a span of the same code, the state of a commit that was collected is computed on the way."""
        if start.collected:
            later = next((stop for stop in stops if stop.step > start.step and not stop.collected), None)
            raise UserError(
                f"job {self._request.job!r} went on from commit {start.step} with other code or settings, and the "
                "state of that commit was collected (easyscale gc)",
                f"verify what comes after it: --from {later.step}" if later else "nothing after it is there either",
            )

    def _introduce(self, replayer: Replayer) -> None:
        """Say up front when this device may be expected to give other bits.

        Raises:
            UserError: the data are not those of the job, and that is not the device's doing.
        """
        job, begun = self._request.job, replayer.begun
        others = [found for name, found in self._there.items() if name != class_id(begun.determinism)]
        if not self._here:
            for found in others:
                self._request.warn(
                    f"this device is of another determinism class than commits of job {job!r}: "
                    f"{class_differences(found, begun.determinism)}; equal bits cannot be taken for granted"
                )
        self._here = begun.determinism
        if not begun.same_data:
            what = f"the dataset that job {job!r} finds here is not the one that it was submitted with"
            if not others:
                raise UserError(
                    what, "its length, type or some of its items differ: bring the job's data to this machine"
                )
            self._request.warn(f"{what}: other data, or items that this device computes otherwise")

    # ---- what differs

    def _explained(self, departure: Departure, start: commit_checks.Stop, stop: commit_checks.Stop) -> Departure:
        """Go down to the operator, as far as it can be told here, from a commit at `start`, whose state is there."""
        suspects = suspects_of(departure)
        reference = self._reference(start.step, stop)
        with self._replayer(stop, loaders=False) as replayer:
            if reference is not None:
                until = min(max(suspects[-1], reference.step) + 1, stop.step)
                states = replayer.follow(messages.Follow(start=start.base, until=until)).states
                if states[0] != reference.states[start.step - reference.base]:
                    why = (
                        "the initial states differ already: build() makes other parameters here; "
                        f"--from {stop.step} begins with a committed state"
                    )
                    return msgspec.structs.replace(departure, why=why)
                parted = parting(reference, states, start.step)
                suspects = suspects if parted is None else [parted]
                reference = self._stored(suspects[-1], stop)
            traces = replayer.record(messages.Record(start=start.base, steps=tuple(suspects))).traces
        if not traces:
            return msgspec.structs.replace(departure, why="; ".join(filter(None, [departure.why, NOT_TRACED])))
        self._store_traces(traces)
        operator, why = self._conclude(traces, reference, stop)
        return msgspec.structs.replace(departure, operator=operator, why="; ".join(filter(None, [departure.why, why])))

    def _conclude(
        self, traces: tuple[Trace, ...], reference: Trace | None, stop: commit_checks.Stop
    ) -> tuple[OperatorDifference | None, str]:
        restless = next((one for one in traces if not one.repeatable), None)
        if restless is not None:
            number = restless.unstable[0] if restless.unstable else len(restless.operators) - 1
            here = restless.operators[number]
            found = OperatorDifference(step=restless.step, number=number, here=here, there=here)
            return found, "this device gives other bits when it computes this step twice; that operator is the first"
        ours = traces[-1]
        if reference is not None and reference.step == ours.step:
            operator = between(ours, reference)
            if operator is not None:
                return operator, f"that operator is the first; compared with a trace made on {_class(reference)}"
            if ours.after == reference.after:
                return None, (
                    f"step {ours.step} comes out here as in the trace that {_class(reference)} made: "
                    "the commit was altered, or computed wrong"
                )
        same = class_id(stop.determinism) == class_id(ours.determinism)
        if same:
            return None, (
                f"two computations here agree, on a device of the class that wrote commit {stop.step}: it was altered, "
                "or computed wrong"
            )
        return None, (
            "two computations here agree, so the two classes of devices differ, or the commit was altered; to name the "
            f"operator: `easyscale verify {self._request.job} --trace {ours.step}` on a device like those of the job "
            f"({class_differences(ours.determinism, stop.determinism)}), then verify here again"
        )

    # ---- traces

    def _trace_for_others(self, stops: list[commit_checks.Stop], step: int) -> None:
        """Store the traces of a step and of the one before it, in whose update a difference may lie that only this
        one's numbers show."""
        if any(departure.state for departure in self._departures) and self._traced:
            return
        at = bisect_right([stop.step for stop in stops], step)
        if not 0 < at < len(stops):
            raise EasyScaleError(f"step {step} cannot be traced: the commits around it cannot be read")
        start, stop = loadable(stops, stops[at - 1]), stops[at]
        steps = tuple(wanted for wanted in (step - 1, step) if wanted >= start.step)
        with self._replayer(stop, loaders=False) as replayer:
            traces = replayer.record(messages.Record(start=start.base, steps=steps)).traces
        if not traces:
            raise UserError(f"job {self._request.job!r} cannot be traced: {NOT_TRACED}", "leave out --trace")
        self._store_traces(traces)

    def _store_traces(self, traces: tuple[Trace, ...]) -> None:
        for one in traces:
            if one.repeatable:
                trace.write_trace(self._store, one, class_id(one.determinism))
                self._traced.append(one.step)

    def _stored(self, step: int, stop: commit_checks.Stop) -> Trace | None:
        try:
            return trace.read_trace(self._store, self._request.job, step, class_id(stop.determinism))
        except CorruptError as error:
            self._request.warn(str(error))
            return None

    def _reference(self, start: int, stop: commit_checks.Stop) -> Trace | None:
        """The newest trace within a span that a device of the class of its commit has made."""
        steps = trace.traced_steps(self._store, self._request.job, class_id(stop.determinism))
        for step in reversed([step for step in steps if start <= step < stop.step]):
            found = self._stored(step, stop)
            if found is not None and found.base <= start:
                return found
        return None


def _class(one: Trace) -> str:
    return ", ".join(
        f"{name} {one.determinism[name]}" for name in ("device", "isa", "model") if name in one.determinism
    )
