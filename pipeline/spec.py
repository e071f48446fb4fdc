"""The immutable specification of a job: what is hashed, what defines the bits, and how it is checked.

`JobSpec` holds plain values only; code is named by the digest of its bundle, data by a fingerprint. No torch here.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal

import msgspec

from .. import __version__
from ..errors import DeviceError, SpecError, shown
from ..storage.blobs import Digest  # noqa: TC001 - msgspec reads the types

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names become parts of keys, so they are kept to characters that every store treats alike."""

OPERATIONAL = frozenset(
    {
        "commit_every",
        "commit_seconds",
        "min_workers",
        "max_workers",
        "guaranteed_workers",
        "priority",
        "tenant",
        "retries",
        "loaders",
        "evaluate_every",
        "check_every",
        "audit_every",
        "pipeline",
    }
)
"""Fields that never reach the bits: they may change from one run of the same job to the next.

But for `commit_every` under `nonfinite="rewind"`, which says where training goes back to.
"""

FROZEN = frozenset({"name", "kind", "ests", "batch_size", "seed"})
"""Fields that cannot change under one name, not even with --accept-changes: they define what a step is."""


STEPS = 10**12 - 1
"""The largest step: markers of commits have twelve digits, and are in order of them."""

MOST_WORKERS = 800
"""Workers of one job: a plan that names them all, with names as long as they may be, is still a small value."""

BOUNDS: dict[str, tuple[float, float]] = {
    "ests": (1, 65_536),
    "batch_size": (1, 2**31),
    "steps": (1, STEPS),
    "epochs": (1, STEPS),
    "seed": (0, 2**63 - 1),
    "micro_batches": (1, 2**31),
    "threads": (1, 1024),
    "commit_every": (1, STEPS),
    "commit_seconds": (1e-3, 1e9),
    "evaluate_every": (0, STEPS),
    "check_every": (0, STEPS),
    "audit_every": (0, STEPS),
    "loaders": (0, 256),
    "min_workers": (1, MOST_WORKERS),
    "max_workers": (1, MOST_WORKERS),
    "guaranteed_workers": (0, MOST_WORKERS),
    "priority": (-1_000_000, 1_000_000),
    "samples": (1, 2**62),
}
"""The least and the greatest value of numbers: what keys, records and processes can carry."""

MOST_RETRIES = 1_000_000


