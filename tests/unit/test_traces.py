"""Traces, tables and clusters as people have published them, and every way in which such a file can be wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.coordinator.scheduling.jobs import Rates
from easyscale.coordinator.simulator.clusters import cluster
from easyscale.coordinator.simulator.submissions import Reclaim
from easyscale.coordinator.simulator.throughputs import Throughputs
from easyscale.coordinator.simulator.traces import best_step, jobs, made_up, reclaims
from easyscale.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

TABLE: dict[str, Any] = {
    "v100": {"('Net', 1)": {"null": 10.0}, "('Net', 2)": {"null": 16.0}, "('Big', 1)": {"null": 2.0}},
    "k80": {"('Net', 1)": {"null": 2.0}, "('Big', 1)": {"null": 0.0}},
    "v100_unconsolidated": {"('Net', 2)": {"null": 1.0}},
}

GAVEL = "Net\tpython3 train.py\t-step\t1\t{steps}\t{at}\t{gpus}\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"


@pytest.fixture
def table(tmp_path: Path) -> Throughputs:
    return read(tmp_path, TABLE)


def read(folder: Path, table: Any) -> Throughputs:
    path = folder / "table.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return Throughputs.read(path)


def file(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


# ---- how fast models are


def test_a_table_gives_seconds_of_an_est_and_what_exchanges_take_longer(table: Throughputs) -> None:
    # two devices do 16 mini-batches in a second, 8 each: 0.125 s instead of 0.1, and half of an exchange is in it
    assert table.models["Net"] == Rates.of({"v100": 0.1, "k80": 0.5}, pytest.approx(0.05))
    assert table.models["Big"] == Rates.of({"v100": 0.5}), "0: it does not fit"


def test_kinds_that_the_table_lacks_are_as_fast_as_another_kind(table: Throughputs) -> None:
    found = table.on(["V100M16", "G3", "k80"]).models["Net"]
    assert found == Rates.of({"V100M16": 0.1, "G3": 0.05, "k80": 0.5}, found.exchange)
    assert table.on(["k80"]).models["Big"].paces == ()
    with pytest.raises(UserError, match=r"(?s)kind .h100. is, is not known.*use .*G3.*v100"):
        table.on(["v100", "h100"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("{", "no table"),
        ("[]", "no table"),
        ('{"v100": 3}', "no table"),
        ('{"v100": {"Net": {"null": 1.0}}}', "no table"),
        ("""{"v100": {"('Net', 1)": {}}}""", "no table"),
        ("""{"v100": {"('Net', 1)": {"null": -1.0}}}""", "rate -1.0"),
        ("""{"v100": {"('Net', 1)": {"null": NaN}}}""", "rate nan"),
        ("""{"v100": {"('Net', 1)": {"null": "fast"}}}""", "fast"),
        ("""{"v100": {"('Net', 1)": {"null": 0.0}}}""", "no throughputs"),
        ("{}", "no throughputs"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, wrong: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, wrong)


def test_files_that_are_not_there_are_named(tmp_path: Path, table: Throughputs) -> None:
    for call in (
        lambda path: Throughputs.read(path),
        lambda path: jobs(path, table),
        lambda path: reclaims(path, {"v100": 1}),
    ):
        with pytest.raises(UserError, match=r"nowhere cannot be read: No such file.*\n.*a file that you may read"):
            call(tmp_path / "nowhere")


# ---- jobs


def test_gavels_steps_are_those_of_one_device(tmp_path: Path, table: Throughputs) -> None:
    text = GAVEL.format(steps=800, at="50.0", gpus=4) + GAVEL.format(steps=10, at="20.5", gpus=1)
    late, early = reversed(jobs(file(tmp_path, text), table))
    assert (early.name, early.at, early.steps, early.shape.ests) == ("job-2", 0.0, 10.0, 1)
    assert (late.name, late.at, late.steps, late.shape.ests) == ("job-1", 29.5, 200.0, 4)
    assert (late.shape.least, late.shape.most, late.shape.mixes) == (1, 4, True)
    assert late.shape.rates == table.models["Net"]
    assert not jobs(file(tmp_path, text), table, mixes=False)[0].shape.mixes


def test_philly_names_no_models_so_the_seed_draws_them(tmp_path: Path, table: Throughputs) -> None:
    text = PHILLY + "2017-10-09 07:01:55,3600.0,8,28800.0,ee9e8c\n2017-10-09 07:00:00,66.0,1,66.0,11cb48\n\n"
    first, second = jobs(file(tmp_path, text), table, seed=1)
    assert (first.name, first.at, first.tenant) == ("job-3", 0.0, "11cb48")
    assert second.at == 115.0
    assert second.steps * best_step(second.shape) == pytest.approx(3600.0), "it lasts so long on its devices"
    assert jobs(file(tmp_path, text), table, seed=1) == [first, second]
    drawn = {jobs(file(tmp_path, text), table, seed=seed)[0].shape.rates for seed in range(20)}
    assert drawn == set(table.models.values())


def test_alibabas_pods_of_best_effort_are_jobs(tmp_path: Path, table: Throughputs) -> None:
    text = PODS + "a,1,1,1,500,,BE,Running,100,400,120\nb,1,1,0,0,,BE,Failed,1,2,1\nc,1,1,1,9,,LS,Running,1,9,1\n"
    text += "d,1,1,2,1000,,BE,Pending,150,160,\n"
    (only,) = jobs(file(tmp_path, text), table)
    assert (only.name, only.at, only.shape.ests) == ("a", 0.0, 1)
    assert only.steps * best_step(only.shape) == pytest.approx(280.0)


def test_made_up_jobs_come_from_a_seed(table: Throughputs) -> None:
    first = made_up(50, table, seed=3, every=60.0)
    assert first == made_up(50, table, seed=3, every=60.0)
    assert first != made_up(50, table, seed=4, every=60.0)
    assert len({one.name for one in first}) == 50
    assert [one.at for one in first] == sorted(one.at for one in first)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Net\tx\t-n\t1\t5\n", "it has 5 field"),
        ("Other\tx\t-n\t1\t5\t0\t1\n", "model 'Other' is not in the table"),
        ("Net\tx\t-n\t1\t0\t0\t1\n", "steps is '0'; it must be above 0"),
        ("Net\tx\t-n\t1\tmany\t0\t1\n", "steps is 'many', which is no number"),
        ("Net\tx\t-n\t1\tnan\t0\t1\n", "steps is 'nan'"),
        ("Net\tx\t-n\t1\t5\t-3\t1\n", "arrival is '-3'; it must be at least 0"),
        ("Net\tx\t-n\t1\t5\t0\t0\n", "devices is '0'; it must be a whole number from 1"),
        ("Net\tx\t-n\t1\t5\t0\t1.5\n", "devices is '1.5'; it must be a whole number"),
        ("\0\x01\xff\n", "it has 1 field"),
    ],
)
def test_a_broken_line_is_named_or_left_out(tmp_path: Path, table: Throughputs, line: str, said: str) -> None:
    path = file(tmp_path, GAVEL.format(steps=10, at=0, gpus=1) + line + GAVEL.format(steps=10, at=1, gpus=1))
    with pytest.raises(UserError, match=f"trace, line 2: .*{said}") as raised:
        jobs(path, table)
    assert "--skip-broken" in str(raised.value)
    assert [one.name for one in jobs(path, table, skip=True)] == ["job-1", "job-3"]


@pytest.mark.parametrize(
    "row", ["yesterday,66.0,1,66.0,c", "2017-10-09 07:01:55,0,1,66.0,c", "2017-10-09 07:01:55,66.0,0,66.0,c", "x"]
)
def test_broken_lines_of_philly_are_named(tmp_path: Path, table: Throughputs, row: str) -> None:
    with pytest.raises(UserError, match="trace, line 2: "):
        jobs(file(tmp_path, PHILLY + row + "\n"), table)


def test_a_trace_without_jobs_is_refused(tmp_path: Path, table: Throughputs) -> None:
    for text in ("", "\n\n", PHILLY, "nonsense\n"):
        with pytest.raises(UserError, match="has no jobs"):
            jobs(file(tmp_path, text), table, skip=True)


# ---- devices


def test_a_cluster_in_words_or_as_a_list_of_nodes(tmp_path: Path) -> None:
    assert cluster("v100:32, p100:16,v100:2,k80:0") == {"v100": 34, "p100": 16}
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,1,1,2,P100\nb,1,1,8,G3\nc,1,1,0,\nd,1,1,8,G3\n")
    assert cluster(str(nodes)) == {"P100": 2, "G3": 16}


@pytest.mark.parametrize("text", ["", "v100", "v100:", ":3", "v100:many", "v100:-1", "v100:1.5", "v100=3"])
def test_a_cluster_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no kind and number of devices"):
        cluster(text)


def test_a_cluster_without_devices_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "nodes.csv"
    empty.write_text("sn,cpu_milli,memory_mib,gpu,model\n")
    for text in ("v100:0", str(empty)):
        with pytest.raises(UserError, match="has no devices"):
            cluster(text)
    empty.write_text("something,else\n")
    with pytest.raises(UserError, match="another kind of file"):
        cluster(str(empty))


def test_latency_sensitive_pods_take_devices_and_give_them_back(tmp_path: Path) -> None:
    month = 30 * 86400
    text = PODS + "".join(
        f"{name},1,1,{gpus},1000,,{qos},Running,{begin},{end},{begin}\n"
        for name, gpus, qos, begin, end in [
            ("long-ago", 1, "LS", 0, 5),
            ("still-there", 2, "LS", 1, month + 300),
            ("a", 1, "LS", month + 100, month + 150),
            ("b", 1, "LS", month + 100, month + 400),
            ("best-effort", 1, "BE", month + 100, month + 200),
            ("without", 0, "LS", month + 100, month + 200),
        ]
    )
    found = reclaims(file(tmp_path, text), {"v100": 3, "k80": 2})
    assert found == [
        Reclaim(0.0, "v100", 2),
        Reclaim(month, "k80", 1),
        Reclaim(month, "k80", 1),
        Reclaim(month + 50, "k80", -1),
        Reclaim(month + 200, "v100", -2),
        Reclaim(month + 300, "k80", -1),
    ]
    with pytest.raises(UserError, match="no latency-sensitive pods"):
        reclaims(file(tmp_path, PODS), {"v100": 3})
