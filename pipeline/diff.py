"""Where the histories of two jobs part: settings, code, data, devices; then the commit, step, tensors and operator.

Nothing is walked: the last commit in common is found by bisecting the markers, the step by bisecting what was recorded
since, and only the steps between the two are computed anew, on both sides on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ..errors import CorruptError, NotFoundError, UserError
from ..storage import commits, trees
from ..storage.blobs import get_blob
from ..storage.collected import is_collected, read_notes
from ..storage.differences import Difference, differences
from ..storage.manifests import Manifest, read_manifest
from . import bundle, commit_checks
from . import replay_messages as messages
from .bisection import first, first_unlike
from .departures import OperatorDifference, between, class_differences, number_differences
from .messages import Base
from .replayer import Replayer
from .spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..storage.objects import ObjectStore
    from .forkserver import ForkServer

SHOWN = 20

_NAMED = frozenset({"name", "pipeline", "code", "data"})
"""Fields of a specification that are told in another way."""


class Side(NamedTuple):
    """One of the two jobs: its newest commit, and the digests of what it was submitted with last."""

    job: str
    head: Base
    state_digest: str
    spec: str
    code: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What comparing two jobs came to.

    Args:
        upto: the step up to which they were compared: the newest that both have committed, or recorded.
        settings: fields of the specification that differ, as (one, other); code: lines that tell of another code;
            data: whether the datasets differ; classes: where the determinism classes differ, in words.
        common: step of the last commit with equal states; 0 is the beginning.
        apart: step of the first commit in common with other states; None if there is none.
        step: the first step whose recorded numbers differ; numbers: which.
        parted: the step that, computed anew here, gives other states; None if no such was found.
        differing: tensors and values that differ at `apart`; tensors: the first of them.
        operator: the first that differs, `here` being the first job's. why: what follows, for people.
    """

    job1: str
    job2: str
    verdict: Literal["identical", "differs"]
    upto: int
    settings: dict[str, tuple[Any, Any]] = {}
    code: list[str] = []
    data: bool = False
    classes: str = ""
    common: int = 0
    apart: int | None = None
    step: int | None = None
    numbers: dict[str, tuple[Any, Any]] = {}
    parted: int | None = None
    differing: int = 0
    tensors: list[Difference] = []
    operator: OperatorDifference | None = None
    why: str = ""


class Place(NamedTuple):
    """Where to compute on: device, local folder, fork server, and whom to tell how far it is."""

    device: str
    folder: Path
    fork_server: ForkServer
    show: Callable[[int, int, str], None]


class Span(NamedTuple):
    """One side's way from the last commit in common to where the two differ.

    Args:
        start: the commit in common, or the newest before it whose state is there.
        begins: step of the first commit, if that is later: the job is a fork. Otherwise 0.
        lost: why it cannot be computed anew from there; else empty.
        digest, top: the manifest at its end. lines: what was recorded, by step.
    """

    start: Base
    begins: int
    lost: str
    digest: str
    top: Manifest
    lines: dict[int, str]


def compare(store: ObjectStore, one: Side, other: Side, place: Place) -> Comparison:
    """Compare two jobs whose objects are in one store.

    Raises:
        UserError: a step has to be computed anew, and that cannot be done here.
    """
    found = _described(store, one, other)
    if (one.head.step, one.state_digest) == (other.head.step, other.state_digest):
        return msgspec.structs.replace(found, common=one.head.step)
    place.show(0, 1, "bisecting commits")
    common, apart = parting_commits(store, one, other)
    upto = apart if apart is not None else found.upto
    found = msgspec.structs.replace(found, common=common, apart=apart)
    if upto == common:  # one of them has not come further
        return found
    ours, theirs = (_span(store, side, common, upto) for side in (one, other))
    step = first_line_apart(ours.lines, theirs.lines, max(common, ours.begins, theirs.begins), upto)
    if step is None and apart is None:
        return found
    numbers = number_differences(*(_plain(side.lines.get(step)) for side in (ours, theirs))) if step is not None else {}
    found = msgspec.structs.replace(
        found,
        verdict="differs",
        step=step,
        numbers=numbers,
        classes=class_differences(theirs.top.determinism, ours.top.determinism),
    )
    if apart is not None:
        found = _with_tensors(store, found, ours, theirs)
    forks = [(side.job, span.begins) for side, span in ((one, ours), (other, theirs)) if span.begins > common]
    lost = [side.lost for side in (ours, theirs) if side.lost]
    if forks or lost:
        told = [f"job {job!r} is a fork that begins with commit {begins}" for job, begins in forks]
        why = "; ".join([*told, *lost])
        return msgspec.structs.replace(found, why="; ".join(filter(None, [found.why, why])))
    return _with_operator(store, found, (one, ours), (other, theirs), place, apart if step is None else step + 1)


