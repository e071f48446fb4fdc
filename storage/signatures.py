"""Signed blobs: workers of a cluster with keys run only what somebody with a signing key has submitted.

Keys are Ed25519, in PEM files as `openssl` makes them. A signature lies beside the blobs under the digest of what it
signs and the name of the key, so that it holds for every job, commit and copy of a store that names this digest. Who
can write to the stores can make workers wait or refuse, but not run code of their own.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotFoundError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from .objects import ObjectStore

SIGNING_KEY, TRUSTED_KEYS = "EASYSCALE_SIGNING_KEY", "EASYSCALE_TRUSTED_KEYS"
"""Environment: a file with the private key that submits sign with; a file with the public keys that workers trust."""

PURPOSE = b"easyscale: this may be run\n"
"""What is signed begins with this: a signature made for something else is none here."""

PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


def signature_key(digest: str, key: str) -> str:
    """Where a key's signature of a blob lies."""
    return f"signatures/{digest}/{key}"


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with one key."""

    key: Ed25519PrivateKey

    def sign(self, store: ObjectStore, digest: str) -> None:
        """Say that a blob may be run. Again is harmless: the same signature comes out.

        Raises:
            UnavailableError: the store does not answer.
        """
        store.put(signature_key(digest, name_of(self.key.public_key())), self.key.sign(PURPOSE + digest.encode()))

    def sign_like(self, store: ObjectStore, digest: str, old: str, others: Trusted) -> None:
        """Sign what was made of something that is in the store already, if that may be run.

        Otherwise whoever can write to the store would get a signature by leaving something there to be signed.

        Args:
            old: digest of what it was made of. others: whose signatures count, besides the own one.

        Raises:
            UserError: nobody who counts has signed `old`.
            UnavailableError: the store does not answer.
        """
        if not Trusted((self.key.public_key(), *others.keys)).signed(store, old):
            raise UserError(
                f"{old[:12]} is not signed with the key of {SIGNING_KEY}, nor with one of {TRUSTED_KEYS}",
                "submit its script, which signs it, or name the keys that it was signed with",
            )
        self.sign(store, digest)


@dataclass(frozen=True, slots=True)
class Trusted:
    """Knows whose signatures count. Without any keys, everything may be run."""

    keys: tuple[Ed25519PublicKey, ...] = ()

    def signed(self, store: ObjectStore, digest: str) -> bool:
        """Whether a blob may be run.

        Raises:
            UnavailableError: the store does not answer.
        """
        return not self.keys or any(_signed(store, digest, key) for key in self.keys)


def _signed(store: ObjectStore, digest: str, key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(store.get(signature_key(digest, name_of(key))), PURPOSE + digest.encode())
    except (NotFoundError, InvalidSignature):
        return False
    return True


def name_of(key: Ed25519PublicKey) -> str:
    """A name for a key: of its fingerprint, as many digits as nobody will find another key for."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:32]


def signer(environ: Mapping[str, str] = os.environ) -> Signer | None:
    """Of the key that the environment names; None if it names none.

    Raises:
        UserError: its file cannot be read, or holds no such key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = environ.get(SIGNING_KEY, "")
    if not path:
        return None
    data, hint = _read(SIGNING_KEY, path), "make one with: openssl genpkey -algorithm ed25519 -out FILE"
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:  # no PEM; one with a passphrase
        raise UserError(f"{SIGNING_KEY}={path} holds no private key that can be used: {error}", hint) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{SIGNING_KEY}={path} holds a key of another kind than Ed25519", hint)
    return Signer(key)


def trusted(environ: Mapping[str, str] = os.environ) -> Trusted:
    """The keys that the environment names.

    Raises:
        UserError: the file cannot be read, holds no key, or one of another kind: never is less checked than was asked.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    path = environ.get(TRUSTED_KEYS, "")
    if not path:
        return Trusted()
    found, hint = [], "make it with: openssl pkey -in SIGNING_KEY -pubout; several may follow each other in one file"
    for block in PEM.findall(_read(TRUSTED_KEYS, path)):
        try:
            key = load_pem_public_key(block)
        except ValueError as error:
            raise UserError(f"{TRUSTED_KEYS}={path} holds a public key that cannot be read: {error}", hint) from None
        if not isinstance(key, Ed25519PublicKey):
            raise UserError(f"{TRUSTED_KEYS}={path} holds a key of another kind than Ed25519", hint)
        found.append(key)
    if not found:
        raise UserError(f"{TRUSTED_KEYS}={path} holds no public key", hint)
    return Trusted(tuple(found))


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"{name}={path} cannot be read: {error}", "name a PEM file") from None
