"""What becomes of a job's commits at the user's hand, in real processes."""

from __future__ import annotations

import json
import os
import runpy
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cluster import JOBS, Cluster
from easyscale.settings import file_address
from easyscale.storage import commits
from easyscale.storage.blobs import blob_key
from easyscale.storage.collected import has_packs
from safetensors.torch import load_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reference import Reference

SMALL = JOBS / "small.py"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A job that is done: `small`, with a commit every five steps or so."""
    with Cluster(tmp_path_factory.mktemp("history") / "cluster") as it:
        done = it.run(SMALL, "--set", "commit_every=5", JOB_PACE="0.01").wait()
        assert done.code == 0, done.err
        yield it


def age(cluster: Cluster, hours: float = 7.0) -> None:
    """Everything in the object store was written so long ago."""
    then = time.time() - 3600 * hours
    for folder, _, names in os.walk(cluster.folder / "store"):
        for name in names:
            os.utime(f"{folder}/{name}", (then, then))


def whole(cluster: Cluster, job: str) -> list[int]:
    """Steps of the commits whose states are there, newest first."""
    manifest = cluster.job(job).manifest
    assert manifest is not None
    return [found.step for _, found in commits.chain(cluster.store, manifest) if has_packs(cluster.store, found)]


def interrupted(cluster: Cluster, step: int) -> None:
    """Run `small.py` with two workers until about this step, and stop it as a user would."""
    run = cluster.run(SMALL, "--set", "commit_every=5", workers=2, JOB_PACE="0.02")
    cluster.until_step("small", step)
    run.signal(2)
    assert run.wait().code == 130


def test_gc_shows_then_removes_and_the_job_goes_on_and_is_verified_from_its_first_step(
    cluster: Cluster, reference: Reference
) -> None:
    interrupted(cluster, 45)
    before = whole(cluster, "small")
    assert len(before) >= 5
    age(cluster)
    shown = cluster.command("gc", "--keep-last", "2", "-o", "json")
    assert shown.code == 0, shown.err
    assert not shown.last["deleted"]
    assert shown.last["objects"] > 0
    assert whole(cluster, "small") == before, "a dry run"
    removed = cluster.command("gc", "small", "--keep-last", "2", "--delete", "-o", "json")
    assert removed.code == 0, removed.err
    assert (removed.last["objects"], removed.last["bytes"]) == (shown.last["objects"], shown.last["bytes"])
    assert whole(cluster, "small") == before[:2]
    again = cluster.command("gc", "--keep-last", "2", "--delete")
    assert "removed: 0 object(s)" in again.out, again.out
    done = cluster.run(SMALL, "--set", "commit_every=5", workers=2).wait()
    assert done.code == 0, done.err
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
    verified = cluster.command("verify", "small", "-o", "json")
    assert verified.code == 0, verified.out + verified.err
    assert (verified.last["start"], verified.last["end"], verified.last["findings"]) == (0, 80, [])
    lost = before[3]
    part = cluster.command("verify", "small", "--from", str(lost), "--to", str(lost + 1), "-o", "json")
    assert part.code == 0, part.out + part.err
    assert part.last["start"] == 0, "what lies between was collected"


def test_what_gc_cannot_be_asked_is_one_clear_error(ended: Cluster) -> None:
    cases = {
        ("gc", "nobody", "--keep-last", "2"): "no job 'nobody'",
        ("gc", "small"): "not what to keep of them",
        ("gc", "--keep-last", "0"): "greater than or equal to 1",
        ("gc", "--keep-best", "weight_sun"): "the metrics are weight_sum",
        ("gc", "--keep-best", "weight_sum:least"): "METRIC:max or METRIC:min",
        ("gc", "--min-age", "soon"): "write a number and s, m, h or d",
        ("gc", "--store", (ended.folder / "other").as_uri()): "name the object store that they were submitted with",
    }
    require_refused(ended, cases)


def require_refused(cluster: Cluster, cases: dict[tuple[str, ...], str]) -> None:
    running = {arguments: cluster.start(*arguments, name="refused") for arguments in cases}
    for arguments, words in cases.items():
        done = running[arguments].wait()
        assert done.code == 2, (arguments, done.err)
        assert words in done.err, (arguments, done.err)
        assert done.out == ""
        assert "Traceback" not in done.err


def test_a_short_minimum_age_is_refused_while_workers_are_there(cluster: Cluster) -> None:
    cluster.worker("w0")
    cluster.until_true(lambda: cluster.command("workers", "-o", "json").last)
    done = cluster.command("gc", "--min-age", "30m")
    assert done.code == 2
    assert "1 worker(s) are here" in done.err


# ---- fork


def commit_near(cluster: Cluster, job: str, step: int) -> int:
    """The step of a commit at about this step."""
    return min(whole(cluster, job), key=lambda known: abs(known - step))


def run_to_its_end(cluster: Cluster, job: str) -> dict[str, object]:
    """A worker and a coordinator until the job is done."""
    coordinator, worker = cluster.coordinator(), cluster.worker(f"for-{job}")
    cluster.until(job, lambda now: now.state in ("done", "failed"))
    for process in (worker, coordinator):
        process.signal(15)
        process.wait()
    last: dict[str, object] = cluster.command("show", job, "-o", "json").last
    assert last["state"] == "done", last
    return last


def test_a_fork_without_changes_comes_to_the_bits_of_its_job_and_is_verified_from_where_it_begins(
    ended: Cluster, reference: Reference
) -> None:
    step = commit_near(ended, "small", 40)
    made = ended.command("fork", f"small@{step}", "--name", "same", "-o", "json")
    assert made.code == 0, made.err
    assert (made.last["job"], made.last["step"], made.last["forked"]) == ("same", step, f"small@{step}")
    last = run_to_its_end(ended, "same")
    assert last["forked"] == f"small@{step}"
    assert last["state_digest"] == reference.digest
    verified = ended.command("verify", "same", "-o", "json")
    assert verified.code == 0, verified.out + verified.err
    assert (verified.last["start"], verified.last["end"]) == (step, 80)
    compared = ended.command("diff", "small", "same")
    assert compared.code == 0, compared.out + compared.err
    assert "identical" in compared.out


def test_a_fork_with_another_learning_rate_trains_with_it_from_its_first_step(ended: Cluster) -> None:
    step = commit_near(ended, "small", 60)
    made = ended.command("fork", f"small@{step}", "--name", "slow", "--set", "lr=0.01", "--set", "commit_every=10")
    assert made.code == 0, made.err
    assert f"begins with commit {step} of 'small', will be done at step 80" in made.out
    last = run_to_its_end(ended, "slow")
    (first, *_), (before, *_) = recorded(ended, "slow", step), recorded(ended, "small", step)
    assert first["step"] == before["step"] == step
    assert first["loss"] == before["loss"], "the same parameters"
    assert first["lr"][0] == pytest.approx(before["lr"][0] / 10)
    assert last["state_digest"] != ended.job("small").state_digest
    assert ended.command("verify", "slow").code == 0
    compared = ended.command("diff", "small", "slow")
    assert compared.code == 1
    assert f"job 'slow' is a fork that begins with commit {step}" in compared.out, compared.out
    assert "optimizer/param_groups/0/lr" in compared.out


def recorded(cluster: Cluster, job: str, since: int) -> list[dict[str, Any]]:
    """What was recorded of the steps of a job from this one on."""
    manifest = cluster.job(job).manifest
    assert manifest is not None
    lines = [json.loads(line) for line in cluster.history(manifest)]
    return [line for line in lines if line["step"] >= since]


def test_a_fork_that_has_lost_its_first_commit_fails_and_does_not_begin_anew(ended: Cluster) -> None:
    step = commit_near(ended, "small", 40)
    retries = 'retries={"died": 0, "raised": 0}'
    made = ended.command("fork", f"small@{step}", "--name", "hurt", "--set", retries, "-o", "json")
    assert made.code == 0, made.err
    path = ended.folder / "store" / blob_key(made.last["manifest"])
    path.chmod(0o644)
    path.write_bytes(b"rubbish")
    coordinator, worker = ended.coordinator(), ended.worker("for-hurt")
    failed = ended.until("hurt", lambda now: now.state in ("failed", "done") or now.committed > step)
    assert failed.state == "failed"
    assert "no undamaged commit" in failed.reason
    for process in (worker, coordinator):
        process.signal(15)
        process.wait()


def test_what_cannot_be_forked_or_gone_back_to_is_one_clear_error(ended: Cluster) -> None:
    cases = {
        ("fork", "nobody@5", "--name", "x"): "no job 'nobody'",
        ("fork", "small@five", "--name", "x"): "write JOB@STEP",
        ("fork", "small@7919", "--name", "x"): "no commit of step 7919",
        ("fork", "small", "--name", "x"): "let the fork go further (--set steps=160)",
        ("fork", f"small@{commit_near(ended, 'small', 20)}", "--name", "small"): "there is a job 'small' already",
        (
            "fork",
            f"small@{commit_near(ended, 'small', 20)}",
            "--name",
            "x",
            "--set",
            "ests=2",
        ): "defines what a step is",
        ("fork", f"small@{commit_near(ended, 'small', 20)}", "--name", "x", "--set", "lrr=1"): "momentum",
        ("rewind", "small", "--to", "7919"): "no commit of step 7919",
        ("rewind", "small", "--to", "-1"): "greater than or equal to 0",
        ("rewind", "nobody", "--to", "5"): "no job 'nobody'",
    }
    require_refused(ended, cases)


# ---- rewind


def test_a_running_job_goes_back_pauses_and_comes_to_the_same_bits(cluster: Cluster, reference: Reference) -> None:
    cluster.coordinator()
    for name in ("w0", "w1"):
        cluster.worker(name, JOB_PACE="0.02")
    job = cluster.submit(SMALL, commit_every=5)
    cluster.until(job, lambda now: now.committed >= 30 and now.state == "running")
    to = whole(cluster, job)[2]
    back = cluster.command("rewind", job, "--to", str(to), "-o", "json")
    assert back.code == 0, back.err
    assert back.last["was"] > back.last["step"] == to
    paused = cluster.until(job, lambda now: now.state == "paused" and not now.workers)
    assert paused.committed == to, "nobody publishes what was given up"
    assert cluster.command("resume", job).code == 0
    result = cluster.result(job)
    reference.assert_same(cluster, result.manifest, result.state_digest)
    starts = [told["step"] for told in cluster.told("runner.generation")]
    assert to in starts


def test_after_a_rewind_other_code_goes_on_from_there_without_meeting_what_was_before(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL.read_text())
    done = cluster.run(script, "--set", "commit_every=5").wait()
    assert done.code == 0, done.err
    other = cluster.run(SMALL, "--name", "other", "--set", "commit_every=5").wait()
    assert other.last["state_digest"] == done.last["state_digest"]
    both = {*whole(cluster, "small")} & {*whole(cluster, "other")}  # a commit waits for one that takes long
    to = min(both, key=lambda step: abs(step - 40))
    assert cluster.command("rewind", "small", "--to", str(to)).code == 0
    script.write_text(SMALL.read_text().replace("nn.Dropout(0.2)", "nn.Dropout(0.1)"))
    again = cluster.run(script, "--set", "commit_every=5", "--accept-changes").wait()
    assert again.code == 0, again.err
    assert again.last["state_digest"] != done.last["state_digest"]
    verified = cluster.command("verify", "small", "--from", str(to), "-o", "json")
    assert verified.code == 0, verified.out + verified.err
    compared = cluster.command("diff", "small", "other", "-o", "json").last
    assert compared["common"] == to, compared
    assert compared["parted"] == to, compared
    age(cluster)
    assert cluster.command("gc", "small", "--keep-last", "2", "--delete").code == 0
    assert to in whole(cluster, "small"), "the other job keeps the same packs"
    assert cluster.command("gc", "--keep-last", "2", "--delete").code == 0
    assert to not in whole(cluster, "small")
    verified = cluster.command("verify", "small")
    assert verified.code == 2, verified.out
    assert f"went on from commit {to} with other code" in verified.err
    assert f"--from {whole(cluster, 'small')[1]}" in verified.err
    compared = cluster.command("diff", "small", "other", "-o", "json").last
    assert (compared["common"], compared["parted"]) == (to, None), compared
    assert "was collected" in compared["why"]


def test_jobs_that_part_after_a_commit_that_was_collected_are_computed_anew_from_before_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "small.py"
    script.write_text(
        SMALL.read_text().replace("def misbehave(step: int) -> None:", "def misbehave(step: int) -> None:  # too")
    )
    later = SMALL.read_text().replace(
        "time.sleep(PACE)\n", "time.sleep(PACE)\n        model = scaled(model, scheduler.last_epoch)\n"
    )
    later = later.replace(
        "def build()",
        "def scaled(model, step):\n    return model if step < 33 else lambda x: model(x) * 1.01\n\n\ndef build()",
    )
    assert cluster.run(script, "--set", "commit_every=5").wait().code == 0
    script.write_text(later)
    assert cluster.run(script, "--name", "other", "--set", "commit_every=5").wait().code == 0
    age(cluster)
    assert cluster.command("gc", "--keep-last", "2", "--delete").code == 0
    compared = cluster.command("diff", "small", "other", "-o", "json").last
    assert compared["parted"] == 33, compared
    assert 25 <= compared["common"] <= 33


# ---- export


TIED = """
import torch
import easyscale as es
from torch.utils.data import TensorDataset

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, numbers):
        return self.head(self.norm(self.table(numbers))) * self.scale

