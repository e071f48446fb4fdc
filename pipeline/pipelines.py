"""`Pipeline` and `Stage`: what a user writes in a script, jobs and plain functions that build on each other's results.

A stage gets the results of earlier stages by the names of its function's parameters: that is all there is to say about
what depends on what. Each stage is a job of its own, `PIPELINE.STAGE`. Plain descriptions, checked when they are made
and cheap to make (no torch); describing a stage for workers is left to `inspect.py`, moving on to `driver.py`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from ..coordinator import records
from ..coordinator.kv import MAX_VALUE
from ..errors import SpecError, UserError, shown
from .job import Job, check_function, checked_files, converted, parse_settings, unknown
from .spec import NAME_PATTERN, JobSpec, Retries, check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from .spec import Input
    from .submit import Result

MAX_STAGES = 100

MAX_NAME = 100
"""Characters of `PIPELINE.STAGE`."""

_ONE_CALL: dict[str, Any] = {"kind": "function", "ests": 1, "batch_size": 1, "steps": 1, "samples": 1}


class StageSettings(TypedDict, total=False):
    """The settings of a `Stage`, with the meaning and the defaults that they have in `JobSpec`."""

    retries: Retries | dict[str, int]
    priority: int
    tenant: str
    threads: int
    seed: int
    numerics: Literal["native", "exact"]


SETTINGS = frozenset(StageSettings.__annotations__)


@dataclass(frozen=True, slots=True, init=False)
class Stage:
    """A plain function as a stage of a pipeline. A function that needs no settings can be given as it is.

    It is called once for the whole pipeline, on one worker, with results of earlier stages. What it returns is
    committed, and handed to later stages to the bit: dict, list, tuple, None, bool, int, float, str and tensors.

    Args:
        function: at the top level of the script or of a module in its folder.
        name: of the stage; default: the function's.
        files: see `Job`.
        settings: see `StageSettings`.

    Raises:
        SpecError: a setting is unknown, of the wrong type or out of range; workers cannot find the function.
    """

    function: Callable[..., Any]
    settings: JobSpec
    files: tuple[str, ...]

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        files: Sequence[str] = (),
        **settings: Unpack[StageSettings],
    ) -> None:
        check_function("stage: its function" if name is None else f"stage {shown(name)}: its function", function)
        name = function.__name__ if name is None else name
        where = f"stage {shown(name)}"
        for key in settings:
            if key not in SETTINGS:
                raise unknown(where, key, sorted(SETTINGS))
        self._set(function, converted(where, {"name": name, **settings}, **_ONE_CALL), checked_files(where, files))

    def _set(self, function: Callable[..., Any], settings: JobSpec, files: tuple[str, ...]) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "files", files)

    @property
    def name(self) -> str:
        """Its name in the pipeline."""
        return self.settings.name

    def replace(self, **settings: Any) -> Stage:
        """The same with other settings.

        Raises:
            SpecError: as for a new stage.
        """
        for key in settings:
            if key not in SETTINGS:
                raise unknown(f"stage {self.name!r}", key, sorted(SETTINGS))
        given = {key: getattr(self.settings, key) for key in ("name", *SETTINGS)}
        stage = object.__new__(Stage)
        fresh = converted(f"stage {self.name!r}", {**given, **settings}, **_ONE_CALL)
        stage._set(self.function, fresh, self.files)
        return stage


@dataclass(frozen=True, slots=True, init=False)
class Pipeline:
    """Stages that build on each other.

    Args:
        name: unique in a cluster, among jobs too.
        stages: plain functions, `Stage`s and `Job`s. The function of each (a job's `build`) gets results of stages
            before it by the names of its parameters: of a function what it returned, of a job a `Committed`.

    Raises:
        SpecError: something in it cannot be used; says which stage, and what to do.
    """

    name: str
    stages: tuple[Stage | Job, ...]
    inputs: dict[str, tuple[str, ...]] = field(compare=False)

    def __init__(self, name: str, stages: Sequence[Callable[..., Any] | Stage | Job]) -> None:
        where = f"pipeline {shown(name)}"
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            raise SpecError(
                f"{where}: its name cannot be used",
                "use 1 to 100 letters, digits, dots, underscores or hyphens (ASCII), beginning with a letter or digit",
            )
        if not isinstance(stages, (list, tuple)) or not 0 < len(stages) <= MAX_STAGES:
            raise SpecError(
                f"{where}: its stages are {shown(stages)}",
                f"give a list of 1 to {MAX_STAGES} functions, Stages and Jobs, each after those that it builds on",
            )
        made = tuple(_stage(where, stage) for stage in stages)
        inputs: dict[str, tuple[str, ...]] = {}
        names = [stage.name for stage in made]
        for stage in made:
            full = f"{name}.{stage.name}"
            if len(full) > MAX_NAME:
                raise SpecError(
                    f"{where}: the job of stage {stage.name!r} would be named {full!r}", f"{MAX_NAME} characters fit"
                )
            if stage.name in inputs:
                raise SpecError(f"{where} has two stages named {stage.name!r}", "name one: Stage(function, name=...)")
            inputs[stage.name] = _inputs(f"{where}: stage {stage.name!r}", stage, list(inputs), names)
        self._set(name, made, inputs)
        if len(records.encode(self.record)) > MAX_VALUE:
            raise SpecError(f"{where}: its names are too long for so many inputs", "give shorter names")

    def _set(self, name: str, stages: tuple[Stage | Job, ...], inputs: dict[str, tuple[str, ...]]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "inputs", inputs)

    @property
    def record(self) -> records.PipelineRecord:
        """Its outline: what is known of it before a stage has been described for workers."""
        return records.PipelineRecord(
            name=self.name,
            stages=tuple(
                records.StageRecord(name=stage.name, kind=stage.settings.kind, inputs=self.inputs[stage.name])
                for stage in self.stages
            ),
        )

    def stage(self, name: str) -> Stage | Job:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)

    def spec(self, name: str, inputs: Mapping[str, Input], **found: Any) -> JobSpec:
        """The specification of a stage's job.

        Args:
            name: of the stage.
            inputs: by the names of the parameters.
            found: what is known of code and data: see `Job.spec`. Of a function there are no data.

        Raises:
            SpecError: it cannot be run.
        """
        full = msgspec.structs.replace(
            self.stage(name).settings, name=f"{self.name}.{name}", pipeline=self.name, inputs=dict(inputs), **found
        )
        return check(full)

    def replace(self, texts: Mapping[str, str]) -> Pipeline:
        """The same pipeline with settings from the command line.

        Args:
            texts: `name` is the pipeline's, `numerics` that of all stages, all others are `STAGE.SETTING`.

        Raises:
            SpecError: there is no such stage or setting, or a value cannot be used.
        """
        changes: dict[str, dict[str, str]] = {stage.name: {} for stage in self.stages}
        for key, text in texts.items():
            stage, dot, setting = key.rpartition(".")
            if key == "numerics":
                for given in changes.values():
                    given.setdefault("numerics", text)
            elif key != "name" and (not dot or stage not in changes):
                raise SpecError(
                    f"--set {shown(key)}: pipeline {self.name!r} has no such stage",
                    f"write --set STAGE.KEY=VALUE; its stages are {', '.join(changes)}",
                )
            elif key != "name":
                changes[stage][setting] = text
        stages = [stage.replace(**parse_settings(changes[stage.name])) for stage in self.stages]
        if renamed := [stage.name for stage in stages if stage.name not in changes]:
            raise SpecError(f"--set: a stage cannot be renamed to {renamed[0]!r}", "its name is that of a parameter")
        return Pipeline(texts.get("name", self.name), stages)

    def run(self, kv: str | None = None, store: str | None = None, accept_changes: bool = False) -> dict[str, Result]:
        """Submit one stage after another as soon as it can be, and wait for the end; workers elsewhere run them.

        Args:
            kv, store: addresses; default: see `easyscale.settings`.
            accept_changes: see `Job.submit`.

        Returns:
            What each stage came to, by name.

        Raises:
            UserError: a stage, the script or the addresses cannot be used, or a stage has changed.
            RemoteError: a stage failed; the message ends with the traceback of the user's code.
        """
        from .script import is_loading

        if is_loading():
            raise UserError(
                f"pipeline {self.name!r} is run by its script whenever the script is read",
                'put run() under `if __name__ == "__main__":`',
            )
        from .driver import run_here

        return run_here(self, kv=kv, store=store, accept_changes=accept_changes)


def function_of(stage: Stage | Job) -> Callable[..., Any]:
    """What is called for a stage."""
    return stage.function if isinstance(stage, Stage) else stage.build


def parameters_of(where: str, function: Callable[..., Any]) -> dict[str, bool]:
    """Names of a function's parameters, and whether each must be given.

    Raises:
        SpecError: it has some that cannot be given by name.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where}: its parameters cannot be told: {error}", "give a plain function") from None
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise SpecError(
                f"{where} has the parameter {str(one.replace(annotation=one.empty))!r}, which no stage can stand for",
                "a stage gets the results of earlier stages by the names of its parameters: def f(prepare, train)",
            )
    return {one.name: one.default is one.empty for one in parameters}


def required_by(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that a function must be given, as far as it tells them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variable]


def _stage(where: str, given: Any) -> Stage | Job:
    if isinstance(given, (Stage, Job)):
        return given
    if isinstance(given, Pipeline):
        raise SpecError(f"{where}: a pipeline cannot be a stage of another one", "give its stages")
    check_function(f"{where}: one of its stages", given)
    return Stage(given)


def _inputs(where: str, stage: Stage | Job, earlier: list[str], names: list[str]) -> tuple[str, ...]:
    """The earlier stages that a stage's parameters name."""
    found = []
    for name, required in parameters_of(where, function_of(stage)).items():
        if name in earlier:
            found.append(name)
        elif name in names:
            what = "itself" if name == stage.name else "a later stage"
            raise SpecError(f"{where}: its parameter {name!r} is {what}", "put stages after those that they build on")
        elif required:
            like = [other for other in names if other.replace("-", "_").replace(".", "_") == name]
            hint = f"the stages before it are: {', '.join(earlier) or 'none'}"
            if like:
                hint = f"stage {like[0]!r} has a name that no parameter can have: name it {name!r}"
            raise SpecError(f"{where}: its parameter {name!r} is no stage before it", hint)
    return tuple(found)
