"""Scatters in numpy: one value after the other, in row-major order of the index."""

from __future__ import annotations

import numpy as np
from numerics.reference import fma


def combine(how, held, x):
    with np.errstate(all="ignore"):
        if how == "sum":
            return held + x
        if how == "prod":
            return held * x
        return np.maximum(held, x) if how == "amax" else np.minimum(held, x)


def put(target, places, values, how="sum", scale=None):
    """places: an index tuple for each value. Float32, changed in place."""
    for p, (place, value) in enumerate(zip(places, values, strict=True)):
        if scale is not None:
            target[place] = fma(np.float32(scale[p]), value, target[place])
        else:
            target[place] = value if how == "assign" else combine(how, target[place], value)
    return target


def scatter(target, dim, index, values, how="sum"):
    places = []
    for at in np.ndindex(*index.shape):
        place = list(at)
        place[dim] = index[at]
        places.append(tuple(place))
    return put(target, places, [values[at] for at in np.ndindex(*index.shape)], how)
