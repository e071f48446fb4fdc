"""`docs/reference.md` is what docstrings and the command line say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import easyscale

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date() -> None:
    assert (DOCS / "reference.md").read_text() == generator().text(), (
        "docstrings or options have changed: make reference"
    )


def test_every_public_name_every_command_and_every_visible_option_is_in_it() -> None:
    text = generator().text()
    for name in easyscale.__all__:
        assert name.startswith("_") or f"### es.{name}\n" in text
    for command in ("run", "worker", "gc", "export", "simulate"):
        assert f"### easyscale {command}\n" in text
    assert "| `--workers, -w NUMBER` | Worker processes to start. Default: 1. |" in text
    assert "--slowdown" not in text, "hidden options are nobody's business"
    assert "- `clip_norm`: maximal total norm" in text
