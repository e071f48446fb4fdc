"""Alert rules and dashboard ask for what there is."""

from __future__ import annotations

import json
import re
from typing import get_args

import yaml
from deployment import DEPLOY
from easyscale.coordinator import records

METRICS = {
    *("easyscale_jobs", "easyscale_steps", "easyscale_steps_wanted", "easyscale_samples_per_second"),
    *("easyscale_workers", "easyscale_attempts_total", "easyscale_recoveries_total"),
    *("easyscale_recovery_seconds_bucket", "easyscale_step_seconds_bucket"),
    *("easyscale_coordinator", "easyscale_unreadable_keys"),
}
"""What `easyscale serve` gives Prometheus."""

LABELS = {"state": get_args(records.JobState), "cause": get_args(records.Cause)}


def expressions() -> list[str]:
    """What alerts and dashboard ask Prometheus."""
    alerts = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())
    board = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    return rules + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_alerts_and_dashboard_ask_only_for_metrics_and_labels_that_there_are() -> None:
    asked = expressions()
    assert {name for text in asked for name in re.findall(r"easyscale_\w+", text)} <= METRICS
    for text in asked:
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', text):
            assert set(values.split("|")) <= set(LABELS[label]), text


def test_panels_of_the_dashboard_lie_beside_each_other() -> None:
    board = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
