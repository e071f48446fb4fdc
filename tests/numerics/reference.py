"""The specification of exact numerics once more, slow and obviously in order: numpy, one rounding per line.

Nothing here shares code with `csrc`. Arrays hold many independent outputs; loops run along the chains.
"""

from __future__ import annotations

import numpy as np

CHUNK, BLOCK, LANES = 512, 1024, 16


def fma(a, b, c):
    """round(a * b + c) in binary32: the product is exact in binary64, the sum is rounded to odd there."""
    a, b, c = (np.asarray(x, np.float32).astype(np.float64) for x in (a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        total = product + c
        back = total - product
        error = (product - (total - back)) + (c - back)
        word = np.asarray(total).view(np.int64)
        inexact = (error != 0) & ~np.isnan(error)
        away = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(inexact & (word & 1 == 0), word + away, word)
        return odd.view(np.float64).astype(np.float32)


def pairwise(parts):
    """Neighbours are added, an odd one out is kept, until one is left; none: +0."""
    parts = list(parts)
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return parts[0] if parts else np.float32(0)


def contract(a, b):
    """Matrix product of (..., m, k) and (..., k, n), float32."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    chunks = []
    for start in range(0, a.shape[-1], CHUNK):
        chain = np.zeros(shape, np.float32)
        for k in range(start, min(start + CHUNK, a.shape[-1])):
            chain = fma(a[..., :, k, None], b[..., None, k, :], chain)
        chunks.append(chain)
    with np.errstate(all="ignore"):
        return pairwise(chunks) if chunks else np.zeros(shape, np.float32)


def reduce(x, step=lambda total, x: total + x):
    """Sum (or what `step` accumulates) over the last axis, float32; other dtypes are accumulated as they are."""
    x = np.asarray(x)
    blocks = []
    with np.errstate(all="ignore"):
        for start in range(0, x.shape[-1], BLOCK):
            block = x[..., start : start + BLOCK]
            lanes = [np.zeros(x.shape[:-1], x.dtype) for _ in range(LANES)]
            for i in range(block.shape[-1]):
                lanes[i % LANES] = step(lanes[i % LANES], block[..., i])
            half = LANES // 2
            while half:
                lanes = [lanes[i] + lanes[i + half] for i in range(half)]
                half //= 2
            blocks.append(lanes[0])
        return np.asarray(pairwise(blocks), x.dtype) if blocks else np.zeros(x.shape[:-1], x.dtype)


def same(a, b):
    """Equal to the bit; a NaN is a NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    word = {2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return bool(((a.view(word) == b.view(word)) | (np.isnan(a) & np.isnan(b))).all())
