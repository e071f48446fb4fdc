"""Submitting makes a whole job or none, finds the one that is there, and changes only what may change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import keys, records
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import AddressError, ChangedError, EasyScaleError, RemoteError, UnavailableError, UserError
from easyscale.pipeline.bundle import Bundle
from easyscale.pipeline.names import place_pipeline
from easyscale.pipeline.spec import Input, JobSpec, Retries
from easyscale.pipeline.submit import Handle, desire, place
from easyscale.pipeline.summary import no_such_job, read_job
from easyscale.storage.blobs import get_blob
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    import msgspec
    from easyscale.coordinator.views import JobView
    from easyscale.storage.objects import Data

SCRIPT = "import model\nRATE = 0.1\njob = None\n"


class Place:
    """Two stores and a script, to submit to and from."""

    def __init__(self, folder: Path) -> None:
        self.kv, self.store, self.folder = MemoryKV("test"), MemoryStore("test"), folder
        self.write("train.py", SCRIPT)
        self.write("model.py", "WIDTH = 3\n")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def spec(self, **changes: Any) -> JobSpec:
        settings: dict[str, Any] = {
            "name": "job", "script": "train.py::build", "code": self.bundle().digest, "data": "d1", "samples": 100,
            "ests": 4, "batch_size": 5, "steps": 30,
        }  # fmt: skip
        return JobSpec(**(settings | changes))

    def bundle(self) -> Bundle:
        return Bundle.collect(self.folder / "train.py", ())

    def submit(self, *, accept: bool = False, **changes: Any) -> str:
        return place(self.kv, self.store, self.spec(**changes), self.bundle(), accept_changes=accept)

    def put(self, key: str, value: msgspec.Struct | str) -> None:
        self.kv.txn((), (Put(key, value.encode() if isinstance(value, str) else records.encode(value)),))

    def status(self, state: Any, **fields: Any) -> None:
        self.put(keys.status("job"), records.Status(state=state, **fields))

    def job(self) -> JobView:
        found = read_job(self.kv, "job")
        assert found is not None
        return found

    def record(self) -> records.JobRecord:
        entry = self.job().spec
        assert entry is not None
        return entry.value


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(tmp_path)


def is_whole(kv: MemoryKV, store: MemoryStore) -> bool:
    """Whether there is a job (True, then nothing of it is missing) or none at all (False)."""
    entries = kv.range(keys.JOBS)
    if not entries:
        return False
    job = read_job(kv, "job")
    assert job is not None
    assert job.spec is not None
    assert kv.get(keys.desired("job")) is not None
    assert JobSpec.decode(get_blob(store, job.spec.value.spec)).name == "job"
    get_blob(store, job.spec.value.code)
    return True


# ---- new and found


def test_a_new_job_is_created_with_all_that_workers_need(here: Place) -> None:
    retries = Retries(died=3, raised=1)
    assert here.submit(min_workers=2, max_workers=3, guaranteed_workers=1, priority=7, retries=retries) == "created"
    assert is_whole(here.kv, here.store)
    record = here.record()
    assert (record.steps, record.ests, record.min_workers, record.max_workers, record.priority) == (30, 4, 2, 3, 7)
    assert record.guaranteed_workers == 1
    assert record.retries == records.Retry(died=3, raised=1)
    assert JobSpec.decode(get_blob(here.store, record.spec)) == here.spec(
        min_workers=2, max_workers=3, guaranteed_workers=1, priority=7, retries=retries
    )
    assert here.job().desired == "running"
    others = [key for key in here.store.list("") if not key.startswith("blobs/")]
    assert others == ["jobs/job/submitted"], "nothing of the self-test stays"
    assert records.decode(here.store.get("jobs/job/submitted"), records.JobRecord) == record


def test_the_same_again_finds_it_and_writes_nothing(here: Place) -> None:
    here.submit()
    here.put(keys.head("job"), records.Head(step=30, manifest="m", state_digest="s", generation=1))
    for state in ("waiting", "running", "done"):
        here.status(state)
        before = here.kv.range("/")
        assert here.submit() == "found"
        assert here.kv.range("/") == before


def test_a_paused_job_is_resumed(here: Place) -> None:
    here.submit()
    here.put(keys.desired("job"), "paused")
    here.status("paused")
    assert here.submit() == "resumed"
    assert here.job().desired == "running"


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_ended_early_is_restarted_with_its_purses_refilled(here: Place, state: Any) -> None:
    here.submit()
    here.put(keys.desired("job"), "cancelled" if state == "cancelled" else "running")
    failure = records.Failure(cause="raised", step=3, worker="a", message="boom")
    recovery = records.Recovery(cause="x", seconds=1.0, steps_recomputed=1)
    here.status(
        state, reason="boom", failure=failure, streak={"died": 4}, streak_step=9, attempts={"died": 4},
        recoveries=(recovery,), recovered=1,
    )  # fmt: skip
    assert here.submit() in ("restarted", "resumed")
    assert here.job().desired == "running"
    entry = here.job().status
    assert entry is not None
    assert entry.value == records.Status(state="waiting", attempts={"died": 4}, recoveries=(recovery,), recovered=1), (
        "what happened stays on record"
    )


def test_operational_settings_change_without_further_ado(here: Place) -> None:
    here.submit()
    assert here.submit(priority=3, max_workers=2, commit_every=5, loaders=2, tenant="us") != "created"
    assert (here.record().priority, here.record().max_workers, here.record().tenant) == (3, 2, "us")
    assert JobSpec.decode(get_blob(here.store, here.record().spec)).commit_every == 5


def test_settings_that_never_reach_the_bits_leave_the_probe_alone(here: Place) -> None:
    here.submit()
    here.put(keys.probe("job"), records.Probe(determinism="c", digest="d"))
    assert here.submit(priority=3) == "found"
    assert here.job().probe is not None


# ---- changes


def test_changed_settings_are_refused_with_what_they_were_and_are(here: Place) -> None:
    here.submit()
    before = here.kv.range("/")
    with pytest.raises(ChangedError) as caught:
        here.submit(steps=60, clip_norm=1.0)
    assert "steps was 30, is 60" in caught.value.what
    assert "clip_norm was None, is 1.0" in caught.value.what
    assert "--accept-changes" in caught.value.hint
    assert here.kv.range("/") == before


def test_changed_code_is_refused_with_its_difference(here: Place) -> None:
    here.submit()
    here.write("train.py", SCRIPT.replace("0.1", "0.2"))
    here.write("extra.py", "")
    with pytest.raises(ChangedError) as caught:
        here.submit()
    assert "the code has changed" in caught.value.what
    assert "-RATE = 0.1" in caught.value.what
    assert "+RATE = 0.2" in caught.value.what
    assert "extra.py" in caught.value.what
    assert here.bundle().digest not in caught.value.what, "digests tell nobody anything"


def test_a_stage_whose_inputs_have_changed_is_refused_with_what_they_were_and_are(here: Place) -> None:
    stage: dict[str, Any] = {"name": "p.job", "pipeline": "p"}
    one = Input(job="p.first", step=1, state_digest="a" * 64)
    here.submit(**stage, inputs={"first": one})
    record = read_job(here.kv, "p.job")
    assert record is not None
    assert record.record.pipeline == "p"
    other = Input(job="p.first", step=1, state_digest="b" * 64)
    with pytest.raises(ChangedError) as caught:
        here.submit(**stage, inputs={"first": other})
    assert "input first was p.first@1 (aaaaaaaaaaaa), is p.first@1 (bbbbbbbbbbbb)" in caught.value.what
    assert "from its newest commit with --accept-changes" in caught.value.hint
    here.put(keys.status("p.job"), records.Status(state="done"))
    here.put(keys.head("p.job"), records.Head(step=30, manifest="m", state_digest="d", generation=1))
    with pytest.raises(ChangedError) as caught:
        here.submit(**stage, inputs={"first": other})
    assert "easyscale rewind p.job --to 0" in caught.value.hint
    assert here.submit(**stage, inputs={"first": other}, accept=True) == "changed"
    with pytest.raises(ChangedError, match="kind was 'training', is 'function'"):
        here.submit(**stage, inputs={"first": other}, kind="function", accept=True)


def test_a_job_a_stage_and_a_pipeline_never_take_each_others_name(here: Place) -> None:
    pipeline = records.PipelineRecord(name="p", stages=(records.StageRecord(name="job"),))
    place_pipeline(here.kv, pipeline)
    written = here.kv.get(keys.pipeline("p"))
    place_pipeline(here.kv, pipeline)
    assert here.kv.get(keys.pipeline("p")) == written, "the same again changes nothing"
    place_pipeline(here.kv, records.PipelineRecord(name="p", stages=(records.StageRecord(name="other"),)))
    assert here.kv.get(keys.pipeline("p")) != written
    with pytest.raises(UserError, match="there is a pipeline 'p' already"):
        here.submit(name="p")
    here.submit(name="p.job")
    with pytest.raises(
        UserError, match=r"a job 'p.job' already, of no pipeline, and this one is a stage of pipeline 'p'"
    ):
        here.submit(name="p.job", pipeline="p")
    here.submit(name="p.stage", pipeline="p")
    with pytest.raises(UserError, match="a stage of pipeline 'p', and this one is of no pipeline"):
        here.submit(name="p.stage")
    here.submit(name="job")
    with pytest.raises(UserError, match="there is a job 'job' already\n  give the pipeline another name"):
        place_pipeline(here.kv, records.PipelineRecord(name="job", stages=(records.StageRecord(name="a"),)))
    assert "'p' is a pipeline, not a job\n  name a stage: p.other" in str(no_such_job(here.kv, "p"))


def test_changed_data_is_refused(here: Place) -> None:
    here.submit()
    with pytest.raises(ChangedError, match="the dataset has changed"):
        here.submit(data="d2")


@pytest.mark.parametrize(("field", "value"), [("ests", 2), ("batch_size", 6), ("seed", 9)])
def test_what_defines_a_step_never_changes_not_even_when_accepted(here: Place, field: str, value: int) -> None:
    here.submit()
    before = here.kv.range("/")
    with pytest.raises(ChangedError, match=rf"can never change: {field} was .*, is {value}") as caught:
        here.submit(accept=True, **{field: value, "steps": 60})
    assert "--name" in caught.value.hint
    assert here.kv.range("/") == before


def test_accepted_changes_go_on_from_the_newest_commit_with_a_new_probe(here: Place) -> None:
    here.submit()
    here.put(keys.head("job"), records.Head(step=12, manifest="m", state_digest="s", generation=1))
    here.put(keys.probe("job"), records.Probe(determinism="c", digest="d"))
    here.write("train.py", SCRIPT.replace("0.1", "0.2"))
    assert here.submit(accept=True) == "changed"
    assert here.job().probe is None, "other code computes other bits"
    assert here.job().head is not None
    assert here.record().code == here.bundle().digest
    assert here.submit() == "found"


def test_a_job_that_is_done_goes_on_when_it_is_lengthened(here: Place) -> None:
    here.submit()
    here.put(keys.head("job"), records.Head(step=30, manifest="m", state_digest="s", generation=1))
    here.status("done")
    with pytest.raises(ChangedError, match="steps was 30, is 60"):
        here.submit(steps=60)
    assert here.submit(accept=True, steps=60) == "changed"
    assert (here.job().state, here.record().steps) == ("waiting", 60)


def test_a_job_that_is_done_stays_done_when_it_is_shortened(here: Place) -> None:
    here.submit()
    here.put(keys.head("job"), records.Head(step=30, manifest="m", state_digest="s", generation=1))
    here.status("done")
    here.submit(accept=True, steps=20)
    assert here.job().state == "done"


def test_jobs_of_other_names_do_not_mind(here: Place) -> None:
    here.submit()
    assert here.submit(name="other", ests=2, steps=9) == "created"


# ---- faults and races


class FailingKV(MemoryKV):
    """Fails the k-th call, before or after doing it."""

    def __init__(self, at: int, after: bool) -> None:
        super().__init__("failing")
        self.calls, self.at, self.after = 0, at, after

    def txn(self, compares: Any, operations: Any) -> Any:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise UnavailableError("down")
        result = super().txn(compares, operations)
        if self.calls == self.at:
            raise UnavailableError("no answer")
        return result


class FailingStore(MemoryStore):
    def __init__(self, at: int, after: bool) -> None:
        super().__init__("failing")
        self.calls, self.at, self.after = 0, at, after

    def _call(self, write: Any) -> Any:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise UnavailableError("down")
        result = write()
        if self.calls == self.at:
            raise UnavailableError("no answer")
        return result

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        self._call(lambda: super(FailingStore, self).put(key, data, durable=durable))

    def create(self, key: str, data: Data) -> bool:
        created: bool = self._call(lambda: super(FailingStore, self).create(key, data))
        return created


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("where", ["kv", "store"])
def test_a_submit_that_fails_at_any_write_leaves_a_whole_job_or_none(here: Place, where: str, after: bool) -> None:
    failures = 0
    for at in range(1, 10):
        here.kv = FailingKV(at if where == "kv" else 0, after)
        here.store = FailingStore(at if where == "store" else 0, after)
        try:
            here.submit()
        except UnavailableError:
            failures += 1
            there = is_whole(here.kv, here.store)
            assert here.submit() == ("found" if there else "created")
        assert is_whole(here.kv, here.store)
    assert failures == (1 if where == "kv" else 4), (
        "one transaction makes the job; two objects and a self-test go before"
    )


def test_submits_that_race_make_one_job(here: Place) -> None:
    gate = threading.Barrier(6)
    outcomes: list[str] = []

    def go() -> None:
        gate.wait()
        outcomes.append(here.submit())

    threads = [threading.Thread(target=go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert sorted(outcomes) == ["created", *["found"] * 5]


class Overtaken(MemoryKV):
    """Somebody else is faster, each time anew, until told otherwise."""

    def __init__(self, times: int, somebody: Any) -> None:
        super().__init__("overtaken")
        self.times, self.somebody = times, somebody

    def txn(self, compares: Any, operations: Any) -> Any:
        if compares and self.times:
            self.times -= 1
            self.somebody(super().txn)
        return super().txn(compares, operations)


def test_a_race_with_a_submit_of_something_else_is_a_refusal(here: Place) -> None:
    other = Place(here.folder)
    other.submit(clip_norm=1.0)
    here.store = other.store
    theirs = records.encode(other.record())
    here.kv = Overtaken(1, lambda txn: txn((), (Put(keys.spec("job"), theirs), Put(keys.desired("job"), b"running"))))
    with pytest.raises(ChangedError, match=r"clip_norm was 1.0, is None"):
        here.submit()


def test_a_restart_does_not_overwrite_a_status_that_changes_meanwhile(here: Place) -> None:
    running = records.encode(records.Status(state="running", streak={"died": 1}))
    here.kv = Overtaken(0, lambda txn: txn((), (Put(keys.status("job"), running),)))
    here.submit()
    here.status("failed")
    here.kv.times = 1
    assert here.submit() == "found", "somebody else has restarted it"
    entry = here.job().status
    assert entry is not None
    assert entry.value.streak == {"died": 1}


def test_a_job_that_somebody_keeps_writing_is_given_up_in_the_end(here: Place) -> None:
    kv = Overtaken(0, lambda txn: txn((), (Put(keys.spec("job"), records.encode(here.record())),)))
    here.kv = kv
    here.submit()
    here.put(keys.desired("job"), "paused")
    kv.times = 2
    assert here.submit() == "resumed"
    here.put(keys.desired("job"), "paused")
    kv.times = 1000
    with pytest.raises(UnavailableError, match="being written by somebody else"):
        here.submit()


def test_an_unfit_store_is_refused_before_anything_is_written(here: Place) -> None:
    class Careless(MemoryStore):
        def create(self, key: str, data: Data) -> bool:
            self.put(key, data)
            return True

    here.store = Careless("careless")
    with pytest.raises(AddressError, match="conditional create"):
        here.submit()
    assert here.kv.range("/") == []
    assert list(here.store.list("")) == []


def test_a_job_whose_objects_lie_in_another_store_is_told_so(here: Place) -> None:
    here.submit()
    here.store = MemoryStore("another")
    with pytest.raises(EasyScaleError) as caught:
        here.submit()
    assert isinstance(caught.value, UserError), str(caught.value)
    assert "--store" in str(caught.value)


# ---- wishes


def test_wishes_are_written_and_a_missing_job_is_named(here: Place) -> None:
    here.submit()
    for what in ("paused", "running", "cancelled"):
        desire(here.kv, "job", what)  # type: ignore[arg-type]
        assert here.job().desired == what
    with pytest.raises(UserError, match="there is no job 'jbo'"):
        desire(here.kv, "jbo", "paused")
    assert here.kv.range(keys.job("jbo")) == []


@pytest.mark.parametrize(
    ("state", "what"),
    [("done", "running"), ("done", "paused"), ("done", "cancelled"), ("failed", "paused"), ("cancelled", "cancelled")],
)
def test_a_wish_that_comes_too_late_is_refused(here: Place, state: Any, what: Any) -> None:
    here.submit()
    here.status(state)
    before = here.kv.range("/")
    with pytest.raises(UserError, match=f"job 'job' is {state}"):
        desire(here.kv, "job", what)
    assert here.kv.range("/") == before


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_retry_is_a_restart(here: Place, state: Any) -> None:
    here.submit()
    here.status(state, streak={"died": 6}, attempts={"died": 6})
    desire(here.kv, "job", "running")
    entry = here.job().status
    assert entry is not None
    assert entry.value == records.Status(state="waiting", attempts={"died": 6})


# ---- following


def test_a_handle_follows_a_job_to_its_result(here: Place) -> None:
    here.submit()
    handle = Handle("job", here.kv)
    steps = handle.watch(timeout=30.0)
    assert next(steps).state == "waiting"
    here.status("running")
    assert next(steps).state == "running"
    head = records.Head(step=30, manifest="m", state_digest="s", generation=1, metrics={"accuracy": 0.5})
    here.put(keys.head("job"), head)
    here.status("done")
    assert [job.state for job in steps] == ["done"]
    result = handle.result(timeout=30.0)
    assert (result.state_digest, result.steps, result.metrics) == ("s", 30, {"accuracy": 0.5})
    assert str(result) == "job 'job': 30 steps done, accuracy 0.5, state digest s"


def test_a_failed_job_raises_with_the_remote_traceback(here: Place) -> None:
    here.submit()
    failure = records.Failure(cause="raised", step=3, worker="a", message="boom", traceback="line 7\nValueError: boom")
    here.status("failed", reason="the user's code raised at step 3: boom", failure=failure)
    with pytest.raises(RemoteError) as caught:
        Handle("job", here.kv).result(timeout=30.0)
    assert str(caught.value).endswith("line 7\nValueError: boom")


def test_other_ends_are_told(here: Place) -> None:
    here.submit()
    handle = Handle("job", here.kv)
    with pytest.raises(TimeoutError, match=r"was not over after 0\.0 s"):
        handle.result(timeout=0.0)
    here.status("cancelled")
    with pytest.raises(EasyScaleError, match="was cancelled at step 0"):
        handle.result(timeout=30.0)
    with pytest.raises(UserError, match="there is no job 'nosuch'"):
        Handle("nosuch", here.kv).status()


def test_watching_outlives_an_outage(here: Place) -> None:
    here.submit()
    here.status("done")

    class Flaky(MemoryKV):
        failures = 2

        def range(self, prefix: str) -> Any:
            if self.failures:
                self.failures -= 1
                raise UnavailableError("down")
            return super().range(prefix)

    flaky = Flaky("flaky")
    flaky._keys = here.kv._keys
    assert [job.state for job in Handle("job", flaky).watch(timeout=30.0)] == ["done"]
