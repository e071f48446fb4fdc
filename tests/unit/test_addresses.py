"""Where a worker says that it can be reached."""

from __future__ import annotations

import pytest
from easyscale.pipeline.addresses import own_host


@pytest.mark.parametrize(
    "kv",
    [
        "file:///somewhere/kv.sqlite",
        "etcd://127.0.0.1:2379",
        "etcd://127.0.0.1",
        "etcd://127.0.0.1:2379,127.0.0.1:2380,127.0.0.1:2381",
        "etcd://user:p%2C@127.0.0.1:2379,127.0.0.1:2380",
    ],
)
def test_beside_its_key_value_store_a_worker_is_reached_by_loopback(kv: str) -> None:
    assert own_host(kv) == "127.0.0.1"