def _described(store: ObjectStore, one: Side, other: Side) -> Comparison:
    """Settings, code and data side by side."""
    a, b = (JobSpec.decode(_blob(store, side.job, side.spec)) for side in (one, other))
    fields = {name: (getattr(a, name), getattr(b, name)) for name in JobSpec.__struct_fields__ if name not in _NAMED}
    inputs = [{name: str(value) for name, value in side.items()} for side in fields.pop("inputs")]
    fields |= {f"input {name}": (inputs[0].get(name), inputs[1].get(name)) for name in {**inputs[0], **inputs[1]}}
    settings = {name: (msgspec.to_builtins(x), msgspec.to_builtins(y)) for name, (x, y) in fields.items() if x != y}
    code: list[str] = []
    if one.code != other.code:
        code = bundle.difference(*(_blob(store, side.job, side.code) for side in (one, other)))
    return Comparison(
        job1=one.job, job2=other.job, verdict="identical", upto=min(one.head.step, other.head.step),
        settings=settings, code=code, data=a.data != b.data,
    )  # fmt: skip


def _blob(store: ObjectStore, job: str, digest: str) -> bytes:
    try:
        return get_blob(store, digest)
    except NotFoundError as error:
        raise UserError(
            f"the object store {store.address} lacks what job {job!r} was submitted with ({error})",
            "both jobs must be in one object store: name it with --store",
        ) from error


def parting_commits(store: ObjectStore, one: Side, other: Side) -> tuple[int, int | None]:
    """Steps of the last commit with equal states (0: the beginning) and of the first with other ones, among those that
    both jobs have. Reads at most log2 of them."""
    ours, theirs = (
        {*(step for step in commit_checks.markers(store, side.job) if step < side.head.step), side.head.step}
        for side in (one, other)
    )
    steps = sorted(ours & theirs)
    place = first(len(steps), lambda i: _state(store, one, steps[i]) != _state(store, other, steps[i]))
    return (steps[place - 1] if place else 0), (steps[place] if place < len(steps) else None)


def _state(store: ObjectStore, side: Side, step: int) -> str:
    if step == side.head.step:
        return side.state_digest
    marker = commits.read_marker(store, side.job, step)
    if marker is None:
        raise CorruptError(f"{store.address}: the marker of job {side.job!r}, step {step}, is gone")
    return marker.state_digest


def _span(store: ObjectStore, side: Side, common: int, upto: int) -> Span:
    """What led a job from the commit in common to `upto`: only these commits are read."""
    top = commit_checks.nearest(store, side.job, side.head, upto)
    assert top.manifest is not None
    newest = read_manifest(store, top.manifest)
    lines: dict[int, str] = {}
    start, begins, lost = Base(), 0, ""
    notes = read_notes(store, side.job)
    for digest, manifest in commits.chain(store, top.manifest):
        begins = manifest.step if manifest.parent is not None else 0
        if manifest.step <= common:
            if not is_collected(store, digest, manifest, notes):
                start, begins = Base(step=manifest.step, manifest=digest), 0
                break
            if (manifest.spec, manifest.code) != (newest.spec, newest.code):
                lost = f"job {side.job!r} went on from there with other code, and its commit {common} was collected"
        lines |= commit_checks.recorded(store, manifest.history) if manifest.history else {}
    return Span(start, begins, lost, top.manifest, newest, lines)


