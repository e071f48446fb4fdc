"""The API: the same truth as the commands tell, quick answers, and nothing done for those who have no token."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import keys, past, records
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.errors import NotFoundError, UnavailableError
from easyscale.pipeline import speeds
from easyscale.pipeline.serve import archive as archives
from easyscale.pipeline.serve import curves
from easyscale.pipeline.serve.app import HEADERS, PAGE, Served
from easyscale.pipeline.serve.archive import Archive
from easyscale.pipeline.serve.picture import FRESH_SECONDS, Picture
from easyscale.pipeline.summary import read_jobs, summarize
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key
from easyscale.storage.memory import MemoryStore
from exhibits import Exhibit, many_jobs, one_job, step_line
from histories import Place
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a-token-that-nobody-guesses"

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


class Site:
    """A cluster that is served: one job with three preemptions, unless more is drawn."""

    def __init__(self, token: str | None = None, hosts: list[str] | None = None) -> None:
        self.kv, self.store, self.now = MemoryKV("served"), MemoryStore("served"), 0.0
        self.exhibit = Exhibit(self.kv, self.store)
        self._token, self._hosts = token, hosts
        self.serve()

    def serve(self) -> None:
        self.archive = Archive(self.store)
        self.picture = Picture(self.kv, lambda: self.now)
        served = Served(self.kv, self.picture, self.archive, self.store, token=self._token, hosts=self._hosts)
        self.client = TestClient(served.application(), base_url="http://localhost")

    def get(self, path: str, status: int = 200) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    def whole(self, path: str) -> Any:
        """The answer when the history has been read."""
        self.get(path)
        self.archive.settle()
        return self.get(path)

    def post(self, verb: str, token: str | None = None, job: str = "digits", **headers: str) -> Any:
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        return self.client.post(f"/api/jobs/{job}/{verb}", headers=headers)

    @property
    def desired(self) -> str:
        found = self.kv.get(keys.desired("digits"))
        assert found is not None
        return found.value.decode()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    one_job(site.exhibit)
    yield site
    site.archive.close()


@pytest.fixture
def steered() -> Iterator[Site]:
    site = Site(TOKEN)
    one_job(site.exhibit)
    yield site
    site.archive.close()


# ---- the same truth


def test_a_job_is_told_as_show_tells_it(site: Site) -> None:
    (view,) = read_jobs(site.kv)
    told = site.get("/api/jobs/digits")
    assert told.items() >= json.loads(json.dumps(summarize(view).as_dict())).items()
    workers = {w: e.value for w, e in site.picture.look().workers.items()}
    assert [(line["what"], line["text"]) for line in told["speeds"]] == speeds.lines(view, workers)
    assert [worker["name"] for worker in told["serving"]] == ["a", "b", "c"]


def test_workers_are_told_as_workers_tells_them_and_with_their_share(site: Site) -> None:
    told = site.get("/api/workers")
    rows = speeds.rows(site.picture.look())
    assert [{k: v for k, v in worker.items() if k != "share"} for worker in told] == [row.as_dict() for row in rows]
    assert [worker["share"] for worker in told] == [0.5, 0.25, 0.25]


def test_jobs_are_listed_in_the_order_in_which_they_get_workers(site: Site) -> None:
    many_jobs(site.exhibit, 8, steps=400)
    assert [job["job"] for job in site.get("/api/jobs")] == [job.name for job in read_jobs(site.kv)]
    cluster = site.get("/api/cluster")
    assert cluster["jobs"] == {"running": 4, "waiting": 1, "paused": 1, "failed": 1, "done": 2}
    assert (cluster["kv"], cluster["store"]) == (site.kv.address, site.store.address)


def test_pipelines_are_told_with_all_their_stages_also_those_that_are_no_jobs_yet(site: Site) -> None:
    assert site.get("/api/pipelines") == []
    outline = {"prepare": (), "train": ("prepare",), "check": ("prepare", "train")}
    site.exhibit.pipeline("vision", outline, {"prepare": "done", "train": "running"})
    site.exhibit.put(keys.pipeline("unreadable"), "{")
    site.exhibit.hang()
    site.now += 2 * FRESH_SECONDS
    (found,) = site.get("/api/pipelines")
    assert (found["pipeline"], found["state"]) == ("vision", "running")
    told = [(stage["stage"], stage["job"], stage["state"], stage["submitted"]) for stage in found["stages"]]
    assert told == [
        ("prepare", "vision.prepare", "done", True),
        ("train", "vision.train", "running", True),
        ("check", "vision.check", "waiting", False),
    ]
    assert found["stages"][2]["reason"] == "waits for train"
    assert {job["job"] for job in site.get("/api/jobs")} >= {"vision.prepare", "vision.train", "digits"}


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(site: Site) -> None:
    site.kv.txn((), (Put(keys.status("digits"), b"{"),))
    assert site.get("/api/cluster")["unreadable"][0].startswith(keys.status("digits"))
    assert [job["job"] for job in site.get("/api/jobs")] == ["digits"]


def test_a_number_that_json_does_not_have_breaks_no_answer(site: Site) -> None:
    site.kv.txn((), (Put(keys.head("digits"), b'{"step":1,"manifest":"m","state_digest":"s","generation":1,'
                                              b'"metrics":{"loss":1e999}}'),))  # fmt: skip
    site.get("/api/jobs/digits")


# ---- history


def test_curves_commits_and_metrics_come_from_the_commits(site: Site) -> None:
    told = site.whole("/api/jobs/digits/scalars?points=64")
    assert (told["complete"], told["trouble"], told["older"]) == (True, "", False)
    assert told["step"] == [*range(1, 6401, 100)], "steps done"
    first = [step_line(t)["loss"] for t in range(100)]
    assert told["loss"][0] == pytest.approx(sum(first) / 100, rel=1e-5)
    assert (told["low"][0], told["high"][0]) == (
        pytest.approx(min(first), rel=1e-5),
        pytest.approx(max(first), rel=1e-5),
    )
    assert told["lr"][0] == pytest.approx(step_line(99)["lr"][0], rel=1e-5)
    assert told["commits"][-1] == 6400
    assert told["metrics"]["accuracy"][-1][0] == 6400


def test_commits_are_told_in_pages_newest_first(site: Site) -> None:
    told = site.whole("/api/jobs/digits/commits?limit=3")
    assert [commit["step"] for commit in told["commits"]] == [6400, 6300, 6200]
    assert told["more"] == 61
    rest = site.get("/api/jobs/digits/commits?limit=3&before=200")
    assert ([commit["step"] for commit in rest["commits"]], rest["more"]) == ([100], 0)


def test_nobody_waits_for_the_object_store(site: Site) -> None:
    gate, get = threading.Event(), site.store.get

    def slow(key: str) -> bytes:
        assert gate.wait(60)
        return get(key)

    site.store.get = slow  # type: ignore[method-assign]
    told = site.get("/api/jobs/digits/scalars")
    assert (told["complete"], told["step"]) == (False, [])
    gate.set()
    site.archive.settle()
    assert site.get("/api/jobs/digits/scalars")["complete"]


def test_only_what_is_new_is_read_again(site: Site) -> None:
    site.whole("/api/jobs/digits/scalars")
    asked: list[str] = []
    get = site.store.get
    site.store.get = lambda key: (asked.append(key), get(key))[1]  # type: ignore[method-assign]
    head = site.picture.look().jobs["digits"].head
    assert head is not None
    newer = site.exhibit.commit("digits", 6410, head.value.manifest, site.exhibit.lines(6400, 6410), {})
    site.exhibit.put(keys.head("digits"), records.Head(step=6410, manifest=newer, state_digest="s", generation=4))
    site.exhibit.hang()
    site.now += 2 * FRESH_SECONDS
    assert site.whole("/api/jobs/digits/commits")["commits"][0]["step"] == 6410
    assert len(asked) <= 4, "the new manifest, its record, and the one it follows"


def test_a_head_that_went_back_is_followed(site: Site) -> None:
    steps = {c["step"]: c["manifest"] for c in site.whole("/api/jobs/digits/commits?limit=500")["commits"]}
    site.exhibit.put(keys.head("digits"), records.Head(step=200, manifest=steps[200], state_digest="s", generation=5))
    site.exhibit.hang()
    site.now += 2 * FRESH_SECONDS
    assert [c["step"] for c in site.whole("/api/jobs/digits/commits")["commits"]] == [200, 100]


def test_a_damaged_commit_hides_what_is_before_it_and_says_so(site: Site) -> None:
    steps = {c["step"]: c["manifest"] for c in site.whole("/api/jobs/digits/commits?limit=500")["commits"]}
    site.store.delete(blob_key(steps[3000]))
    fresh = Archive(site.store)
    fresh.of("digits", steps[6400])
    fresh.settle()
    known = fresh.of("digits", steps[6400])
    fresh.close()
    assert known.complete
    assert [known.spans[0].commit.step, known.spans[-1].commit.step] == [3100, 6400]
    assert steps[3000] in known.trouble


def test_a_record_that_is_gone_leaves_a_gap(site: Site) -> None:
    manifest = site.exhibit.commit("digits", 6500, None, "0" * 64, {})
    site.archive.of("gap", manifest)
    site.archive.settle()
    known = site.archive.of("gap", manifest)
    assert (known.complete, len(known.spans[0].loss)) == (True, 0)
    assert curves.curves(known, 10)["step"] == []


def test_a_store_that_does_not_answer_is_asked_again(site: Site) -> None:
    get = site.store.get

    def away(key: str) -> bytes:
        raise UnavailableError(f"no answer for {key}")

    site.store.get = away  # type: ignore[method-assign]
    told = site.whole("/api/jobs/digits/scalars")
    assert not told["complete"]
    assert "no answer" in told["trouble"]
    site.archive.settle()
    site.store.get = get  # type: ignore[method-assign]
    told = site.whole("/api/jobs/digits/scalars")
    assert (told["complete"], told["trouble"]) == (True, "")


def test_of_a_very_long_job_the_newest_steps_are_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "KEPT_STEPS", 1000)
    monkeypatch.setattr(archives, "BATCH", 4)
    told = site.whole("/api/jobs/digits/scalars")
    assert told["older"]
    assert told["step"][0] == 5201, "what was read when there were enough"


def test_histories_of_the_jobs_looked_at_last_are_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "KEPT_JOBS", 2)
    manifest = site.exhibit.commit("odd", 1, None, site.exhibit.lines(0, 1), {})
    for name in ("one", "two", "three"):
        site.archive.of(name, manifest)
        site.archive.settle()
    assert site.archive.of("three", manifest).complete
    assert not site.archive.of("one", manifest).complete, "forgotten, and read again"


def test_a_loss_that_is_no_number_is_counted_and_breaks_no_curve() -> None:
    store = MemoryStore("odd")
    exhibit = Exhibit(MemoryKV("odd"), store)
    lines = [{"step": t, "loss": None if t in (1, 4, 5) else float(t), "lr": []} for t in range(6)]
    history = exhibit.blob(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    reading = Archive(store)
    manifest = exhibit.commit("odd", 6, None, history, {"f1": "nan"})
    reading.of("odd", manifest)
    reading.settle()
    told = curves.curves(reading.of("odd", manifest), 3)
    reading.close()
    assert (told["step"], told["loss"], told["nonfinite"]) == ([1, 3, 5], [0.0, 2.5, None], 3)
    assert (told["low"], told["high"], told["lr"]) == ([0.0, 2.0, None], [0.0, 3.0, None], [None] * 3)
    assert told["metrics"] == {}


def test_the_timeline_joins_former_generations_and_the_current_one(site: Site) -> None:
    told = site.get("/api/jobs/digits/timeline")
    assert [(one["generation"], one["first"], one["last"]) for one in told] == [
        (1, 0, 1800), (2, 1800, 3350), (3, 3350, 4937), (4, 4937, 6437),
    ]  # fmt: skip
    assert told[1]["members"] == [{"worker": "a-1", "first": 0, "last": 4}]
    assert told[1]["cause"] == "b-1 died"


def test_what_verify_came_to_is_told_newest_first(site: Site) -> None:
    told = site.get("/api/jobs/digits/verified")
    assert [(one["verdict"], one["end"], one["found"]) for one in told] == [
        ("verified", 6400, ""), ("differs", 3300, "this device is of another class"),
    ]  # fmt: skip


def test_an_owner_who_uses_the_device_is_the_reason_why_its_worker_serves_nobody(site: Site) -> None:
    site.exhibit.worker("d", None, "K", 0, away="others use the device")
    site.exhibit.hang()
    (told,) = (worker for worker in site.get("/api/workers") if worker["name"] == "d")
    assert (told["state"], told["remark"], told["share"]) == ("away", "others use the device", 0.0)


def test_a_generation_lasts_until_the_next_one_that_made_steps_began(site: Site) -> None:
    members = (records.Member("a-1", 0, 4),)
    for number, first, last in ((1, 0, 1790), (2, None, None), (3, 1800, 5000)):
        site.exhibit.put(keys.past("digits", number),
                         records.Generation(generation=number, first=first, last=last, members=members))  # fmt: skip
    site.exhibit.hang()
    told = site.get("/api/jobs/digits/timeline")
    assert [(one["first"], one["last"]) for one in told] == [(0, 1800), (None, None), (1800, 5000), (4937, 6437)]
    assert len(past.read(site.kv, "digits")) == 3


# ---- many look at the same time


def test_a_hundred_viewers_cost_one_reading(site: Site) -> None:
    read: list[str] = []
    range_ = site.kv.range
    site.kv.range = lambda prefix: (read.append(prefix), range_(prefix))[1]  # type: ignore[method-assign]
    for _ in range(100):
        site.get("/api/jobs")
    assert read == [keys.PREFIX]
    site.now += 2 * FRESH_SECONDS
    site.get("/api/jobs")
    assert read == [keys.PREFIX] * 2


def test_nothing_old_is_shown_while_the_store_does_not_answer(site: Site) -> None:
    site.get("/api/jobs")
    range_ = site.kv.range

    def away(prefix: str) -> Any:
        raise UnavailableError(f"no answer for {prefix}")

    site.kv.range = away  # type: ignore[method-assign]
    site.now += 2 * FRESH_SECONDS
    for path in ("/api/jobs", "/api/cluster", "/healthz", "/metrics"):
        assert "does not answer" in site.get(path, 503)["error"]
    site.kv.range = range_  # type: ignore[method-assign]
    assert site.get("/healthz") == {"status": "ok", "coordinator": True}


# ---- Prometheus


def families(site: Site) -> dict[str, Any]:
    answer = site.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def samples(family: Any) -> dict[tuple[str, ...], float]:
    """By the values of the labels, in the order of their names."""
    return {tuple(sample.labels[k] for k in sorted(sample.labels)): sample.value for sample in family.samples}


def test_prometheus_gets_jobs_workers_steps_and_recoveries(site: Site) -> None:
    found = families(site)
    assert samples(found["easyscale_jobs"]) == {
        ("waiting",): 0, ("running",): 1, ("paused",): 0, ("done",): 0, ("failed",): 0, ("cancelled",): 0,
    }  # fmt: skip
    assert samples(found["easyscale_workers"])["NVIDIA H200", "running"] == 2
    assert samples(found["easyscale_steps"]) == {(): 6437}
    assert samples(found["easyscale_recoveries"]) == {(): 3}
    assert samples(found["easyscale_attempts"])[("died",)] == 2
    buckets = {s.labels.get("le"): s.value for s in found["easyscale_step_seconds"].samples}
    assert (buckets["0.1"], buckets["0.3"], buckets["+Inf"]) == (0, 1, 1)


def test_all_metrics_and_their_labels_stand_in_the_docs(site: Site) -> None:
    rows = re.findall(
        r"^\| (`easyscale_.*?) \| (gauge|counter|histogram) \|(.*?)\|", OPERATIONS.read_text(), re.MULTILINE
    )
    told = {(name, kind, labels.strip()) for names, kind, labels in rows for name in re.findall(r"`(\w+)`", names)}
    there = set()
    for family in families(site).values():
        if family.name.endswith(("_gcount", "_gsum")):
            continue  # the two halves of a histogram that are neither of Prometheus' own
        names = sorted(
            {label for sample in family.samples for label in sample.labels}, key=["state", "kind", "cause", "le"].index
        )
        name = family.name + ("_total" if family.type == "counter" else "")
        there.add((name, family.type, ", ".join(f"`{label}`" for label in names)))
    assert told == there


def test_the_number_of_series_does_not_grow_with_jobs_or_kinds(site: Site) -> None:
    many_jobs(site.exhibit, 8, steps=200)
    for number in range(100):
        site.exhibit.worker(f"odd{number}", None, f"kind {number} of device", 0)
    site.exhibit.hang()
    found = families(site)
    kinds = {sample.labels["kind"] for sample in found["easyscale_workers"].samples}
    assert len(kinds) <= 21
    assert "other" in kinds
    assert sum(samples(found["easyscale_workers"]).values()) == len(site.get("/api/workers"))
    assert not [sample for family in found.values() for sample in family.samples if "job" in sample.labels]


def test_every_worker_is_counted_whatever_its_state(site: Site) -> None:
    states = ("idle", "preparing", "ready", "running")
    for state in states:
        site.exhibit.worker(f"odd-{state}", None, "K", 0, state=state)
    site.exhibit.worker("odd-leaving", None, "K", 0, leaving=True)
    site.exhibit.worker("odd-away", None, "K", 0, away="its owner uses it")
    site.exhibit.hang()
    counted = samples(families(site)["easyscale_workers"])
    assert {state: counted["K", state] for state in (*states, "leaving", "away")} == dict.fromkeys(
        (*states, "leaving", "away"), 1
    )


def test_a_hostile_kind_of_device_stays_one_label(site: Site) -> None:
    site.exhibit.worker("evil", None, 'x"} 1\neasyscale_jobs{state="running"} 999\n#', 0)
    site.exhibit.hang()
    assert samples(families(site)["easyscale_jobs"])[("running",)] == 1


# ---- steering


def test_without_a_token_file_nothing_can_be_done(site: Site) -> None:
    for token in (None, TOKEN, "None", ""):
        answer = site.post("pause", token)
        assert (answer.status_code, answer.json()["error"]) == (403, "this page is read-only")
    assert site.desired == "running"
    assert site.get("/api/cluster")["steering"] is False


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "tökén"])
def test_only_the_token_lets_one_steer(steered: Site, token: str | None) -> None:
    headers = {"authorization": f"Bearer {token}".encode()} if token is not None else {}
    answer = steered.client.post("/api/jobs/digits/pause", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (401, "the token is wrong")
    assert steered.desired == "running"


def test_a_token_counts_in_its_header_only(steered: Site) -> None:
    for path in (f"/api/jobs/digits/pause?token={TOKEN}", f"/api/jobs/digits/pause?authorization=Bearer {TOKEN}"):
        assert steered.client.post(path, headers={"cookie": f"token={TOKEN}"}).status_code == 401
    basic = steered.client.post("/api/jobs/digits/pause", headers={"authorization": f"Basic {TOKEN}"})
    assert basic.status_code == 401


def test_tokens_are_compared_in_constant_time(steered: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from easyscale.pipeline.serve import app

    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(app.hmac, "compare_digest", lambda a, b: (compared.append((a, b)), False)[1])
    assert steered.post("pause", TOKEN).status_code == 401, "nothing else compares them"
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


def test_a_job_is_paused_resumed_and_cancelled_as_by_the_commands(steered: Site) -> None:
    assert steered.get("/api/cluster")["steering"] is True
    for verb, wanted in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        answer = steered.post(verb, TOKEN)
        assert (answer.status_code, answer.json()["desired"]) == (200, wanted)
        assert steered.desired == wanted
        assert steered.get("/api/jobs/digits")["desired"] == wanted, "at once, not when the picture is old"


def test_what_cannot_be_done_is_answered_and_not_done(steered: Site) -> None:
    steered.exhibit.put(keys.status("digits"), records.Status(state="done"))
    steered.exhibit.hang()
    answer = steered.post("pause", TOKEN)
    assert answer.status_code == 409
    assert "nothing left to pause" in answer.json()["hint"]
    assert steered.post("explode", TOKEN).status_code == 404
    assert steered.post("pause", TOKEN, job="nobody").status_code == 404


class Forked(Site):
    """A site of `histories.Place`, whose commits hold states."""

    def __init__(self) -> None:
        super().__init__(TOKEN)
        self.place = Place()
        self.kv, self.store = self.place.kv, self.place.store
        self.serve()

    def fork(self, query: str, token: str | None = TOKEN) -> Any:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return self.client.post(f"/api/jobs/job/fork?{query}", headers=headers)


@pytest.fixture
def forked() -> Iterator[Forked]:
    site = Forked()
    yield site
    site.archive.close()


def test_a_job_is_forked_as_by_the_command_and_both_say_so(forked: Forked) -> None:
    made = forked.fork("name=new&step=20&set=lr=0.01&set=steps=40")
    assert (made.status_code, made.json()["forked"], made.json()["steps"]) == (200, "job@20", 40), made.text
    _, state = commits.read_commit(forked.store, made.json()["manifest"])
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.01
    assert forked.get("/api/jobs/new")["forked"] == "job@20"
    assert forked.fork("name=newest").json()["forked"] == "job@30"
    assert forked.get("/api/jobs/job")["forks"] == [{"job": "new", "step": 20}, {"job": "newest", "step": 30}]
    told = forked.whole("/api/jobs/new/commits")
    assert ([commit["job"] for commit in told["commits"]], told["trouble"]) == (["new"], "")


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("", 409, "cannot be used"),
        ("name=job", 409, "there is a job 'job' already"),
        ("name=new&step=15", 409, "no commit of step 15"),
        ("name=new&step=x", 400, "step='x' cannot be used"),
        ("name=new&set=lr", 409, "there is no value"),
        ("name=new&set=ests=8", 409, "defines what a step is"),
        ("name=new&set=colour=red", 409, "colour"),
    ],
)
def test_a_fork_that_cannot_be_is_answered_and_not_made(forked: Forked, query: str, status: int, words: str) -> None:
    answer = forked.fork(query)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert [job["job"] for job in forked.get("/api/jobs")] == ["job"]


def test_nobody_forks_without_the_token_nor_a_job_without_a_commit(forked: Forked, steered: Site, site: Site) -> None:
    for token in (None, "wrong"):
        assert forked.fork("name=new", token).status_code == 401
    assert site.client.post("/api/jobs/digits/fork?name=new").status_code == 403
    assert [job["job"] for job in forked.get("/api/jobs")] == ["job"]
    steered.exhibit.job("young", step=0)
    steered.exhibit.hang()
    answer = steered.post("fork", TOKEN, job="young")
    assert (answer.status_code, answer.json()["error"]) == (409, "job 'young' has no commit yet")


def test_looking_changes_nothing(steered: Site) -> None:
    for verb in ("pause", "resume", "cancel", "retry", "fork"):
        answer = steered.client.get(f"/api/jobs/digits/{verb}", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 405
    assert steered.desired == "running"


# ---- what a browser may do


@pytest.mark.parametrize("path", [*PAGE, "/api/jobs", "/api/nothing", "/api/jobs/nobody", "/metrics", "/healthz"])
def test_every_answer_forbids_what_is_not_ours(site: Site, path: str) -> None:
    answer = site.client.get(path)
    assert answer.headers.items() >= HEADERS.items()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_asks_nobody_else_and_makes_no_html_of_text() -> None:
    client = Site().client
    for path in PAGE:
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "//" not in text.replace("// ", "")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert way not in text
    assert "<script>" not in client.get("/").text
    assert "style=" not in client.get("/").text


def test_a_foreign_name_that_leads_here_is_not_answered() -> None:
    site = Site(hosts=["localhost", "127.0.0.1", "[::1]"])
    assert site.client.get("/api/jobs").status_code == 200
    for host in ("evil.example", "evil.example:8765", "localhost.evil.example", ""):
        answer = site.client.get("/api/jobs", headers={"host": host})
        assert answer.status_code == 400
    for host in ("127.0.0.1:8765", "[::1]:8765", "LOCALHOST"):
        assert site.client.get("/api/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "..%2F..", "a%00b", "x" * 5000, "%ff"])
def test_a_hostile_name_is_just_not_there(site: Site, name: str) -> None:
    answer = site.client.get(f"/api/jobs/{name}")
    assert answer.status_code in (404, 405), "a slash in it makes it another path"
    assert answer.headers["content-type"] != "text/html"
    assert "alert" not in answer.text


@pytest.mark.parametrize(
    "query", ["points=0", "points=-1", "points=x", "points=2001", "points=" + "9" * 5000, "points=1e3", "points=²"]
)
def test_a_bad_number_is_refused_with_what_to_give(site: Site, query: str) -> None:
    told = site.get(f"/api/jobs/digits/scalars?{query}", 400)
    assert told["hint"] == "give a whole number from 1 up to 2000"


def test_files_beside_the_page_are_not_served(site: Site) -> None:
    for path in ("/app.py", "/../app.py", "/page/index.html", "/..%2fapp.py", "/index.html"):
        assert site.client.get(path).status_code == 404


def test_a_missing_object_is_no_server_error(site: Site) -> None:
    for path in [key for key in site.store.list("") if key.startswith("blobs/")]:
        site.store.delete(path)
    assert "blobs/" in site.whole("/api/jobs/digits/commits")["trouble"]
    with pytest.raises(NotFoundError):
        site.store.get("blobs/00/" + "0" * 64)
