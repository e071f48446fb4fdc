"""Names of keys in the key-value store. Everything under `PREFIX` and `PAST` is ours; nothing of the user's text is in
a key except names of jobs and pipelines, which `pipeline.spec.NAME_PATTERN` keeps harmless."""

from __future__ import annotations

PREFIX = "/easyscale/v1/"
WORKERS = PREFIX + "workers/"
ASSIGNED = PREFIX + "assigned/"
JOBS = PREFIX + "jobs/"
PIPELINES = PREFIX + "pipelines/"
LEADER = PREFIX + "leader"

PAST = "/easyscale/past/v1/"
"""Not under `PREFIX`: the coordinator reads all that is, at each decision."""


def worker(worker_id: str) -> str:
    """A worker's record, under its lease."""
    return WORKERS + worker_id


def assigned(worker_id: str) -> str:
    """The job that the coordinator wants this worker to serve."""
    return ASSIGNED + worker_id


def job(name: str) -> str:
    """The prefix of all keys of a job."""
    return f"{JOBS}{name}/"


def pipeline(name: str) -> str:
    """`records.PipelineRecord`."""
    return PIPELINES + name


def stages(name: str) -> str:
    """The prefix of all keys of a pipeline's stages, which are jobs. Other jobs may have it, too."""
    return f"{JOBS}{name}."


def spec(name: str) -> str:
    """`records.JobRecord`."""
    return job(name) + "spec"


def desired(name: str) -> str:
    """What the user wants: `running`, `paused` or `cancelled`."""
    return job(name) + "desired"


def plan(name: str) -> str:
    """`records.Plan`: its mod revision is the fencing token of a generation."""
    return job(name) + "plan"


def claims(name: str) -> str:
    """The prefix of all claims of a job."""
    return job(name) + "claims/"


def generation_claims(name: str, generation: int) -> str:
    """The prefix of the claims of one generation."""
    return f"{claims(name)}{generation:08d}/"


def claim(name: str, generation: int, slot: int) -> str:
    """`records.Claim`, under the worker's lease."""
    return f"{generation_claims(name, generation)}{slot:05d}"


def head(name: str) -> str:
    """`records.Head`: the newest published commit."""
    return job(name) + "head"


def status(name: str) -> str:
    """`records.Status`, written by the coordinator only."""
    return job(name) + "status"


def probe(name: str) -> str:
    """`records.Probe`: what every worker of the job must be able to reproduce."""
    return job(name) + "probe"


def damage(name: str) -> str:
    """`records.Damage`: the head commit could not be read whole."""
    return job(name) + "damage"


def progress(name: str) -> str:
    """`records.Progress` of the last step heard of; survives its workers."""
    return job(name) + "progress"


def rates(name: str) -> str:
    """`records.Rates`: how fast devices are for this job, written by the coordinator only."""
    return job(name) + "rates"


def report(name: str, worker_id: str) -> str:
    """`records.Report`: why a worker's attempt ended; removed by the coordinator when it is counted."""
    return f"{job(name)}reports/{worker_id}"


def logs(name: str, worker_id: str) -> str:
    """`records.LogRecord`: how many log chunks of a worker lie in the object store."""
    return f"{job(name)}logs/{worker_id}"


def generations(name: str) -> str:
    """The prefix of what is kept of a job's former generations."""
    return f"{PAST}{name}/generations/"


def past(name: str, generation: int) -> str:
    """`records.Generation`, written by the coordinator only; for people."""
    return f"{generations(name)}{generation:08d}"


def verified(name: str) -> str:
    """What `verify` came to the last times; for people."""
    return f"{PAST}{name}/verified"
