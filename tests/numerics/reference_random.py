"""Random numbers as docs/numerics.md has them, in numpy, element by element."""

from __future__ import annotations

import numpy as np
from numerics.reference import fma


def philox(key, counter):
    """The words (n, 4) of the counters (n, 4)."""
    low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (second >> word) ^ c1 ^ k0, second & low, (first >> word) ^ c3 ^ k1, first & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack([c0, c1, c2, c3], 1).astype(np.uint32)


def words(key, count, each=1):
    """The words of elements 0 .. count - 1, (count, each)."""
    if count == 0:
        return np.zeros((0, each), np.uint32)
    i = np.arange(count)
    panel = 64 // each
    block = i // panel * 16 + i % 16
    drawn = philox(key, np.stack([block, block * 0, block * 0, block * 0], 1))
    row = i // 16 % (4 // each) * each
    return np.stack([drawn[i, row + w] for w in range(each)], 1)


def keys(seed, count):
    """The keys that the first calls after torch.manual_seed(seed) draw: two words of an mt19937, the first above."""
    source = np.random.MT19937()
    source._legacy_seeding(seed)
    words = [int(word) for word in source.random_raw(2 * count)]
    return [high << 32 | low for high, low in zip(words[::2], words[1::2], strict=True)]


def unit(word):
    return (word >> 8).astype(np.float32) * np.float32(2**-24)


def uniform(key, count, low, high):
    low, high = np.float32(low), np.float32(high)
    u = fma(unit(words(key, count)[:, 0]), high - low, low)
    return np.minimum(u, np.nextafter(high, np.float32(-np.inf))) if low < high else u


def integers(key, count, low, size):
    pairs = words(key, count, 2)
    return np.array([low + (((int(b) << 32 | int(a)) * size) >> 64) for a, b in pairs], dtype=object)


def bernoulli(key, count, p):
    return words(key, count)[:, 0].astype(np.float64) * 2.0**-32 < np.asarray(p, np.float64)


def open_unit(word):
    u = fma((word >> 1).astype(np.float32), np.float32(2**-31), np.float32(2**-32))
    return np.where(u < 1, u, np.float32(1 - 2**-24)).astype(np.float64)


def normal(key, count):
    """In binary64, of which the numbers of binary32 are off by what its functions are."""
    i = np.arange(count)
    panel, row, lane = i // 64, i // 16 % 4, i % 16
    first = panel * 64 + row // 2 * 32 + lane
    drawn = words(key, -(-count // 64) * 64)[:, 0]
    radius = np.sqrt(-2 * np.log(open_unit(drawn[first])))
    angle = drawn[first + 16].astype(np.float64) * (2 * np.pi / 2**32)
    return radius * np.where(row % 2 == 0, np.cos(angle), np.sin(angle))


def exponential(key, count):
    return -np.log(open_unit(words(key, count)[:, 0]))
