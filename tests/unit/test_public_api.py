"""What users import: pinned, and quick to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import easyscale
import pytest

API = [
    *("Committed", "EasyScaleError", "Handle", "Job", "Pipeline", "RemoteError", "Result", "Stage", "Training"),
    *("UserError", "__version__"),
]


def test_the_public_names_are_these() -> None:
    assert easyscale.__all__ == API
    for name in API:
        assert getattr(easyscale, name) is not None
        assert name in dir(easyscale)
    with pytest.raises(AttributeError, match="no attribute 'Jbo'"):
        easyscale.Jbo  # noqa: B018


def test_names_lead_to_the_classes_themselves() -> None:
    from easyscale.pipeline.inputs import Committed
    from easyscale.pipeline.job import Job
    from easyscale.pipeline.pipelines import Pipeline, Stage
    from easyscale.pipeline.submit import Handle, Result
    from easyscale.pipeline.training import Training

    assert (easyscale.Job, easyscale.Handle, easyscale.Result, easyscale.Training) == (Job, Handle, Result, Training)
    assert (easyscale.Pipeline, easyscale.Stage, easyscale.Committed) == (Pipeline, Stage, Committed)


def test_types_are_shipped() -> None:
    assert (Path(easyscale.__file__).parent / "py.typed").exists()


def test_neither_the_package_nor_a_job_nor_the_command_line_import_torch() -> None:
    code = (
        "import sys, easyscale as es, easyscale.pipeline.cli\n"
        "def build(): ...\n"
        "es.Pipeline('p', [build, es.Job('x', build, ests=1, batch_size=1, steps=1)]); es.Training; es.Handle\n"
        "print(sorted(name for name in ('torch', 'boto3', 'etcd3', 'numpy') if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"
