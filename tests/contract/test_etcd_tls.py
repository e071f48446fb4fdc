"""etcd behind TLS, and with users: who gets in, and what the others are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from certificates import Authority
from cluster import environment
from easyscale.coordinator.etcd import EtcdStore
from easyscale.coordinator.etcd_access import CA, CERT, KEY, PASSWORD, USER, Access, parse
from easyscale.coordinator.kv import Put, open_kv
from easyscale.errors import AddressError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from etcd_service import EtcdCluster

HERE = "etcds://127.0.0.1:2379"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def client(authority: Authority) -> dict[str, str]:
    cert, key = authority.issue("client")
    return {CA: str(authority.ca), CERT: str(cert), KEY: str(key)}


@pytest.fixture(scope="module")
def secured(etcd_cluster: Callable[..., EtcdCluster], authority: Authority) -> Iterator[EtcdCluster]:
    """One member that wants certificates of its clients, too."""
    it = etcd_cluster(1, authority)
    yield it
    it.close()


def test_reads_writes_leases_and_watches_go_through_tls(secured: EtcdCluster, client: dict[str, str]) -> None:
    with environment(client):
        store = open_kv(secured.address)
    assert store.address == secured.address
    assert store.address.startswith("etcds://")
    watch = store.watch("/tls/")
    assert watch.wait(10.0)
    lease = store.grant(60)
    assert store.txn([], [Put("/tls/a", b"1", lease)]).succeeded
    assert watch.wait(10.0)
    found = store.get("/tls/a")
    assert found is not None
    assert (found.value, found.lease) == (b"1", lease)
    assert store.keep_alive(lease)
    store.close()


def test_who_does_not_trust_etcd_or_is_not_trusted_is_told_which_variable_helps(
    secured: EtcdCluster, client: dict[str, str], tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    for env, hint in ((client | {CA: str(other.ca)}, CA), ({CA: client[CA]}, CERT)):
        with environment(env), pytest.raises(AddressError, match="no answer") as raised:
            EtcdStore(secured.address)
        assert hint in raised.value.hint


def test_an_address_without_tls_gets_no_answer_from_an_etcd_with_it_and_the_hint_says_so(secured: EtcdCluster) -> None:
    with pytest.raises(AddressError, match="no answer") as raised:
        EtcdStore(secured.address.replace("etcds:", "etcd:"))
    assert "with TLS: etcds://" in raised.value.hint


def test_user_and_password_may_come_from_the_environment_over_tls(
    etcd_cluster: Callable[..., EtcdCluster], authority: Authority, client: dict[str, str]
) -> None:
    etcd = etcd_cluster(1, authority)
    etcd.enable_users("p@ss:word")
    with environment(client | {USER: "root", PASSWORD: "p@ss:word"}):
        store = EtcdStore(etcd.address)
    assert store.txn([], [Put("/a", b"1")]).succeeded
    store.close()
    with environment(client | {USER: "root", PASSWORD: "wrong"}), pytest.raises(AddressError) as raised:
        EtcdStore(etcd.address)
    assert "refuses us" in str(raised.value)
    assert USER in raised.value.hint
    assert "wrong" not in str(raised.value)
    etcd.close()


def test_a_user_in_the_address_counts_more_than_one_in_the_environment() -> None:
    env = {USER: "env", PASSWORD: "of-env"}
    assert parse("etcd://me:s%40@host", env) == Access(("host:2379",), "me", "s@")
    assert parse("etcd://host:1,[::1]", env) == Access(("host:1", "[::1]:2379"), "env", "of-env")
    assert "of-env" not in repr(parse("etcd://host", env))


def test_half_a_pair_is_refused_by_the_name_of_the_other_half(authority: Authority) -> None:
    cert, key = map(str, authority.issue("half"))
    for env, missing in (
        ({USER: "me"}, PASSWORD),
        ({PASSWORD: "secret"}, USER),
        ({CERT: cert}, KEY),
        ({KEY: key}, CERT),
    ):
        with pytest.raises(AddressError, match=f"and {missing} is not"):
            parse(HERE, env)


def test_files_that_are_none_are_refused_by_variable_and_path(authority: Authority, tmp_path: Path) -> None:
    cert, key = map(str, authority.issue("whole"))
    _, other_key = map(str, authority.issue("other-key"))
    nowhere, text = str(tmp_path / "nowhere"), tmp_path / "text"
    text.write_text("no certificate")
    for env, said in (
        ({CA: nowhere}, f"{CA}: {nowhere} cannot be read: No such file"),
        ({CA: str(text)}, f"{CA}: there is no certificate in {text}"),
        ({CERT: str(text), KEY: key}, f"{CERT} and {KEY}: {text} and {key} are no certificate and its key"),
        ({CERT: cert, KEY: other_key}, f"{CERT} and {KEY}: {cert} and {other_key} are no certificate and its key"),
    ):
        with pytest.raises(AddressError) as raised:
            parse(HERE, env)
        assert said in str(raised.value)
        assert "PEM" in raised.value.hint


def test_files_for_tls_with_an_address_in_plain_text_are_refused_rather_than_ignored(authority: Authority) -> None:
    with pytest.raises(AddressError, match=f"{CA} is for TLS") as raised:
        parse("etcd://host", {CA: str(authority.ca)})
    assert "etcds://" in raised.value.hint
