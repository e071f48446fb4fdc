"""EasyScale: elastic deep-learning training whose result does not depend on the devices it ran on.

Importing this module does not import torch: commands that only look at jobs stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import EasyScaleError, RemoteError, UserError

if TYPE_CHECKING:
    from .pipeline.inputs import Committed
    from .pipeline.job import Job
    from .pipeline.pipelines import Pipeline, Stage
    from .pipeline.submit import Handle, Result
    from .pipeline.training import Training

__version__ = "0.1.0"

__all__ = [
    "Committed",
    "EasyScaleError",
    "Handle",
    "Job",
    "Pipeline",
    "RemoteError",
    "Result",
    "Stage",
    "Training",
    "UserError",
    "__version__",
]

_LAZY = {
    "Committed": "inputs",
    "Handle": "submit",
    "Job": "job",
    "Pipeline": "pipelines",
    "Result": "submit",
    "Stage": "pipelines",
    "Training": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".pipeline.{_LAZY[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
