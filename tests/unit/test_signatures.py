"""Only what somebody with a trusted key has signed is run; a key that cannot be used is one clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from easyscale.errors import UnavailableError, UserError
from easyscale.storage.blobs import put_blob
from easyscale.storage.memory import MemoryStore
from easyscale.storage.signatures import (
    PURPOSE,
    SIGNING_KEY,
    TRUSTED_KEYS,
    Signer,
    Trusted,
    name_of,
    signature_key,
    signer,
    trusted,
)

if TYPE_CHECKING:
    from pathlib import Path

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"1")


def private(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_a_trusted_key_has_signed_may_be_run_and_nothing_else(store: MemoryStore) -> None:
    digest, unsigned = put_blob(store, b"code"), put_blob(store, b"other code")
    Signer(KEY).sign(store, digest)
    assert Trusted((KEY.public_key(),)).signed(store, digest)
    assert Trusted((OTHER.public_key(), KEY.public_key())).signed(store, digest), "one of them is enough"
    assert not Trusted((OTHER.public_key(),)).signed(store, digest)
    assert not Trusted((KEY.public_key(),)).signed(store, unsigned)
    assert Trusted().signed(store, unsigned), "without keys, nothing is checked"


def test_a_signature_that_was_moved_altered_or_made_for_something_else_is_none(store: MemoryStore) -> None:
    digest, evil = put_blob(store, b"code"), put_blob(store, b"evil code")
    Signer(KEY).sign(store, digest)
    mine, theirs = (signature_key(one, name_of(KEY.public_key())) for one in (digest, evil))
    good = store.get(mine)
    keys = Trusted((KEY.public_key(),))
    bad = [good, good[:-1], good + b"x", b"", bytes(64), KEY.sign(evil.encode()), OTHER.sign(PURPOSE + evil.encode())]
    for forged in bad:
        store.put(theirs, forged)
        assert not keys.signed(store, evil), forged


def test_what_was_made_of_something_in_the_store_is_signed_only_if_that_was(store: MemoryStore) -> None:
    old, new = put_blob(store, b"old"), put_blob(store, b"new")
    keys = Trusted((KEY.public_key(),))
    with pytest.raises(UserError, match="is not signed"):
        Signer(KEY).sign_like(store, new, old, Trusted())
    Signer(OTHER).sign(store, old)
    with pytest.raises(UserError, match="is not signed"):
        Signer(KEY).sign_like(store, new, old, Trusted())
    assert not keys.signed(store, new)
    Signer(KEY).sign_like(store, new, old, Trusted((OTHER.public_key(),)))
    assert keys.signed(store, new)
    assert not keys.signed(store, old)
    newer = put_blob(store, b"newer")
    Signer(KEY).sign_like(store, newer, new, Trusted())
    assert keys.signed(store, newer), "the own key counts"


def test_a_store_that_does_not_answer_is_no_missing_signature(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    def away(_: str) -> bytes:
        raise UnavailableError("away")

    monkeypatch.setattr(store, "get", away)
    with pytest.raises(UnavailableError):
        Trusted((KEY.public_key(),)).signed(store, "0" * 64)


def test_keys_are_read_from_the_files_that_the_environment_names(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "key").write_bytes(private(KEY))
    (tmp_path / "trusted").write_bytes(public(OTHER) + b"\n" + public(KEY))
    by, keys = signer({SIGNING_KEY: str(tmp_path / "key")}), trusted({TRUSTED_KEYS: str(tmp_path / "trusted")})
    assert by is not None
    by.sign(store, "0" * 64)
    assert len(keys.keys) == 2
    assert keys.signed(store, "0" * 64)
    assert signer({}) is None
    assert trusted({}).keys == ()


@pytest.mark.parametrize("what", ["nothing", "no PEM", "a folder", "half", "another kind", "a passphrase"])
def test_a_key_that_cannot_be_used_is_refused_whatever_is_wrong_with_it(tmp_path: Path, what: str) -> None:
    file = tmp_path / "key"
    other = generate_private_key(SECP256R1())
    pkcs8, spki = PrivateFormat.PKCS8, PublicFormat.SubjectPublicKeyInfo
    contents = {
        "no PEM": (b"hello", b"hello"),
        "half": (private(KEY)[:60], public(KEY)[:60]),
        "another kind": (
            other.private_bytes(Encoding.PEM, pkcs8, NoEncryption()),
            other.public_key().public_bytes(Encoding.PEM, spki),
        ),
        "a passphrase": (KEY.private_bytes(Encoding.PEM, pkcs8, BestAvailableEncryption(b"x")), b""),
    }
    for number, read in enumerate((signer, trusted)):
        if what == "a folder":
            file.mkdir(exist_ok=True)
        elif what in contents:
            file.write_bytes(contents[what][number])
        name = (SIGNING_KEY, TRUSTED_KEYS)[number]
        with pytest.raises(UserError, match=name) as raised:
            read({name: str(file)})
        assert raised.value.hint
