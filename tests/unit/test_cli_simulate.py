"""`easyscale simulate`: what it prints, for people and for scripts, and mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from easyscale.pipeline import cli

if TYPE_CHECKING:
    from pathlib import Path

TABLE = {
    kind: {"('Net', 1)": {"null": rate}, "('Net', 2)": {"null": 1.8 * rate}}
    for kind, rate in (("v100", 10.0), ("k80", 2.0))
}
ALL = "fifo,backfill,srtf,paper,easyscale"


class Said:
    """What a command has said, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code: object = 0
        try:
            cli.main(["simulate", *arguments])
        except SystemExit as ended:
            self.code = ended.code or 0
        self.out, self.err = capsys.readouterr()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    lines = [f"Net\tx\t-n\t1\t{400 * (1 + at % 3)}\t{at * 30}\t{1 + at % 2}\n" for at in range(12)]
    (tmp_path / "trace").write_text("".join(lines) + "Net\tx\t-n\t1\t100\t5\t9\n")
    return tmp_path


@pytest.fixture
def usual(files: Path) -> list[str]:
    return ["--cluster", "v100:2,k80:2", "--throughputs", str(files / "table.json"), "--trace", str(files / "trace")]


def test_policies_are_compared_in_a_table_and_a_picture(
    capsys: pytest.CaptureFixture[str], usual: list[str], tmp_path: Path
) -> None:
    plot = tmp_path / "plot.png"
    said = Said(capsys, *usual, "--compare", ALL, "--plot", str(plot))
    assert said.code == 0, said.err
    assert "12 jobs on 2 k80, 2 v100" in said.out
    assert "left out: 1 job(s) that need more devices" in said.out
    for name in ALL.split(","):
        assert f"\n{name}" in said.out
    assert "backfill / easyscale: mean JCT" in said.out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_scripts_get_the_same_figures_every_time(capsys: pytest.CaptureFixture[str], usual: list[str]) -> None:
    first, second = (Said(capsys, *usual, "--compare", ALL, "-o", "json").out for _ in range(2))
    assert first == second
    found: dict[str, Any] = json.loads(first)
    assert found["cluster"] == {"v100": 2, "k80": 2}
    assert found["left_out"] == 1
    assert [one["policy"] for one in found["policies"]] == ALL.split(",")
    assert all(one["jobs"] == 12 and one["unfinished"] == 0 for one in found["policies"])
    assert all(0 < one["used"] <= 1 and 0 <= one["waste"] < 1 for one in found["policies"])


def test_options_change_what_they_say(capsys: pytest.CaptureFixture[str], usual: list[str]) -> None:
    def figures(*options: str) -> dict[str, Any]:
        said = Said(capsys, *usual, *options, "-o", "json")
        assert said.code == 0, said.err
        found: dict[str, Any] = json.loads(said.out)["policies"][0]
        return found

    plain = figures()
    assert plain["policy"] == "easyscale"
    assert plain["jobs"] == 13, "it can run the one that needs nine devices, on fewer"
    assert figures("--jobs", "5")["jobs"] == 5
    assert figures("--faster", "1000")["queueing"] > plain["queueing"]
    assert figures("--charge", "10")["jct"] > plain["jct"]
    assert figures("--hours", "0.02")["unfinished"] > 0
    assert figures("--one-kind")["jct"] >= plain["jct"]


def test_without_a_trace_jobs_are_made_up_from_a_seed(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    usual = ["--cluster", "v100:20", "--throughputs", str(files / "table.json"), "--jobs", "20", "-o", "json"]
    first, again, other = (Said(capsys, *usual, "--seed", seed).out for seed in ("1", "1", "2"))
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "magic"], "no policy 'magic'"),
        (["--compare", "fifo,magic"], "no policy 'magic'"),
        (["--compare", ""], "no policy ''"),
        (["--faster", "0"], "--faster is 0"),
        (["--charge", "-1"], "--charge is -1"),
        (["--hours", "nan"], "--hours is nan"),
        (["--cluster", "v100"], "no kind and number"),
        (["--cluster", "v100:0"], "has no devices"),
        (["--cluster", "h100:8"], "kind 'h100'"),
        (["--trace", "nowhere"], "nowhere cannot be read"),
        (["--throughputs", "nowhere"], "nowhere cannot be read"),
        (["--reclaim", "nowhere"], "nowhere cannot be read"),
        (["--plot", "no/where.png"], "there is no folder"),
        (["--jobs", "0"], "'--jobs'"),
    ],
)
def test_mistakes_are_one_clear_error(
    capsys: pytest.CaptureFixture[str], usual: list[str], options: list[str], said: str
) -> None:
    found = Said(capsys, *usual, *options)
    assert found.code == 2
    assert said in found.err
    assert "Traceback" not in found.err
    assert found.out == ""


def test_jobs_that_fit_nowhere_are_told(capsys: pytest.CaptureFixture[str], usual: list[str], files: Path) -> None:
    (files / "trace").write_text("Net\tx\t-n\t1\t100\t5\t9\n")
    said = Said(capsys, *usual, "--policy", "fifo")
    assert said.code == 2
    assert "none of the 1 job(s) can run on 2 k80, 2 v100" in said.err
