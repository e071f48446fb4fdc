"""Blobs are checked by their hash, and what was damaged only on its way is not taken for damage."""

from __future__ import annotations

import pytest
from easyscale.errors import CorruptError
from easyscale.storage.blobs import get_blob, put_blob
from easyscale.storage.memory import MemoryStore


class NoisyStore(MemoryStore):
    """Hurts so many of its answers."""

    def __init__(self, hurts: int) -> None:
        super().__init__("noisy")
        self.hurts = hurts

    def get(self, key: str) -> bytes:
        data = super().get(key)
        if self.hurts:
            self.hurts -= 1
            return b"\x00" + data[1:]
        return data


def test_a_blob_that_was_hurt_on_its_way_is_read_again() -> None:
    store = NoisyStore(1)
    assert get_blob(store, put_blob(store, b"whole")) == b"whole"


def test_a_blob_that_is_hurt_twice_is_damaged() -> None:
    store = NoisyStore(2)
    with pytest.raises(CorruptError, match="is damaged"):
        get_blob(store, put_blob(store, b"whole"))
