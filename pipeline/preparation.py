"""What every process that runs a job's code does first: specification and code from the store, and the build function.

A worker that lacks something says so as a `DeviceError`: another one may have it. The replica is the caller's part.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, EasyScaleError, NotFoundError, ScriptError, SpecError, UnavailableError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..storage.objects import ObjectStore
    from .spec import JobSpec


def fetch(store: ObjectStore, folder: Path, *, job: str, spec: str, code: str) -> tuple[JobSpec, Path]:
    """Get a job's specification, and its code into a folder of ours.

    Args:
        store: where both lie. folder: under which the code is unpacked.
        job: its name, for errors. spec, code: digests of the two blobs.

    Returns:
        The specification, and the folder with the code.

    Raises:
        DeviceError: this worker has another store, other versions or no room, or trusts keys that have not signed them.
    """
    from ..storage.blobs import get_blob
    from ..storage.signatures import TRUSTED_KEYS, trusted
    from . import bundle, determinism
    from .spec import JobSpec, check

    try:
        keys = trusted()
    except UserError as error:
        raise DeviceError(f"this worker cannot tell whom to trust: {error}") from error
    for what, digest in (("specification", spec), ("code", code)):
        if not keys.signed(store, digest):
            raise DeviceError(
                f"the {what} of job {job!r} ({digest[:12]}) is not signed with a key that is trusted here "
                f"({TRUSTED_KEYS}): submit it again with such a key (EASYSCALE_SIGNING_KEY), "
                "and start this worker again"
            )
    try:
        found = JobSpec.decode(get_blob(store, spec))
        archive = get_blob(store, code)
    except NotFoundError as error:
        raise DeviceError(
            f"the object store {store.address} lacks what job {job!r} was submitted with: start this "
            f"worker with the --store (EASYSCALE_STORE) of the submit ({error})"
        ) from error
    try:
        check(found)
    except SpecError as error:  # a submit would have refused it: another version has, or nobody has submitted it
        raise DeviceError(f"this EasyScale cannot run such a job: {error}") from error
    determinism.check_versions({"python": found.python, "torch": found.torch})
    try:
        return found, bundle.unpack(archive, folder / "code")
    except UnavailableError as error:
        raise DeviceError(
            f"this worker's folder cannot be used: {error}; free some room, or name another (--folder)"
        ) from error


def configure(spec: JobSpec, device: str) -> None:
    """Torch as the job wants it, before anything of the user's runs.

    Raises:
        DeviceError: this device cannot do that; for exact numerics, because their kernels cannot be built here.
    """
    from . import determinism

    try:
        determinism.configure(spec.threads, spec.numerics, device)
    except DeviceError:
        raise
    except EasyScaleError as error:
        raise DeviceError(f"this worker cannot run a job with exact numerics: {error}") from error


def load_build(folder: Path, entry: str) -> Callable[..., Any]:
    """The user's function: of a training the build function.

    Args:
        folder: with the unpacked code. entry: see `script.entry_of`.

    Raises:
        DeviceError: it imports a module that this worker lacks.
        ScriptError: it cannot be loaded.
    """
    from .script import load_entry

    try:
        return load_entry(folder, entry)
    except ScriptError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        # It was there where the job was submitted from: another worker may have it too.
        raise DeviceError(
            f"this worker's Python ({sys.executable}) has no module {error.__cause__.name!r}, which the job "
            "imports: install it here, or put it beside the script, whose folder travels to the workers"
        ) from error