def step(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def build():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(32) % 8, (torch.arange(32) * 3) % 8)
    return es.Training(model=model, optimizer=optimizer, dataset=data, step=step)

job = es.Job("tied", build, ests=2, batch_size=4, steps=12, ema=0.9, commit_every=6)
"""


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_an_exported_model_is_loaded_by_plain_pytorch_and_computes_the_same_bits(
    ended: Cluster, tmp_path: Path, form: str
) -> None:
    script = ended.folder / "tied.py"
    script.write_text(TIED)
    assert ended.run(script).wait().code == 0
    file = tmp_path / f"model.{form}"
    done = ended.command("export", "tied", "--to", str(file), "-o", "json")
    assert done.code == 0, done.err
    assert (done.last["step"], done.last["format"], done.last["bytes"]) == (12, form, file.stat().st_size)
    trained = ended.state(ended.job("tied").manifest or "")
    names: dict[str, Any] = {}
    exec(compile(TIED.replace("import easyscale as es\n", "").partition("def step")[0], "net", "exec"), names)
    plain, ours = names["Net"](), names["Net"]()
    plain.load_state_dict(load_file(file) if form == "safetensors" else torch.load(file, weights_only=True))
    with torch.no_grad():
        for name, value in trained["model"]["parameters"].items():
            ours.get_parameter(name).copy_(value)
        for name, value in trained["model"]["buffers"].items():
            ours.get_buffer(name).copy_(value)
        outputs = [model.eval()(torch.arange(8)) for model in (plain, ours)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], names["Net"]().eval()(torch.arange(8)))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.5)
    assert ended.command("export", "tied", "--what", "optimizer", "--to", str(tmp_path / "o.pt")).code == 0
    optimizer.load_state_dict(torch.load(tmp_path / "o.pt", weights_only=True))
    assert optimizer.param_groups[0]["lr"] == 0.01
    averaged = tmp_path / f"ema.{form}"
    assert ended.command("export", "tied", "--what", "ema", "--step", "6", "--to", str(averaged)).code == 0
    plain.load_state_dict(load_file(averaged) if form == "safetensors" else torch.load(averaged, weights_only=True))


def test_what_cannot_be_exported_is_one_clear_error(ended: Cluster, tmp_path: Path) -> None:
    (tmp_path / "there.pt").touch()
    cases = {
        ("export", "small", "--to", str(tmp_path / "there.pt")): "is there already",
        ("export", "small", "--to", str(tmp_path / "no" / "file.pt")): "folder that is there",
        ("export", "small", "--step", "7919", "--to", str(tmp_path / "x.pt")): "no commit of step 7919",
        ("export", "small", "--what", "ema", "--to", str(tmp_path / "x.pt")): "keeps no averages",
        ("export", "nobody", "--to", str(tmp_path / "x.pt")): "no job 'nobody'",
        ("export", "small"): "Missing option",
    }
    require_refused(ended, cases)


def test_the_network_of_an_example_is_loaded_and_computes_what_the_trained_one_does(
    ended: Cluster, tmp_path: Path
) -> None:
    script = Path(__file__).parents[2] / "examples" / "digits.py"
    run = ended.run(script, "--set", "steps=3")
    assert run.wait().code == 0
    file = tmp_path / "digits.safetensors"
    assert ended.command("export", "digits", "--to", str(file)).code == 0
    example = runpy.run_path(str(script))
    plain, trained = example["net"](), example["net"]()
    plain.load_state_dict(load_file(file))
    state = ended.state(ended.job("digits").manifest or "")["model"]
    trained.load_state_dict({**state["parameters"], **state["buffers"]})
    images = example["Digits"](train=False).images[:16]
    with torch.no_grad():
        assert torch.equal(plain.eval()(images), trained.eval()(images))


# ---- recover


def test_when_the_key_value_store_is_lost_jobs_are_recovered_and_come_to_the_same_bits(
    cluster: Cluster, reference: Reference
) -> None:
    interrupted(cluster, 40)
    before = cluster.job("small")
    kept = cluster.folder / "before.sqlite"
    for suffix in ("", "-wal", "-shm"):
        file = cluster.folder / f"kv.sqlite{suffix}"
        if file.exists():
            file.rename(f"{kept}{suffix}")
    lost = {"EASYSCALE_KV": file_address(cluster.folder / "new.sqlite")}
    assert cluster.command("gc", "--keep-last", "2", "--delete", **lost).code == 2, "there is no such store yet"
    made = cluster.command("recover", "-o", "json", **lost)
    assert made.code == 0, made.err
    (one,) = json.loads(made.out)
    assert (one["job"], one["how"], one["step"], one["state"]) == ("small", "recovered", before.committed, "paused")
    again = cluster.command("recover", **lost)
    assert "known" in again.out, again.out
    shown = cluster.command("show", "small", "-o", "json", **lost).last
    assert (shown["state_digest"], shown["manifest"]) == (before.state_digest, before.manifest)
    done = cluster.run(SMALL, "--set", "commit_every=5", workers=2, **lost).wait()
    assert done.code == 0, done.err
    reference.assert_same(cluster, done.last["manifest"], done.last["state_digest"])
    refused = cluster.command("recover", "nobody", **lost)
    assert refused.code == 2
    assert "it has: small" in refused.err
