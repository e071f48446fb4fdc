"""`handle.watch()` as the last line of a notebook's cell, in IPython itself."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator import keys, records
from easyscale.coordinator.embedded import EmbeddedStore
from easyscale.coordinator.kv import Put
from easyscale.coordinator.memory import MemoryKV
from easyscale.pipeline.notebook import STOPPED, bar
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.submit import Handle, Watch, record_of
from easyscale.pipeline.summary import Summary, read_job, summarize
from easyscale.storage.blobs import get_blob
from easyscale.storage.files import FileStore
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from user import TRAINING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def kv() -> MemoryKV:
    kv = MemoryKV("test")
    spec = JobSpec(name="job", script="s.py::build", code="c", data="d", samples=100, ests=4, batch_size=5, steps=30)
    put(kv, keys.spec("job"), record_of(spec, "0" * 64, "1" * 64))
    return kv


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def put(kv: MemoryKV, key: str, value: Any) -> None:
    kv.txn((), (Put(key, records.encode(value)),))


def summary(kv: MemoryKV) -> Summary:
    view = read_job(kv, "job")
    assert view is not None
    return summarize(view)


def shown(shell: InteractiveShell, watch: Watch) -> list[str]:
    """What a cell with the watch as its last line displays."""
    shell.push({"watch": watch})
    with capture_output() as captured:
        done = shell.run_cell("watch", store_history=False)
    assert done.error_in_exec is None
    assert "Traceback" not in captured.stdout + captured.stderr
    return [output.data["text/html"] for output in captured.outputs]


def test_a_cell_shows_the_job_until_it_is_done(kv: MemoryKV, shell: InteractiveShell) -> None:
    def jobs() -> Iterator[Summary]:
        yield summary(kv)
        put(kv, keys.status("job"), records.Status(state="running"))
        put(kv, keys.progress("job"), records.Progress(generation=1, step=15))
        yield summary(kv)
        head = records.Head(step=30, manifest="a" * 64, state_digest="b" * 64, generation=1, metrics={"accuracy": 0.75})
        put(kv, keys.head("job"), head)
        put(kv, keys.status("job"), records.Status(state="done"))
        yield summary(kv)

    before = bar(summary(kv))
    assert "width:0.0%" in before
    assert "waiting" in before
    *_, after = shown(shell, Watch(jobs()))
    assert "width:100.0%" in after
    assert "done, accuracy 0.75" in after


def test_the_watch_of_a_handle_is_shown_and_is_still_an_iterator(kv: MemoryKV, shell: InteractiveShell) -> None:
    put(kv, keys.status("job"), records.Status(state="cancelled"))
    *_, only = shown(shell, Handle("job", kv).watch(timeout=30.0))
    assert "cancelled" in only
    assert [job.state for job in Handle("job", kv).watch(timeout=30.0)] == ["cancelled"]
    assert next(Handle("job", kv).watch(timeout=30.0)).state == "cancelled"


def test_interrupting_the_cell_only_ends_the_watching(kv: MemoryKV, shell: InteractiveShell) -> None:
    def jobs() -> Iterator[Summary]:
        yield summary(kv)
        raise KeyboardInterrupt

    assert STOPPED in shown(shell, Watch(jobs()))[-1]


def test_names_and_reasons_are_text_and_no_html(kv: MemoryKV) -> None:
    put(kv, keys.status("job"), records.Status(state="failed", reason=HOSTILE))
    html = bar(summary(kv))
    assert "<script" not in html
    assert "&lt;script" in html


def test_a_job_that_an_interpreter_has_imported_is_submitted_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(TRAINING)
    code = "from trainer import job; handle = job.submit(); print(handle.how, handle.status().state)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "created waiting\n", done.stderr
    records_at = EmbeddedStore(tmp_path / ".easyscale" / "kv.sqlite")
    view = read_job(records_at, "demo")
    records_at.close()
    assert view is not None
    spec = JobSpec.decode(get_blob(FileStore(tmp_path / ".easyscale" / "store"), view.record.spec))
    assert spec.script == "trainer.py::build"