def first_line_apart(ours: dict[int, str], theirs: dict[int, str], start: int, end: int) -> int | None:
    """The first step in `start .. end - 1` of which the two have recorded something else, or None. Pure."""
    steps = range(start, end)
    place = first_unlike([ours.get(step) for step in steps], [theirs.get(step) for step in steps])
    return None if place is None else start + place


def _plain(line: str | None) -> dict[str, Any]:
    return msgspec.json.decode(line) if line else {}


def _with_tensors(store: ObjectStore, found: Comparison, ours: Span, theirs: Span) -> Comparison:
    """What differs between the states of the two commits at `apart`."""
    states = []
    for side in (ours, theirs):
        try:
            states.append(trees.flatten(commits.read_commit(store, side.digest)[1]))
        except (CorruptError, NotFoundError) as error:
            return msgspec.structs.replace(found, why=f"a commit cannot be read: {error}")
    tensors = differences(*states)
    return msgspec.structs.replace(found, differing=len(tensors), tensors=tensors[:SHOWN])


def _with_operator(
    store: ObjectStore,
    found: Comparison,
    one: tuple[Side, Span],
    other: tuple[Side, Span],
    place: Place,
    until: int | None,
) -> Comparison:
    """Compute both sides anew from the commit in common, here: the step whose states part, then its operators."""
    assert until is not None
    replayers = []
    try:
        for side, span in (one, other):
            begin = messages.Begin(
                job=side.job, spec=span.top.spec, code=span.top.code, store=store.address, folder=str(place.folder),
                device=place.device, loaders=False,
            )  # fmt: skip
            what = f"computing {side.job} anew"
            replayers.append(Replayer(place.fork_server, begin, lambda step, what=what: place.show(step, until, what)))  # type: ignore[misc]
        followed = [
            _follow(replayer, span, found.common, until)
            for replayer, (_, span) in zip(replayers, (one, other), strict=True)
        ]
        others = [side.job for (side, _), it in zip((one, other), replayers, strict=True) if not it.begun.same_data]
        caution = [f"job {job!r} finds another dataset here than it was submitted with" for job in others]
        for both, came_out in zip((one, other), followed, strict=True):
            caution += _not_reproduced(both, came_out, found.common)
        why = found.why or "; ".join(caution)
        at = first_unlike(followed[0].states, followed[1].states)
        if at is None:
            return msgspec.structs.replace(found, why="; ".join(filter(None, [_alike(*followed), why])))
        if at == 0:
            return msgspec.structs.replace(found, why=why or "the initial states differ: build() makes something else")
        parted = found.common + at - 1
        traces = [
            trace
            for replayer, (_, span) in zip(replayers, (one, other), strict=True)
            for trace in replayer.record(messages.Record(start=span.start, steps=(parted,))).traces
        ]
    finally:
        for replayer in replayers:
            replayer.close()
    operator = between(*traces) if len(traces) == len(replayers) else None  # a call of a function has no traces
    return msgspec.structs.replace(found, parted=parted, operator=operator, why=why)


def _follow(replayer: Replayer, span: Span, common: int, until: int) -> messages.Followed:
    """What a side comes to from the step in common on. Its own chain may have gone around that commit."""
    found = replayer.follow(messages.Follow(start=span.start, until=until))
    skip = common - span.start.step
    return messages.Followed(states=found.states[skip:], lines=found.lines[skip:])


def _alike(one: messages.Followed, other: messages.Followed) -> str:
    """What it means that two jobs, computed anew, come to the same states."""
    if one.lines == other.lines:
        return (
            "computed anew here, both come to the same bits: what differed is the devices, or one was altered; "
            "easyscale verify tells which"
        )
    return "computed anew here, both come to the same states: only what is recorded of the steps differs"


def _not_reproduced(side: tuple[Side, Span], followed: messages.Followed, common: int) -> list[str]:
    """A word of caution if a job does not come out here as it was recorded."""
    (of, span) = side
    for step, line in enumerate(followed.lines, common):
        if span.lines.get(step, line) != line:
            return [f"job {of.job!r} does not come out here as it was recorded, from step {step} on"]
    return []
