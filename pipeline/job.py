"""`Job`: what a user writes in a script, a build function and the settings that it is trained with.

A job is a plain, immutable description, checked when it is made and cheap to make (no torch). It leaves
running to the engine, finding it in a script to `script.py`, and sending it off to `submit.py`.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, get_origin

import msgspec

from ..errors import ScriptError, SpecError, UserError, shown
from .spec import JobSpec, check

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Required, Unpack

    from .spec import Retries
    from .submit import Handle
    from .training import Training

UNKNOWN_SAMPLES = 2**62
"""Stands for the dataset's length until the dataset has been built: enough for any batch."""

MAX_GLOBS = 100
"""How many globs `files` may have: each of them is a walk through the folder."""

_FOUND_LATER: dict[str, Any] = {
    **dict.fromkeys(("script", "code", "data", "python", "torch", "pipeline"), ""),
    "samples": UNKNOWN_SAMPLES,
    "kind": "training",  # a function, and inputs, are for stages of a pipeline: see `pipelines.py`
    "inputs": {},
}
_KINDS = {field.name: field.type for field in msgspec.structs.fields(JobSpec) if field.name not in _FOUND_LATER}

SETTINGS = frozenset(_KINDS)
"""Names of all settings."""

_ALTERNATIVES = {
    "steps": "epochs",
    "epochs": "steps",
    "commit_every": "commit_seconds",
    "commit_seconds": "commit_every",
}


class Settings(TypedDict, total=False):
    """The settings of a `Job`, with the meaning and the defaults that they have in `JobSpec`."""

    ests: Required[int]
    batch_size: Required[int]
    steps: int | None
    epochs: int | None
    seed: int
    micro_batches: int
    drop_last: bool
    shuffle: bool
    buffers: Literal["rank0", "per_est"]
    amp: Literal["bf16", "fp16"] | None
    clip_norm: float | None
    ema: float | None
    schedule: Literal["step", "epoch"]
    reduce: Literal["fp32", "grad"]
    nonfinite: Literal["stop", "skip", "rewind"]
    numerics: Literal["native", "exact"]
    threads: int
    commit_every: int | None
    commit_seconds: float | None
    evaluate_every: int
    check_every: int
    audit_every: int
    loaders: int
    min_workers: int
    max_workers: int | None
    guaranteed_workers: int
    priority: int
    tenant: str
    retries: Retries | dict[str, int]


@dataclass(frozen=True, slots=True, init=False)
class Job:
    """One training job.

    Args:
        name: unique in a cluster: 1 to 100 letters, digits, dots, underscores or hyphens.
        build: makes the `Training`; a function at the top level of the script or of a module in its folder. Only in a
            `Pipeline` it may have parameters: the names of earlier stages, whose results it gets.
        files: globs, relative to the script's folder, of files other than `*.py` that the code reads
            (`["configs/*.toml"]`). They travel with the code; data does not belong here.
        settings: see `Settings`; `ests`, `batch_size` and one of `steps` and `epochs` must be given.

    Raises:
        SpecError: a setting is unknown, of the wrong type or out of range; workers cannot find `build`.
    """

    build: Callable[..., Training]
    settings: JobSpec
    files: tuple[str, ...]

    def __init__(
        self,
        name: str,
        build: Callable[..., Training],
        *,
        files: Sequence[str] = (),
        **settings: Unpack[Settings],
    ) -> None:
        self._set(build, _checked({"name": name, **settings}), checked_files(f"job {shown(name)}", files))

    def _set(self, build: Callable[..., Training], settings: JobSpec, files: tuple[str, ...]) -> None:
        check_function(f"job {settings.name!r}: build", build)
        object.__setattr__(self, "build", build)
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "files", files)

    @property
    def name(self) -> str:
        """The name it is submitted under."""
        return self.settings.name

    def replace(self, **settings: Any) -> Job:
        """The same job with other settings (`name` too). `steps` takes the place of `epochs` and vice versa.

        Raises:
            SpecError: as for a new job.
        """
        dropped = {other: None for key, other in _ALTERNATIVES.items() if key in settings and other not in settings}
        given = {key: getattr(self.settings, key) for key in _KINDS}
        job = object.__new__(Job)
        job._set(self.build, _checked({**given, **dropped, **settings}), self.files)
        return job

    def spec(self, *, script: str, code: str, data: str, samples: int, python: str = "", torch: str = "") -> JobSpec:
        """The complete specification, once the code bundle, the dataset and what they were tried with are known.

        Raises:
            SpecError: the dataset does not fill one global batch.
        """
        return check(
            msgspec.structs.replace(
                self.settings, script=script, code=code, data=data, samples=samples, python=python, torch=torch
            )
        )

    def submit(self, kv: str | None = None, store: str | None = None, accept_changes: bool = False) -> Handle:
        """Send the job off, or find it again if it was submitted before.

        Args:
            kv, store: addresses; default: see `easyscale.settings`.
            accept_changes: go on with a specification, code or data that differ from the first submission's.

        Raises:
            UserError: the job, its script or the addresses cannot be used, or it has changed.
        """
        from .script import is_loading

        if is_loading():
            raise ScriptError(
                f"job {self.name!r} is submitted by its script whenever the script is read",
                'put submit() under `if __name__ == "__main__":`',
            )
        from .submit import submit

        try:
            return submit(self, kv=kv, store=store, accept_changes=accept_changes)
        except UserError as error:  # a script shows it with a traceback, in which ours would only hide the user's line
            cause = error.__cause__ if isinstance(error, ScriptError) else None
            raise error.with_traceback(None) from cause


