"""The page in a real browser: opened, clicked, steered; and what a hostile name does to it, which is nothing."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from browser import Browser, chromium
from cluster import STAGES, Cluster
from easyscale.coordinator import keys, records
from easyscale.storage.blobs import blob_key
from exhibits import Exhibit, many_jobs, one_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cluster import Process

TOKEN = "correct-horse-battery-staple"

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with chromium() as it:
        yield it


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    yield window
    window.leave()


class Served:
    """`easyscale serve` on the stores of a cluster."""

    def __init__(self, cluster: Cluster, *options: str, **env: str) -> None:
        self.cluster = cluster
        self.process: Process = cluster.start("serve", "--port", "0", *options, name="serve", alone=True, **env)
        self.process.until_written("serve.listening")
        found = re.search(r"http://[0-9.]+:(\d+)/", self.process.text)
        assert found is not None, self.process.text
        self.url = f"http://127.0.0.1:{found[1]}/"

    @classmethod
    def steered(cls, cluster: Cluster) -> Served:
        """With a token."""
        token = cluster.folder / "token"
        token.write_text(TOKEN + "\n")
        return cls(cluster, "--token-file", str(token))

    def get(self, path: str) -> Any:
        with urlopen(self.url + path) as answer:
            return json.load(answer)


@pytest.fixture
def exhibit(cluster: Cluster) -> Exhibit:
    return Exhibit(cluster.kv, cluster.store)


def fits(browser: Browser) -> bool:
    """Whether nothing is wider than the window."""
    return bool(browser.script("return document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_job_is_opened_and_shows_curves_who_ran_what_commits_and_recoveries(
    browser: Browser, cluster: Cluster, exhibit: Exhibit, tmp_path: Path
) -> None:
    one_job(exhibit)
    browser.open(Served(cluster).url)
    browser.size(1360, 1800)
    browser.says("td.name", "digits")
    browser.click("td.name a")
    browser.says("h1", "digits")
    browser.until(lambda: len(browser.all("#part-curves path.line")) == 3)
    assert len(browser.all("#part-timeline rect.ran")) == 8, (
        "three generations before, of 2, 1 and 2, and 3 members now"
    )
    assert len(browser.all("#part-timeline line.commit")) == 64
    titles = [e.get_attribute("textContent") for e in browser.all("#part-timeline rect.ran title")]
    assert any("b-1" in title and "steps 0 to 1800" in title for title in titles)
    assert len(browser.all("#part-workers tbody tr")) == 3
    assert browser.text("#part-recoveries tbody tr") == "b-1 lost by a-1 630 ms 1"
    assert [row.text.split()[0] for row in browser.all("#part-verified tbody tr")] == ["verified", "differs"]
    assert len(browser.all("#part-commits tbody tr")) == 15
    browser.click("#part-commits button")
    browser.until(lambda: len(browser.all("#part-commits tbody tr")) == 64)
    assert not browser.all(".buttons button"), "there is no token: nothing can be done here"
    browser.driver.save_screenshot(str(tmp_path / "job.png"))
    assert fits(browser)
    browser.size(500)
    browser.until(lambda: fits(browser))
    assert browser.complaints() == []


def test_a_pipeline_shows_its_stages_in_order_and_leads_to_those_that_are_jobs(
    browser: Browser, cluster: Cluster, exhibit: Exhibit
) -> None:
    one_job(exhibit)
    outline = {"prepare": (), "train": ("prepare",), "check": ("prepare", "train")}
    exhibit.pipeline("vision", outline, {"prepare": "done", "train": "failed"})
    exhibit.hang()
    browser.size(1360)
    browser.open(Served(cluster).url)
    browser.says("#pipelines td.name", "vision")
    assert browser.text("#pipelines td.stages") == "prepare→train→check"
    assert browser.text("#pipelines .badge") == "failed"
    assert [link.text for link in browser.all("#pipelines a.stage")] == ["prepare", "train"], "check is no job yet"
    assert "waits for train" in browser.one("#pipelines span.stage").get_attribute("title")
    browser.click("#pipelines a.stage.failed")
    browser.says("h1", "vision.train")
    assert browser.complaints() == []


def test_five_hundred_jobs_are_listed_chosen_among_and_searched(
    browser: Browser, cluster: Cluster, exhibit: Exhibit, tmp_path: Path
) -> None:
    many_jobs(exhibit, 500, every=5000)
    served = Served(cluster)
    browser.size(1360)
    browser.open(served.url)
    browser.until(lambda: len(browser.all("tbody tr")) == 500)
    browser.driver.save_screenshot(str(tmp_path / "jobs.png"))
    assert fits(browser)
    browser.click(".chip.failed")
    browser.until(lambda: len(browser.all("tbody tr")) == 62)
    browser.one("input[type=search]").send_keys("sweep-014")
    browser.until(lambda: [row.text.split()[0] for row in browser.all("tbody tr")] == ["resnet50-sweep-014"])
    browser.click("#to-workers")
    browser.until(lambda: len(browser.all("tbody tr")) == 188 * 4)
    assert browser.complaints() == []


def test_a_job_is_paused_resumed_and_cancelled_by_buttons_with_the_token_alone(
    browser: Browser, cluster: Cluster, exhibit: Exhibit
) -> None:
    one_job(exhibit)
    served = Served.steered(cluster)
    browser.size(1360)

    def wanted() -> str:
        found = cluster.kv.get(keys.desired("digits"))
        assert found is not None
        return found.value.decode()

    browser.open(served.url + "#/job/digits")
    browser.click("#pause")
    browser.one("#token").send_keys("a wrong one")
    browser.click("#ask-yes")
    browser.says("#ask-text", "the token is wrong")
    assert wanted() == "running"
    browser.one("#token").send_keys(TOKEN + "\n")  # Enter means yes
    browser.says("#steered", "digits is wanted paused")
    assert wanted() == "paused"
    browser.says(".wanted", "wanted paused")
    browser.click("#resume")  # the token is known by now
    browser.says("#steered", "digits is wanted running")
    assert wanted() == "running"
    browser.click("#cancel")
    browser.says("#ask-title", "Cancel digits?")
    browser.click("#ask button[value=no]")
    assert wanted() == "running"
    browser.click("#cancel")
    browser.click("#ask-yes")
    browser.says("#steered", "digits is wanted cancelled")
    assert wanted() == "cancelled"
    said = [line for line in browser.complaints() if "401" not in line]
    assert said == []


def test_a_server_that_is_gone_is_told_of(browser: Browser, cluster: Cluster, exhibit: Exhibit) -> None:
    one_job(exhibit)
    served = Served.steered(cluster)
    browser.size(1360)
    browser.open(served.url + "#/job/digits")
    browser.click("#pause")
    browser.one("#token").send_keys(TOKEN)
    served.process.kill()
    browser.click("#ask-yes")
    browser.says("#steered", "The server does not answer: look before you try again.")
    browser.says("#trouble", "The server does not answer; trying again.")


def test_a_job_is_forked_by_a_button_and_the_page_goes_to_the_fork(browser: Browser, cluster: Cluster) -> None:
    done = cluster.run(STAGES, workers=2).wait()
    assert done.code == 0, done.err
    job, steps = done.last["job"], done.last["steps"]
    browser.size(1360)
    browser.open(Served.steered(cluster).url + f"#/job/{job}")
    browser.click("#fork")
    browser.one("#token").send_keys(TOKEN)
    browser.click("#ask-yes")
    browser.says("#ask-text", f"is done after {steps} steps")
    browser.one("#set").send_keys(f"steps={steps + 4} lr=0.01")
    browser.click("#ask-yes")
    browser.says("h1", f"{job}-fork")
    browser.says(".facts", f"{job}@{steps}")
    assert cluster.view(f"{job}-fork").record.steps == steps + 4
    browser.click(".facts a")
    browser.says(".facts", f"{job}-fork@{steps}")
    assert [line for line in browser.complaints() if "409" not in line] == []


def test_hostile_names_reasons_and_tracebacks_are_text_and_run_nothing(
    browser: Browser, cluster: Cluster, exhibit: Exhibit
) -> None:
    worker = exhibit.worker(HOSTILE, HOSTILE, HOSTILE, 100, host=HOSTILE, trouble=HOSTILE)
    failure = records.Failure(cause="raised", step=3, worker=worker, message=HOSTILE, traceback=HOSTILE)
    recovery = records.Recovery(cause=HOSTILE, seconds=1.0, steps_recomputed=1)
    name = HOSTILE.replace("/", "\\")  # a slash ends a job's name
    exhibit.job(name, step=200, members=(worker,), reason=HOSTILE, failure=failure, recoveries=(recovery,), recovered=1,
                damage=(HOSTILE,), quarantined={HOSTILE: HOSTILE})  # fmt: skip
    exhibit.put(keys.past(name, 1), records.Generation(generation=1, first=0, last=9, cause=HOSTILE,
                                                       members=(records.Member(HOSTILE, 0, 4),)))  # fmt: skip
    manifest = exhibit.commit(name, 200, None, exhibit.lines(0, 200), {HOSTILE: 1.0})
    exhibit.put(keys.head(name), records.Head(step=200, manifest=manifest, state_digest=HOSTILE, generation=4,
                                              metrics={HOSTILE: 1.0}))  # fmt: skip
    exhibit.hang()
    served = Served(cluster)
    browser.size(1360)
    browser.open(served.url)
    browser.says("td.name a", "<img src=x onerror=")
    browser.click("#to-workers")
    browser.says("td.name", HOSTILE)
    browser.open(served.url)
    browser.click("td.name a")
    browser.says("h1", name)
    browser.says("#part-trouble pre", HOSTILE)
    browser.until(lambda: len(browser.all("#part-curves figure")) == 3)
    assert browser.text("#part-curves figure:nth-child(3) b") == HOSTILE
    browser.says("#part-recoveries td", HOSTILE)
    assert browser.script("return document.title") == name + " · EasyScale"
    assert browser.all("main img, main script, main iframe") == []
    assert browser.complaints() == [], "nothing was even tried that the policy had to forbid"


def test_the_policy_stops_what_is_inline_and_what_is_elsewhere(browser: Browser, cluster: Cluster) -> None:
    browser.open(Served(cluster).url)
    for element in ("'script', {textContent: 'window.ran = 1'}", "'img', {src: 'https://example.invalid/x.png'}"):
        tag, _, fields = element.partition(", ")
        browser.script(f"document.body.append(Object.assign(document.createElement({tag}), {fields}))")
    said: list[str] = []
    browser.until(lambda: said.extend(browser.complaints()) or sum("Content Security Policy" in s for s in said) == 2)
    assert browser.script("return window.ran === undefined")


def test_without_chromium_ci_fails_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium chromium-driver"), chromium():
        pass


def test_a_job_that_really_ran_is_served_with_every_generation_and_written_to_a_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = cluster.run(STAGES, workers=2).wait()
    assert done.code == 0, done.err
    job = done.last["job"]
    served = Served(cluster)
    cluster.until_true(lambda: served.get(f"api/jobs/{job}/scalars")["complete"])
    steps = done.last["steps"]
    told = served.get(f"api/jobs/{job}/scalars?points=2000")
    assert told["step"] == [*range(1, steps + 1)]
    assert told["commits"][-1] == steps
    assert served.get(f"api/jobs/{job}")["state_digest"] == done.last["state_digest"]
    generations = served.get(f"api/jobs/{job}/timeline")
    ran = [one for one in generations if one["first"] is not None and one["members"]]
    assert [one["generation"] for one in generations] == [*range(1, len(generations) + 1)]
    assert (ran[0]["first"], ran[-1]["last"]) == (0, steps)
    assert all(one["last"] == after["first"] for one, after in pairwise(ran)), "nothing was lost"
    to = tmp_path / "scalars.csv"
    written = cluster.command("scalars", job, "--to", str(to), "-o", "json")
    assert (written.code, written.last["steps"]) == (0, steps), written.err
    with to.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [float(row["loss"]) for row in rows] == pytest.approx(told["loss"], rel=1e-5)


# ---- the process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_when_told_to(cluster: Cluster, exhibit: Exhibit, number: signal.Signals) -> None:
    one_job(exhibit)
    served = Served(cluster)
    served.get("api/jobs/digits/scalars")
    served.process.signal(number)
    done = served.process.wait()
    assert (done.code, done.out) == (0, "")
    assert "Traceback" not in done.err
    cluster.assert_nothing_left()


def test_told_twice_it_does_not_wait_for_a_store_that_never_answers(cluster: Cluster, exhibit: Exhibit) -> None:
    one_job(exhibit)
    head = cluster.view("digits").head
    assert head is not None
    manifest = cluster.folder / "store" / blob_key(head.value.manifest)
    manifest.unlink()
    os.mkfifo(manifest)  # nobody ever writes into it
    served = Served(cluster)
    assert served.get("api/jobs/digits/scalars")["complete"] is False

    def told() -> bool:
        served.process.signal(signal.SIGINT)
        return not served.process.running

    cluster.until_true(told)
    assert served.process.wait().code in (130, -signal.SIGINT)


def test_a_token_is_neither_in_the_process_list_nor_in_the_log(cluster: Cluster, exhibit: Exhibit) -> None:
    one_job(exhibit)
    token = cluster.folder / "token"
    token.write_text(TOKEN)
    served = Served(cluster, EASYSCALE_TOKEN_FILE=str(token))
    for bearer, status in ((TOKEN, 200), (TOKEN[::-1], 401)):
        asked = Request(f"{served.url}api/jobs/digits/pause", b"", {"authorization": f"Bearer {bearer}"})
        try:
            with urlopen(asked) as answer:
                found = answer.status
        except HTTPError as error:
            found = error.code
        assert found == status
    process = psutil.Process(served.process.pid)
    seen = [*process.cmdline(), *process.environ().values()]
    served.process.signal(signal.SIGTERM)
    done = served.process.wait()
    assert "serve.steered" in done.err
    for text in (*seen, done.out, done.err):
        assert TOKEN not in text
        assert TOKEN[::-1] not in text


def test_whoever_lets_others_in_is_warned_and_they_can_only_look(cluster: Cluster, exhibit: Exhibit) -> None:
    one_job(exhibit)
    served = Served(cluster, "--host", "0.0.0.0")
    (warning,) = cluster.told("serve.open_to_others")
    assert warning["level"] == "warning"
    assert "nobody can steer" in warning["what"]
    assert [job["job"] for job in served.get("api/jobs")] == ["digits"]
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(f"{served.url}api/jobs/digits/pause", b""))
