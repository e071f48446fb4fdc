"""Whatever a user's job is like and however it fails, what goes into the key-value store stays small.

The stores refuse larger values (see the contract tests): here are the largest that each record can come to.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from desk import READY, Desk
from easyscale.coordinator import records
from easyscale.coordinator.kv import MAX_VALUE
from easyscale.coordinator.records import cut
from easyscale.coordinator.throughput import MOST_EXCHANGES, MOST_FACTORS, MOST_KINDS, MOST_NAME
from easyscale.errors import SpecError
from easyscale.pipeline import agent, messages, publishing
from easyscale.pipeline.results import MAX_METRIC_NAME, MAX_METRICS, metrics
from easyscale.pipeline.spec import BOUNDS, MOST_RETRIES, MOST_WORKERS, JobSpec, Retries, check
from easyscale.pipeline.submit import record_of
from easyscale.pipeline.worker import boot_id

WORST = "\0"  # six bytes in JSON
DIGEST = "f" * 64
NAME = "n" * 60
WORKER = boot_id(NAME)


def largest_spec() -> JobSpec:
    """Every number as large as it may be."""
    most: dict[str, Any] = {
        name: bounds[1] for name, bounds in BOUNDS.items() if name not in ("epochs", "commit_seconds")
    }
    most |= {"ests": 65_536, "batch_size": 2**31, "min_workers": MOST_WORKERS, "samples": 2**62}
    retries = Retries(died=MOST_RETRIES, raised=MOST_RETRIES)
    return check(JobSpec(name="x" * 100, script="s", code=DIGEST, data=DIGEST, retries=retries, **most))


def test_the_record_of_the_largest_job_is_small() -> None:
    spec = largest_spec()
    assert len(records.encode(record_of(spec, DIGEST, DIGEST))) < 1000
    spec = msgspec.structs.replace(spec, max_workers=None)
    record = record_of(spec, DIGEST, DIGEST)
    assert record.max_workers == MOST_WORKERS, "more members than a plan can name are never planned"
    few = msgspec.structs.replace(spec, ests=4, min_workers=1)
    assert record_of(few, DIGEST, DIGEST).max_workers is None


def test_the_plan_with_the_most_members_and_the_longest_names_is_small() -> None:
    members = tuple(records.Member(WORKER, 65_535, 65_536) for _ in range(MOST_WORKERS))
    assert len(records.encode(records.Plan(generation=10**6, members=members, cause="x" * 500))) <= MAX_VALUE


def test_a_job_that_fails_with_an_endless_message_and_traceback_fits() -> None:
    said = messages.Failed(cause="raised", step=1, message=WORST * 10**6, traceback=WORST * 10**6)
    me = records.WorkerRecord(id=WORKER, name=NAME, host="h", pid=1, device="cpu", kind="cpu", memory=1)
    it = agent.Agent(me)
    it.runner = agent.RunnerState("job", DIGEST, 1.0)
    it.runner.failed = said
    it.on_exit("exited")
    assert it._report is not None
    report = it._report[1]
    assert len(records.encode(report)) < 25_000
    failure = records.Failure(cause="raised", step=1, worker=WORKER, message=report.message, traceback=report.traceback)
    recoveries = (records.Recovery(cause="x" * 200, seconds=1.5, steps_recomputed=9),) * 50
    damage = (cut(WORST * 10**6, publishing.MAX_FOUND),) * 50
    status = records.Status(
        state="failed", reason=f"at step 1: {report.message}", failure=failure, recoveries=recoveries, damage=damage
    )
    assert len(records.encode(status)) < MAX_VALUE


def test_the_rates_of_the_most_kinds_and_the_longest_names_are_small() -> None:
    rates = records.Rates(
        spec=DIGEST,
        kinds={f"{n:02d}" + WORST * (MOST_NAME - 2): records.Rate(1.234e-5, 1.234e-5) for n in range(MOST_KINDS)},
        exchange={f"store {n}": 1.234e-5 for n in range(100, 100 + MOST_EXCHANGES)},
        factors={f"{WORKER[:-6]}{n:06x}": 1.234 for n in range(MOST_FACTORS)},
    )
    assert len(records.encode(rates)) <= MAX_VALUE


def test_a_worker_that_has_refused_and_suffered_much_still_fits_into_its_record() -> None:
    me = records.WorkerRecord(id=WORKER, name=NAME, host="h", pid=1, device="cpu", kind="cpu", memory=1)
    it = agent.Agent(me)
    for number in range(100):
        it.runner = agent.RunnerState("job", f"{number:064d}", 1.0)
        it.on_message(msgspec.structs.replace(READY, est_seconds=1 / 3), 0.0)
        it.runner.failed = messages.Failed(cause="refused", step=0, message=WORST * 10**6)
        it.on_exit("exited")
    it.runner = agent.RunnerState("job", DIGEST, 1.0, trouble=WORST * 10**6)
    record = it._describe()
    assert len(record.refusals) == len(record.probes) == agent.KEPT_NOTES
    assert len(records.encode(record)) < MAX_VALUE


def test_a_commit_with_ten_thousand_damaged_tensors_is_reported_by_a_few() -> None:
    desk = Desk()
    desk.running("b")
    desk.head(4, manifest="bad")
    found = tuple(f"tensor {number}: {WORST * 999}" for number in range(10_000))
    desk.tell(messages.Damaged(manifest="bad", usable=messages.Base(), found=found))
    assert "damage" in desk.wrote(desk.act())
    damage = desk.look().damage
    assert damage is not None
    assert len(damage.value.found) == publishing.KEPT_FOUND
    assert damage.value.found[0].startswith("tensor 0: ")
    assert len(damage.kv.value) < MAX_VALUE / 5


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize(
    "text",
    ["", "plain", "\u5b9f\u9a13" * 999, WORST * 999, '"' * 999, "a" * 400 + WORST * 99],
    ids=["empty", "short", "wide", "control", "quotes", "mixed"],
)
def test_a_text_is_cut_by_the_bytes_it_has_as_json(text: str, end: bool) -> None:
    short = cut(text, 300, end=end)
    assert text.endswith(short) if end else text.startswith(short)
    assert len(msgspec.json.encode(short)) <= 302
    assert short == text or len(msgspec.json.encode(short)) > 150, "no more is cut than need be"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({str(i): 1.0 for i in range(MAX_METRICS + 1)}, "101 metrics"),
        ({"accuracy": "high"}, "'high' as 'accuracy'"),
        ({"accuracy": None}, "None as 'accuracy'"),
        ({"all": [1.0, 2.0]}, r"\[1.0, 2.0\] as 'all'"),
    ],
)
def test_metrics_that_are_no_numbers_or_too_many_are_refused(result: dict[Any, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        metrics(result)


def test_the_most_metrics_fit_into_the_record_of_a_commit() -> None:
    found = metrics({f"{number:03d}{WORST * 300}": 0.1 for number in range(MAX_METRICS)})
    assert all(len(name) == MAX_METRIC_NAME for name in found)
    head = records.Head(step=1, manifest=DIGEST, state_digest=DIGEST, generation=1, metrics=found)
    assert len(records.encode(head)) < MAX_VALUE
