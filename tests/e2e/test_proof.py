"""A job proves its bits: what was tampered with, forged, or computed otherwise is named, and nothing else is."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import torch
from cluster import Cluster, Done
from easyscale.pipeline import verified
from easyscale.pipeline.commit_checks import markers
from easyscale.pipeline.diff import Place, Side, compare
from easyscale.pipeline.forkserver import ForkServer
from easyscale.pipeline.messages import Base
from easyscale.pipeline.trace import BATCH
from easyscale.pipeline.verify import Request, Verdict, Verifier
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key, get_blob, put_blob
from easyscale.storage.files import FileStore
from easyscale.storage.manifests import Manifest, encode_manifest, read_manifest
from easyscale.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCRIPT = """
import os, time
import torch
import easyscale as es

class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return (torch.arange(8.0) * (index + 1) % 7) / 8  # exact on every device

def step(model, batch):
    hidden = torch.tanh(model[0](batch))
    if os.environ.get("JOB_NOISE"):
        hidden = hidden + time.perf_counter_ns() % 1009 * 1e-6
    return model[1](hidden).square().mean()

def build():
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return es.Training(model=model, optimizer=optimizer, dataset=Waves(), step=step)

job = es.Job("waves", build, ests=2, batch_size=4, steps=12, seed=4, commit_every=4)
"""
LINE = 1 + SCRIPT.splitlines().index("    hidden = torch.tanh(model[0](batch))")
FIRST, LAST = 4, 12
"""Commits that are there for certain: a slow disk may pass over one between them."""

WEIGHT = "model/parameters/0.weight"


class Jobs(NamedTuple):
    """Finished jobs: `waves` on two workers that exchange directly, `stored` on two that do so by the object store, and
    `altered` with one other line of code on one."""

    cluster: Cluster
    fork_server: ForkServer
    scripts: Path


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    scripts = tmp_path_factory.mktemp("scripts")
    with Cluster(tmp_path_factory.mktemp("proof") / "cluster") as it, ForkServer() as fork_server:
        for folder, name, workers, text in (
            ("a", "waves", 2, SCRIPT),
            ("a", "stored", 1, SCRIPT),
            ("b", "altered", 1, SCRIPT.replace("model[0](batch)", "model[0](batch) * 1.001")),
        ):
            path = scripts / folder / "waves.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            done = it.run(
                path, "--name", name, "--set", f"commit_every={4 if workers == 2 else 3}", workers=workers
            ).wait()
            assert done.code == 0, done.err
        yield Jobs(it, fork_server, scripts)


class Copy:
    """A copy of the store, to be tampered with."""

    def __init__(self, jobs: Jobs, folder: Path) -> None:
        shutil.copytree(jobs.cluster.folder / "store", folder / "store")
        self.store = FileStore(folder / "store")
        self._folder, self._jobs = folder, jobs
        head = jobs.cluster.job("waves")
        self.head = Base(step=head.committed, manifest=head.manifest)
        self.commits = markers(self.store, "waves")
        assert (self.commits[0], self.commits[-1]) == (FIRST, LAST)
        self.warnings: list[str] = []

    def path(self, key: str) -> Path:
        path = self._folder / "store" / key
        path.chmod(0o644)
        return path

    def manifest(self, step: int) -> Manifest:
        marker = commits.read_marker(self.store, "waves", step)
        assert marker is not None
        return read_manifest(self.store, marker.manifest)

    def forge(self, changed: dict[int, Callable[[Manifest], Manifest]]) -> None:
        """Change commits, and make chain, markers and head agree with that again."""
        parent: str | None = None
        for step in self.commits:
            manifest = self.manifest(step)
            manifest = changed.get(step, lambda manifest: manifest)(msgspec.structs.replace(manifest, parent=parent))
            parent = put_blob(self.store, encode_manifest(manifest))
            marker = commits.Marker(step, parent, manifest.state_digest, manifest.parent)
            self.store.put(commits.marker_key("waves", step), msgspec.json.encode(marker))
        self.head = Base(step=LAST, manifest=parent)

    def verify(self, fork_server: ForkServer | None = None, **more: Any) -> Verdict:
        steps = {"first": None, "last": None, "trace": None} | more
        request = Request(
            job="waves", head=self.head, device="cpu", folder=self._folder, show=lambda *_: None,
            warn=self.warnings.append, **steps,
        )  # fmt: skip
        return Verifier(self.store, request, fork_server or self._jobs.fork_server).run()


@pytest.fixture
def copy(jobs: Jobs, tmp_path: Path) -> Copy:
    return Copy(jobs, tmp_path)


def altered_state(copy: Copy) -> Callable[[Manifest], Manifest]:
    """Moves one weight by one ulp, and makes all digests of the commit agree with it."""

    def alter(manifest: Manifest) -> Manifest:
        marker = commits.read_marker(copy.store, "waves", manifest.step)
        assert marker is not None
        _, state = commits.read_commit(copy.store, marker.manifest)
        weight = state["model"]["parameters"]["0.weight"]
        weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))
        aside = MemoryStore()
        written = commits.write_commit(
            aside, commits.Snapshot.take(manifest.step, state), job="waves", parent=manifest.parent, spec=manifest.spec,
            code=manifest.code, ests=manifest.ests, determinism=manifest.determinism, generation=1, metrics={},
            history=manifest.history and get_blob(copy.store, manifest.history),
        )  # fmt: skip
        for key in aside.list("blobs/"):
            copy.store.put(key, aside.get(key))
        return read_manifest(aside, written.manifest_digest)

    return alter


def altered_record(copy: Copy, *, dropped: bool = False) -> Callable[[Manifest], Manifest]:
    """Gives EST 1 another loss in one step, or says nothing of that step."""

    def alter(manifest: Manifest) -> Manifest:
        assert manifest.history is not None
        records = [json.loads(line) for line in get_blob(copy.store, manifest.history).splitlines()]
        records[2]["losses"][1] = 0.125
        records = [record for at, record in enumerate(records) if at != 2 or not dropped]
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        return msgspec.structs.replace(manifest, history=put_blob(copy.store, text))

    return alter


def test_an_honest_job_of_two_workers_is_verified(jobs: Jobs) -> None:
    done = jobs.cluster.command("verify", "waves", "-o", "json")
    assert done.code == 0, done.err
    found = done.last
    assert (found["verdict"], found["start"], found["end"], found["steps"]) == ("verified", 0, 12, 12)
    assert found["commits"] >= 2
    assert (found["findings"], found["departures"]) == ([], [])


def test_what_verify_came_to_is_kept_for_those_who_look_at_the_job(jobs: Jobs) -> None:
    assert jobs.cluster.command("verify", "stored").code == 0
    kept = verified.read(jobs.cluster.kv, "stored")[-1]
    assert (kept.verdict, kept.start, kept.end, kept.steps, kept.device) == ("verified", 0, LAST, LAST, "cpu")
    assert kept.found == ""


def test_the_span_around_the_steps_that_are_named_is_verified(copy: Copy) -> None:
    found = copy.verify(first=5, last=7)
    assert (found.verdict, found.start, found.end, found.commits) == ("verified", FIRST, copy.commits[1], 2)


@pytest.mark.parametrize("what", ["flipped", "missing"])
def test_a_tampered_blob_is_named_with_its_tensors_and_nothing_else_is(
    copy: Copy, what: str, injected: Callable[[str], None]
) -> None:
    manifest = copy.manifest(FIRST)
    path = copy.path(blob_key(manifest.packs[0].digest))
    if what == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    injected("a blob of a commit tampered with")
    found = copy.verify()
    assert found.verdict == "differs"
    (finding,) = found.findings
    assert (finding.what, finding.step, finding.key) == ("pack", FIRST, blob_key(manifest.packs[0].digest))
    assert WEIGHT in finding.tensors
    assert ("is missing" if what == "missing" else "is damaged") in finding.problem
    assert found.departures == [], "all of it comes out again, computed from the commit before"
    assert found.steps == 12


def test_a_commit_whose_manifest_is_gone_is_gone_around(copy: Copy, injected: Callable[[str], None]) -> None:
    marker = commits.read_marker(copy.store, "waves", FIRST)
    assert marker is not None
    copy.path(blob_key(marker.manifest)).unlink()
    injected("a blob of a commit tampered with")
    found = copy.verify()
    assert [(finding.what, finding.step, finding.problem) for finding in found.findings] == [
        ("manifest", FIRST, "is missing")
    ]
    assert (found.commits, found.steps, found.departures) == (len(copy.commits) - 1, LAST, [])


def test_one_altered_line_of_the_record_is_named(copy: Copy, injected: Callable[[str], None]) -> None:
    copy.forge({FIRST: altered_record(copy)})
    injected("a record forged")
    found = copy.verify()
    assert found.findings == []
    (departure,) = found.departures
    assert (departure.start, departure.end, departure.step, departure.state) == (0, FIRST, 2, False)
    assert list(departure.numbers) == ["losses[1]"]
    assert departure.numbers["losses[1]"][0] == 0.125
    assert found.steps == 12, "the state is right, so the rest was verified too"


def test_a_step_of_which_nothing_is_recorded_is_named(copy: Copy, injected: Callable[[str], None]) -> None:
    copy.forge({FIRST: altered_record(copy, dropped=True)})
    injected("a record forged")
    (departure,) = copy.verify(last=FIRST).departures
    assert (departure.step, departure.state) == (2, False)
    assert departure.numbers["step"] == (None, 2)


def test_a_forged_commit_is_named_with_its_tensor(copy: Copy, injected: Callable[[str], None]) -> None:
    copy.forge({FIRST: altered_state(copy)})
    injected("a commit forged")
    found = copy.verify()
    assert found.findings == [], "every hash is right"
    (departure,) = found.departures
    assert (departure.start, departure.end, departure.step, departure.state) == (0, FIRST, None, True)
    (tensor,) = departure.tensors
    assert (tensor.name, tensor.elements, tensor.of, tensor.ulps) == (WEIGHT, 1, 512, 1)
    assert departure.operator is None
    assert "it was altered, or computed wrong" in departure.why


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has one way to compute only")
def test_a_device_of_another_kind_is_warned_of_and_the_operator_in_which_it_differs_named(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    with ForkServer() as other:
        first = copy.verify(other, first=FIRST)
        assert (first.verdict, first.start, first.here["isa"]) == ("differs", FIRST, "DEFAULT")
        assert "isa" in copy.warnings[0]
        (departure,) = first.departures
        assert departure.state
        assert departure.operator is None, "there is nothing yet to compare with"
        for _ in range(2):  # the loss may show it late; the trace's states then tell the step in which it began
            advised = int(departure.why.partition("--trace ")[2].partition("`")[0])
            assert FIRST <= advised < departure.end
            traced = copy.verify(trace=advised)
            assert traced.verdict == "verified"
            assert advised in traced.traced
            (departure,) = copy.verify(other, first=FIRST).departures
            if departure.operator is not None:
                break
        operator = departure.operator
        assert operator is not None, departure.why
        assert operator.here.name == operator.there.name != BATCH
        assert operator.here.digest != operator.there.digest
        assert operator.here.place.startswith("waves.py:")


def test_a_device_that_gives_other_bits_each_time_is_told_from_a_forged_commit(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_NOISE", "1")
    with ForkServer() as restless:
        (departure,) = copy.verify(restless, last=FIRST).departures
    assert departure.step == 0
    assert "other bits when it computes this step twice" in departure.why
    assert departure.operator is not None
    assert departure.operator.here.name == "aten.add.Tensor"
    assert departure.operator.here.place == f"waves.py:{LINE + 2}"


def test_what_is_found_is_told_although_the_job_cannot_be_computed_here(
    copy: Copy, injected: Callable[[str], None]
) -> None:
    code = copy.manifest(FIRST).code
    copy.path(blob_key(code)).unlink()
    injected("a blob of a commit tampered with")
    found = copy.verify()
    assert [(finding.what, finding.key) for finding in found.findings] == [("code", blob_key(code))]
    assert "cannot be computed anew here" in found.trouble
    assert (found.verdict, found.steps) == ("differs", 0)


def side(jobs: Jobs, job: str) -> Side:
    view = jobs.cluster.view(job)
    head = view.head.value
    return Side(
        job, Base(step=head.step, manifest=head.manifest), head.state_digest, view.record.spec, view.record.code
    )


def test_jobs_that_differ_in_name_and_lane_only_are_identical(jobs: Jobs) -> None:
    done: Done = jobs.cluster.command("diff", "waves", "stored", "-o", "json")
    assert done.code == 0, done.err
    assert done.last["verdict"] == "identical"
    assert done.last["settings"] == {"commit_every": [4, 3]}
    assert done.last["code"] == []


def test_one_altered_line_of_code_is_named_with_step_tensors_and_operator(jobs: Jobs, tmp_path: Path) -> None:
    place = Place("cpu", tmp_path, jobs.fork_server, lambda *_: None)
    found = compare(jobs.cluster.store, side(jobs, "stored"), side(jobs, "altered"), place)
    assert found.verdict == "differs"
    assert (found.settings, found.data, found.classes) == ({}, False, "")
    assert "-    hidden = torch.tanh(model[0](batch))" in found.code
    assert "+    hidden = torch.tanh(model[0](batch) * 1.001)" in found.code
    assert (found.common, found.apart, found.step, found.parted) == (0, 3, 0, 0)
    assert "losses[0]" in found.numbers
    assert WEIGHT in [tensor.name for tensor in found.tensors]
    assert found.operator is not None
    assert found.operator.here.name == "aten.tanh.default"
    assert found.operator.there.name == "aten.mul.Tensor"
    assert found.operator.here.place == found.operator.there.place == f"waves.py:{LINE}"
    assert found.why == ""


def test_what_cannot_be_verified_or_compared_is_one_clear_error(jobs: Jobs) -> None:
    elsewhere = {"EASYSCALE_STORE": (jobs.scripts / "empty").as_uri()}
    cases: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {
        ("verify", "wave"): ("did you mean waves", {}),
        ("verify", "waves", "--from", "9", "--to", "3"): ("--from 9 is after --to 3", {}),
        ("verify", "waves"): ("not in the object store", elsewhere),
        ("diff", "waves", "nobody"): ("no job 'nobody'", {}),
        ("diff", "waves", "waves"): ("compared with itself", {}),
        ("verify", "waves", "--to", "x"): ("valid integer", {}),
        ("verify", "waves", "--from", "-1"): ("greater than or equal to 0", {}),
    }
    running = {
        arguments: jobs.cluster.start(*arguments, name="refused", **env) for arguments, (_, env) in cases.items()
    }
    for arguments, (words, _) in cases.items():
        done = running[arguments].wait()
        assert done.code == 2, (arguments, done.err)
        assert words in done.err
        assert done.out == ""
        assert "Traceback" not in done.err