def parse_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """Values for `Job.replace` from the command line's text, read by the type of each setting.

    `none` is None for a setting that may be None; `retries` is JSON.

    Raises:
        SpecError: an unknown setting, or text that does not read as its type.
    """
    return {key: _parse(key, text) for key, text in texts.items()}


def _parse(key: str, text: str) -> Any:
    kind = _KINDS.get(key)
    if kind is None:
        raise unknown("--set", key, _KINDS)
    value: Any = None if text.lower() == "none" else text
    try:
        if text.startswith("{"):
            value = json.loads(text)
        return msgspec.convert(value, kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"--set {shown(f'{key}={text}')} is not a value for {key}", f"it must be {_wanted(kind)}"
        ) from error


def _checked(settings: Mapping[str, Any]) -> JobSpec:
    where = f"job {shown(settings['name'])}"
    for key in settings:
        if key not in _KINDS:
            raise unknown(where, key, _KINDS)
    for key in ("ests", "batch_size"):
        if key not in settings:
            raise SpecError(f"{where} does not give {key}", f"add {key}=... to Job(...)")
    return converted(where, settings)


def converted(where: str, settings: Mapping[str, Any], **fixed: Any) -> JobSpec:
    """Settings by name as a specification that lacks what is found later. `where` is for errors.

    Args:
        settings: the user's. fixed: what he does not choose.

    Raises:
        SpecError: one is of the wrong type or out of range.
    """
    try:
        spec = msgspec.convert({**_FOUND_LATER, **settings, **fixed}, JobSpec)
    except msgspec.ValidationError as error:
        raise _wrong_type(where, settings, str(error)) from None
    return check(spec)


def _wrong_type(where: str, settings: Mapping[str, Any], message: str) -> SpecError:
    reason, _, path = message.partition(" - at ")
    found = re.match(r"`\$\.(\w+)", path)
    assert found, message
    key = found[1]
    wanted = f"it must be {_wanted(_KINDS[key])} ({reason})"
    return SpecError(f"{where}: {key} is {shown(settings[key])}", wanted)


def unknown(where: str, key: str, known: Collection[str]) -> SpecError:
    """The error for a setting that there is not; `known` are those that there are."""
    close = difflib.get_close_matches(key, known, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    return SpecError(f"{where}: there is no setting {shown(key)}", f"{meant}The settings are {', '.join(known)}")


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if parts := get_args(kind):
        return " or ".join(map(_wanted, parts))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = ", ".join(f'"{field.name}": {_wanted(field.type)}' for field in msgspec.structs.fields(kind))
        return f"{{{fields}}}"
    return "None" if kind is NoneType else str(kind.__name__)


def checked_files(where: str, files: Sequence[str]) -> tuple[str, ...]:
    """The globs of files that travel with the code.

    Raises:
        SpecError: they are none.
    """
    if not isinstance(files, (list, tuple)) or not all(isinstance(pattern, str) for pattern in files):
        raise SpecError(f"{where}: files is {shown(files)}", 'it must be a list of globs: ["configs/*.toml"]')
    if len(files) > MAX_GLOBS:
        raise SpecError(f"{where}: files has {len(files)} globs", f"{MAX_GLOBS} are allowed; ** takes whole trees")
    return tuple(files)


def check_function(where: str, function: Any) -> None:
    """A worker finds the function again by its module and name, so it must have both.

    Raises:
        SpecError: `where` begins its message.
    """
    name = getattr(function, "__qualname__", None)
    if callable(function) and isinstance(name, str) and name.isidentifier():
        return
    raise SpecError(
        f"{where} is {name or shown(function)}, which workers cannot find by name",
        "give a function with a `def` at the top level of a module, not a lambda, inner function or method",
    )
