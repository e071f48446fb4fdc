"""Delays of ours never draw from the generators that belong to the job."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import botocore.retryhandler
import pytest
from easyscale import chance
from easyscale.errors import AddressError
from easyscale.storage import s3

if TYPE_CHECKING:
    from types import ModuleType

LIBRARIES = ("botocore.retries", "botocore.retryhandler", "botocore.utils", "urllib3.util")


def test_a_delay_lies_between_its_bounds_and_leaves_the_global_generator_alone() -> None:
    wait = chance.wait_random(0.1, 0.3)
    random.seed(5)
    before = random.getstate()
    delays = {wait(retry_state=None) for _ in range(100)}  # type: ignore[arg-type]
    assert len(delays) > 50
    assert all(0.1 <= delay <= 0.3 for delay in delays)
    assert random.getstate() == before


def test_retries_of_the_object_store_leave_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    retries: list[Any] = []
    monkeypatch.setattr(s3.S3Store, "_log_retry", lambda _, doing, state: retries.append(doing))
    random.seed(5)
    before = random.getstate()
    with pytest.raises(AddressError):
        s3.S3Store("nobody", deadline=1.0)
    assert len(retries) >= 2
    assert random.getstate() == before


def test_libraries_that_run_beside_the_training_have_a_generator_of_their_own() -> None:
    drawing = [
        name
        for name, module in sys.modules.items()
        if name.startswith(LIBRARIES) and getattr(module, "random", None) is random
    ]
    assert drawing == []
    random.seed(5)
    before = random.getstate()
    botocore.retryhandler.delay_exponential("rand", 2.0, 3)
    assert random.getstate() == before


def test_a_library_that_has_changed_is_noticed() -> None:
    module: Any = SimpleNamespace(__name__="library", random=random)
    chance.keep_from_global(module)
    assert module.random is not random
    chance.keep_from_global(module)
    changed: ModuleType = SimpleNamespace(__name__="library")  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="imports random no more"):
        chance.keep_from_global(changed)