class Retries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often an attempt may fail, by cause, without any progress in between. Preemptions are free.

    Args:
        died: the process that ran the step vanished or was killed.
        raised: the user's code raised.
    """

    died: int = 5
    raised: int = 0


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A commit of another job that this one starts from: by what it says, so it stays the same whoever wrote it.

    Args:
        job: its name. step: of the commit. state_digest: of its state.
    """

    job: Annotated[str, msgspec.Meta(pattern=rf"^{NAME_PATTERN.pattern}\Z")]
    step: Annotated[int, msgspec.Meta(ge=0, le=STEPS)]
    state_digest: Digest

    def __str__(self) -> str:
        return f"{self.job}@{self.step} ({self.state_digest[:12]})"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a job except its code and data, which are here by digest.

    Args:
        name: unique in a cluster; `NAME_PATTERN`.
        pipeline: of which it is a stage: its name is then `PIPELINE.STAGE`. Empty: of none.
        kind: `training`; or `function`: one step that is one call of the function, see `function.py`.
        inputs: by the name of a parameter of its function, the commits that it starts from.
        script: where the build function is in the code bundle: `train.py::build` (see `script.entry_of`).
        code: digest of the code bundle.
        data: fingerprint of the dataset.
        samples: length of the dataset.
        python, torch: versions that it was submitted with (`3.11`, `2.13.0`), which its workers must have; "" where
            that is not known.
        ests: logical workers N. A hyper-parameter, like the batch size.
        batch_size: samples per EST and step (the global batch is `ests * batch_size`).
        steps, epochs: exactly one is given.
        seed: everything random derives from it.
        micro_batches: an EST's batch is run in this many pieces whose gradients are averaged.
        drop_last: drop the incomplete last batch of an epoch instead of padding and shortening it.
        shuffle: visit the samples in a new random order every epoch.
        buffers: `rank0` (DDP's rule: EST 0's buffers are everybody's at the next step) or `per_est`.
        amp: autocast dtype; `fp16` adds a GradScaler.
        clip_norm: maximal total norm of the averaged gradient.
        ema: decay of an exponential moving average of the parameters, which is then what is evaluated.
        schedule: when the LR scheduler steps.
        reduce: dtype in which gradients are summed: `fp32`, or the gradient's own.
        nonfinite: what a NaN or infinite loss or gradient does: `stop` fails the job, `skip` leaves the step's update
            out, `rewind` also goes back to the parameters of the last step that `commit_every` divides.
        numerics: `native`: PyTorch's kernels, bits promised inside one determinism class; `exact`: our kernels, the
            same bits on every device, and what they do not cover is refused.
        threads: intra-op CPU threads; part of the determinism class of native numerics, and no part of the bits of
            exact ones, where a worker may have others (EASYSCALE_THREADS).
        commit_every, commit_seconds: a commit every so many steps, or seconds.
        evaluate_every: steps between evaluations; 0: only at the end.
        check_every: steps between comparisons of the workers' states; 0: only when a generation begins, before
            commits and when it ends, when they are always compared.
        audit_every: steps between audits, in which each worker recomputes one EST of another; 0: never.
        loaders: loader processes per runner; never reaches the bits.
        min_workers, max_workers: bounds on the number of workers; None: as many as there are ESTs.
        guaranteed_workers: so many are its own before others of its priority have more than is guaranteed to them, and
            it keeps them (by the policy `easyscale`).
        priority: higher runs first.
        tenant: whose it is: by the policy `easyscale` each has the same share.
        retries: see `Retries`.
    """

    name: str
    pipeline: str = ""
    kind: Literal["training", "function"] = "training"
    inputs: dict[str, Input] = {}
    script: str
    code: str
    data: str
    samples: int
    python: str = ""
    torch: str = ""
    ests: int
    batch_size: int
    steps: int | None = None
    epochs: int | None = None
    seed: int = 0
    micro_batches: int = 1
    drop_last: bool = False
    shuffle: bool = True
    buffers: Literal["rank0", "per_est"] = "rank0"
    amp: Literal["bf16", "fp16"] | None = None
    clip_norm: float | None = None
    ema: float | None = None
    schedule: Literal["step", "epoch"] = "step"
    reduce: Literal["fp32", "grad"] = "fp32"
    nonfinite: Literal["stop", "skip", "rewind"] = "stop"
    numerics: Literal["native", "exact"] = "native"
    threads: int = 1
    commit_every: int | None = None
    commit_seconds: float | None = None
    evaluate_every: int = 0
    check_every: int = 10
    audit_every: int = 100
    loaders: int = 0
    min_workers: int = 1
    max_workers: int | None = None
    guaranteed_workers: int = 0
    priority: int = 0
    tenant: str = ""
    retries: Retries = Retries()

    @property
    def samples_per_est(self) -> int:
        """Samples one EST sees in an epoch: `DistributedSampler.num_samples`."""
        if self.drop_last and self.samples % self.ests:
            return max(0, -((self.ests - self.samples) // self.ests))
        return -(-self.samples // self.ests)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one epoch."""
        per_est = self.samples_per_est
        return per_est // self.batch_size if self.drop_last else -(-per_est // self.batch_size)

    @property
    def total_steps(self) -> int:
        """The step number at which the job is done."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * self.steps_per_epoch

    def encode(self) -> bytes:
        """Canonical JSON."""
        return msgspec.json.encode(self, order="sorted")

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.encode()).hexdigest()

    @staticmethod
    def decode(data: bytes) -> JobSpec:
        """Read what `encode` wrote.

        Raises:
            DeviceError: another version of EasyScale wrote it, which knew other settings.
        """
        try:
            return msgspec.json.decode(data, type=JobSpec)
        except msgspec.DecodeError as error:
            raise DeviceError(
                f"this EasyScale ({__version__}) cannot read the job's specification: {error}; it was submitted with "
                "another version: install that one here"
            ) from error

    def differences(self, other: JobSpec) -> dict[str, tuple[Any, Any]]:
        """Fields that define the bits and differ: name -> (here, there)."""
        anchoring = {"commit_every"} if self.nonfinite == other.nonfinite == "rewind" else set()
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name) and not (name in OPERATIONAL and name not in anchoring)
        }


def check(spec: JobSpec) -> JobSpec:
    """Refuse a specification that cannot be run.

    Raises:
        SpecError: the first thing found wrong, with the field's name and value.
    """
    if not NAME_PATTERN.fullmatch(spec.name):
        raise SpecError(
            f"job name {shown(spec.name)} cannot be used",
            "use 1 to 100 letters, digits, dots, underscores or hyphens (ASCII), beginning with a letter or digit",
        )
    if spec.tenant and not NAME_PATTERN.fullmatch(spec.tenant):
        raise SpecError(
            f"job {spec.name!r}: tenant {shown(spec.tenant)} cannot be used", "it must be like the name of a job"
        )
    if spec.pipeline and not spec.name.startswith(f"{spec.pipeline}."):
        raise SpecError(f"job {spec.name!r} is no stage of pipeline {shown(spec.pipeline)}", "name it PIPELINE.STAGE")
    for field, (least, most) in BOUNDS.items():
        value = getattr(spec, field)
        if value is not None and not least <= value <= most:  # a NaN is in no range
            limit = f"at least {least:,}" if value < least else f"between {least:,} and {most:,}"
            raise SpecError(f"job {spec.name!r}: {field} is {shown(value)}", f"it must be {limit}")
    for purse, times in (("died", spec.retries.died), ("raised", spec.retries.raised)):
        if not 0 <= times <= MOST_RETRIES:
            raise SpecError(
                f"job {spec.name!r}: retries has {purse} {shown(times)}", f"it must be between 0 and {MOST_RETRIES:,}"
            )
    _check_length(spec)
    _check_ranges(spec)
    return spec


def _check_length(spec: JobSpec) -> None:
    if (spec.steps is None) == (spec.epochs is None):
        given = "both steps and epochs" if spec.steps is not None else "neither steps nor epochs"
        raise SpecError(f"job {spec.name!r} gives {given}", "give exactly one of them")
    if spec.samples < spec.ests * spec.batch_size:
        raise SpecError(
            f"job {spec.name!r}: the dataset has {spec.samples} samples, fewer than one global batch of "
            f"ests * batch_size = {spec.ests} * {spec.batch_size} = {spec.ests * spec.batch_size}",
            "use a smaller batch_size, fewer ests or more data",
        )
    if spec.samples < BOUNDS["samples"][1] and spec.total_steps > STEPS:  # else the dataset is not yet known
        raise SpecError(
            f"job {spec.name!r}: {spec.epochs} epochs are {spec.total_steps:,} steps", f"the most is {STEPS:,}"
        )
    if spec.commit_every is not None and spec.commit_seconds is not None:
        raise SpecError(f"job {spec.name!r} gives both commit_every and commit_seconds", "give at most one of them")
    if spec.nonfinite == "rewind" and spec.commit_every is None:
        raise SpecError(
            f"job {spec.name!r}: nonfinite is 'rewind', but commit_every is not given",
            "give commit_every: training goes back to the last step that it divides",
        )


def _check_ranges(spec: JobSpec) -> None:
    if spec.micro_batches > spec.batch_size:
        raise SpecError(
            f"job {spec.name!r}: {spec.micro_batches} micro-batches do not fit in a batch of {spec.batch_size}",
            "micro_batches must be at most batch_size",
        )
    if spec.max_workers is not None and spec.max_workers < spec.min_workers:
        raise SpecError(
            f"job {spec.name!r}: max_workers {spec.max_workers} is less than min_workers {spec.min_workers}",
            "raise the one or lower the other",
        )
    if spec.min_workers > spec.ests:
        raise SpecError(
            f"job {spec.name!r}: min_workers {spec.min_workers} is more than its {spec.ests} ESTs",
            "an EST runs on one worker only, so more workers than ests cannot be used",
        )
    most = min(spec.ests, spec.max_workers or spec.ests)
    if spec.guaranteed_workers > most:
        raise SpecError(
            f"job {spec.name!r}: guaranteed_workers {spec.guaranteed_workers} is more than the {most} that it may use",
            "lower it, or raise max_workers (a job uses at most as many workers as it has ESTs)",
        )
    if spec.clip_norm is not None and not 0 < spec.clip_norm < float("inf"):
        raise SpecError(f"job {spec.name!r}: clip_norm is {spec.clip_norm}", "it must be positive and finite")
    if spec.ema is not None and not 0 <= spec.ema < 1:
        raise SpecError(f"job {spec.name!r}: ema is {spec.ema}", "a decay lies in 0 <= ema < 1")
