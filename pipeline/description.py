"""What must be known of a job before it is submitted: its specification and its code bundle.

A training is built once, in this process, so that what cannot run is refused before anything is created; a plain
function is not called. `inspect.py` has it done in a process of its own.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from ..errors import DeviceError, EasyScaleError, RemoteError, SpecError, UserError
from .bundle import Bundle
from .script import MODULE_NAME, entry_of, explained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..storage.objects import ObjectStore
    from .job import Job
    from .pipelines import Pipeline
    from .spec import Input, JobSpec
    from .training import Training

log = structlog.get_logger()

_PACKAGE = Path(__file__).resolve().parents[1]


def describe(job: Job, script: Path) -> tuple[JobSpec, Bundle]:
    """Build the job once in this process, as a worker would, and check what can be checked beforehand.

    Torch's determinism settings of this process become the job's.

    Args:
        job: the job, defined by the script.
        script: path of the script; its folder is the code.

    Raises:
        SpecError: the job cannot be run as it is.
        ScriptError: its code cannot be bundled, or raises.
        UserError: an environment variable of exact numerics asks for what is not there.
    """
    return _described(
        _Subject(job.name, job.build, job.settings, job.files, job.spec, lambda: _nothing_to_give(job)), script
    )


def _nothing_to_give(job: Job) -> dict[str, Any]:
    from .pipelines import required_by

    if lacking := required_by(job.build):
        raise SpecError(
            f"job {job.name!r}: build() has the parameter {lacking[0]!r}, and nothing to give for it",
            "only a stage of an easyscale.Pipeline gets results of others: list it there, and run the pipeline",
        )
    return {}


def describe_stage(
    pipeline: Pipeline, name: str, inputs: Mapping[str, Input], script: Path, store: ObjectStore
) -> tuple[JobSpec, Bundle]:
    """The same of a stage of a pipeline, once its inputs are committed. A plain function is not called.

    Args:
        pipeline: defined by the script. name: of the stage.
        inputs: the commits that it starts from. store: where they are.

    Raises: as `describe`, and as `inputs.load` does.
    """
    from . import inputs as reading
    from .pipelines import function_of

    def finish(**found: Any) -> JobSpec:
        return pipeline.spec(name, inputs, **found)

    stage = pipeline.stage(name)
    full = f"{pipeline.name}.{name}"
    partial = msgspec.structs.replace(stage.settings, name=full, inputs=dict(inputs))
    arguments = lambda: reading.load(store, partial)  # noqa: E731
    return _described(_Subject(full, function_of(stage), partial, stage.files, finish, arguments), script)


class _Subject(NamedTuple):
    """What is described: its function, settings and files; and what makes the specification of what was found."""

    name: str
    function: Callable[..., Any]
    settings: JobSpec
    files: tuple[str, ...]
    spec: Callable[..., JobSpec]
    arguments: Callable[[], dict[str, Any]]


def _described(it: _Subject, script: Path) -> tuple[JobSpec, Bundle]:
    from . import determinism

    script = script.resolve()
    bundle = Bundle.collect(script, it.files)
    entry = entry_of(it.function, script, bundle)
    try:
        determinism.configure(it.settings.threads, it.settings.numerics)
    except DeviceError as error:  # no worker's device: the user's own environment
        raise UserError(str(error), "set it right, or leave it away: neither ever reaches the bits") from None
    found = {"script": entry, "code": bundle.digest, **determinism.versions()}
    try:
        spec = it.spec(**found) if it.settings.kind == "function" else _built(it, found)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, EasyScaleError) and not isinstance(error, RemoteError):
            raise  # an input that cannot be read, say: not the script's fault
        raise explained(error, script, f"cannot build job {it.name!r}") from error
    _warn_of_modules_elsewhere(script.parent)
    return spec, bundle


def _built(it: _Subject, found: Mapping[str, str]) -> JobSpec:
    """The specification of a training, which is built and tried."""
    from .data import check_dataset, fingerprint
    from .engine import Engine, build

    training = build(it.function, it.settings, it.arguments)
    data = fingerprint(training.dataset, it.settings.seed)
    samples = check_dataset(training.dataset)
    if (again := check_dataset(training.dataset)) != samples:
        raise SpecError(
            f"the length of the dataset ({type(training.dataset).__name__}) changes: first {samples}, then {again}",
            "the order of samples depends on it: it must stay the same",
        )
    spec = it.spec(**found, data=data, samples=samples)
    Engine(training, spec).close()
    _try_first_batch(training, spec)
    return spec


def _try_first_batch(training: Training, spec: JobSpec) -> None:
    """Fetch and collate what EST 0 will see first: items that make no batch are the commonest mistake of all.

    Raises:
        RemoteError: the dataset or `collate` raised.
    """
    from .loader import Loader
    from .randomness import preserved

    loader = Loader(training.dataset, msgspec.structs.replace(spec, loaders=0), training.collate)
    with preserved():
        loader.start(0, range(1))
        loader.next(0, 0)
    loader.close()


def _warn_of_modules_elsewhere(folder: Path) -> None:
    """Say which modules come neither from the bundle nor from an installation: workers elsewhere may lack them.

    Only a warning: on this machine, or with a shared file system, they are found as they were here.
    """
    places = [folder, *(Path(path).resolve() for path in {*sysconfig.get_paths().values(), *site.getsitepackages()})]
    places += [_PACKAGE, Path(site.getusersitepackages()).resolve()]
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or "." in name or name in ("__main__", MODULE_NAME):
            continue
        if not any(Path(file).resolve().is_relative_to(place) for place in places):
            hint = "install it there too, or put it beside the script: only the script's folder travels"
            log.warning("submit.module_elsewhere", module=name, file=file, hint=hint)
