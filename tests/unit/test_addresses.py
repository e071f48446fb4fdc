"""Where a worker says that it can be reached."""

from __future__ import annotations

import pytest
from easyscale.errors import UserError
from easyscale.pipeline.addresses import own_host, require_own


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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_address_of_this_machine_is_taken(host: str) -> None:
    require_own(host)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.7", "is no address of this machine"),
        ("", "is no address of this machine"),
        ("x" * 70, "is no address of this machine"),
        ("0.0.0.0", "stands for all addresses of this machine"),
        ("::", "of this machine"),  # which one may not have
    ],
)
def test_where_nobody_else_would_find_this_worker_is_refused(host: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        require_own(host)
    assert "as other workers reach it" in refused.value.hint
